"""Operators that could not start."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.kit.cli_runner import invoke
from tests.kit.exec_plugins import write_kubeconfig
from tests.kit.waiting import wait_until

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
    result = invoke(
        "doctor", str(path), env={"KUBECONFIG": write_kubeconfig(tmp_path, "http://127.0.0.1:1")}
    )
    assert result.output.startswith("Error: The handler fn() requires 'nam', but create handlers")
    assert result.exit_code == 1


def test_the_last_error_of_a_startup_handler_that_is_tried_again_is_reported(
    tmp_path: Path,
) -> None:
    path = tmp_path / "handlers.py"
    path.write_text("import webop\n@webop.on.startup()\ndef f(client, **_): client.list('pods')\n")
    result = invoke(
        "doctor", str(path), env={"KUBECONFIG": write_kubeconfig(tmp_path, "http://127.0.0.1:1")}
    )
    assert "did not end within 10 s; the last error: " in result.output
    assert "Startup handlers have no client here." in result.stdout
    wait_until(  # it is not called again by anybody
        lambda: not any(t.name.startswith("webop-startup") for t in threading.enumerate())
    )


def test_cleanup_handlers_run_in_the_event_loop_of_the_startup_handlers(tmp_path: Path) -> None:
    path, trace = tmp_path / "handlers.py", tmp_path / "trace"
    path.write_text(
        "import pathlib, webop\n"
        "from asyncio import get_running_loop\n"
        "@webop.on.startup()\nasync def start(memo, **_): memo.loop = get_running_loop()\n"
        "@webop.on.cleanup()\nasync def end(memo, **_):\n"
        f"    pathlib.Path({str(trace)!r}).write_text(str(memo.loop is get_running_loop()))\n"
    )
    invoke(
        "doctor", str(path), env={"KUBECONFIG": write_kubeconfig(tmp_path, "http://127.0.0.1:1")}
    )
    assert trace.read_text() == "True"


@pytest.mark.parametrize(("variables", "has_colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_turns_the_colours_of_a_terminal_off(
    tmp_path: Path, variables: dict[str, str], has_colours: bool
) -> None:
    path = tmp_path / "handlers.py"
    path.write_text("import webop\n@webop.on.startup()\ndef fn(**_): 1/0\n")
    env = {"KUBECONFIG": write_kubeconfig(tmp_path, "http://127.0.0.1:1"), **variables}
    result = invoke("doctor", "--no-startup", str(path), env=env, color=True)
    assert ("\x1b[" in result.stdout) is has_colours


def test_a_stopped_cluster_of_this_machine_is_told_how_to_start_again(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "clusters" / "mine" / "kubeconfig.yaml"
    variables = {"KUBECONFIG": str(kubeconfig), "WEBOP_CACHE": str(tmp_path)}
    result = invoke("doctor", env=variables)
    assert f"There is no kubeconfig at {kubeconfig}" in result.output
    assert "start it again: webop cluster start --name mine\n" in result.output
