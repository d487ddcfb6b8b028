"""Operators that could not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.invoking import invoke

OPERATOR = """
import webop
{startup}
@webop.on.create("kopfexamples")
def fn(nam, **_): ...
"""


def write_config(tmp_path: Path) -> str:
    """Write a kubeconfig of a server that is not there; return its path."""
    config = tmp_path / "config"
    config.write_text(
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: a, user: {token: x}}]\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "current-context: a\n"
    )
    return str(config)


@pytest.mark.parametrize("startup", ["", "webop.on.startup(id='one')(lambda **_: None)"])
def test_handlers_that_cannot_be_called_are_told_without_a_traceback(
    tmp_path: Path, startup: str
) -> None:
    path = tmp_path / "handlers.py"
    path.write_text(OPERATOR.format(startup=startup))
    result = invoke("doctor", str(path), env={"KUBECONFIG": write_config(tmp_path)})
    assert result.output.startswith("Error: The handler fn() requires 'nam', but there is no such")
    assert result.exit_code == 1


def test_the_doctor_ends_though_a_startup_handler_does_not(tmp_path: Path) -> None:
    path = tmp_path / "handlers.py"
    path.write_text(
        "import threading, webop\n@webop.on.startup()\ndef wait(**_): threading.Event().wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "webop", "doctor", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "KUBECONFIG": write_config(tmp_path)},
    )
    assert "the startup handlers do not work here: they have not ended in 10 s" in done.stdout
    assert done.returncode == 1
