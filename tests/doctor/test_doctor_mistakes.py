"""Operators that could not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.invoking import invoke

OPERATOR = """
import webop
{startup}
@webop.on.create("kopfexamples")
def fn(nam, **_): ...
"""


@pytest.mark.parametrize("startup", ["", "webop.on.startup(id='one')(lambda **_: None)"])
def test_handlers_that_cannot_be_called_are_told_without_a_traceback(
    tmp_path: Path, startup: str
) -> None:
    path = tmp_path / "handlers.py"
    path.write_text(OPERATOR.format(startup=startup))
    config = tmp_path / "config"
    config.write_text(
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: a, user: {token: x}}]\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "current-context: a\n"
    )
    result = invoke("doctor", str(path), env={"KUBECONFIG": str(config)})
    assert result.output.startswith("Error: The handler fn() requires 'nam', but there is no such")
    assert result.exit_code == 1
