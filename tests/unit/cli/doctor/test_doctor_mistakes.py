"""Operators that could not start."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import webop
from tests.kit.cli_runner import invoke
from tests.kit.exec_plugins import write_kubeconfig
from tests.kit.waiting import wait_until
from webop.cli.commands.doctor import doctor
from webop.cli.commands.explain import judge_shard

OPERATOR = """
import webop
{startup}
@webop.on.create("kopfexamples")
def fn(nam, **_): ...
"""


@pytest.fixture
def examine(tmp_path: Path) -> Callable[..., Result]:
    """Runs the doctor on a file with some code; no cluster answers."""

    def examine(code: str, *args: str, color: bool = False, **variables: str) -> Result:
        path = tmp_path / "handlers.py"
        path.write_text(code)
        kubeconfig = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
        env = {"KUBECONFIG": kubeconfig, **variables}
        return invoke("doctor", *args, str(path), env=env, color=color)

    return examine


@pytest.mark.parametrize("startup", ["", "webop.on.startup(id='one')(lambda **_: None)"])
def test_handlers_that_cannot_be_called_are_told_without_a_traceback(
    examine: Callable[..., Result], startup: str
) -> None:
    result = examine(OPERATOR.format(startup=startup))
    assert result.output.startswith("Error: The handler fn() requires 'nam', but create handlers")
    assert result.exit_code == 1


def test_the_last_error_of_a_startup_handler_that_is_tried_again_is_reported(
    examine: Callable[..., Result],
) -> None:
    result = examine("import webop\n@webop.on.startup()\ndef f(client, **_): client.list('pods')\n")
    assert "did not end within 10 s; the last error: " in result.output
    assert "Startup handlers have no client here." in result.stdout
    wait_until(  # it is not called again by anybody
        lambda: not any(t.name.startswith("webop-startup") for t in threading.enumerate())
    )


@pytest.mark.parametrize(("variables", "has_colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_turns_the_colours_of_a_terminal_off(
    examine: Callable[..., Result], variables: dict[str, str], has_colours: bool
) -> None:
    code = "import webop\n@webop.on.startup()\ndef fn(**_): 1/0\n"
    result = examine(code, "--no-startup", color=True, **variables)
    assert ("\x1b[" in result.stdout) is has_colours


def test_a_stopped_cluster_of_this_machine_is_told_how_to_start_again(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "clusters" / "mine" / "kubeconfig.yaml"
    variables = {"KUBECONFIG": str(kubeconfig), "WEBOP_CACHE": str(tmp_path)}
    result = invoke("doctor", env=variables)
    assert f"There is no kubeconfig at {kubeconfig}" in result.output
    assert "start it again: webop cluster start --name mine\n" in result.output


def test_the_command_that_explain_names_for_a_free_shard_is_accepted() -> None:
    shards = {"lease": "ops/mine-shards", "owners": []}
    text = judge_shard(shards, 5).remedy.removeprefix("See: ")
    variable, _, command, *options = shlex.split(text)
    assert command == "doctor"
    assert doctor.make_context(command, options).params["shards_name"] == "mine"
    name, _, value = variable.partition("=")
    leadership = webop.OperatorSettings.from_environment({name: value}).leadership
    assert leadership.lease_namespace == "ops"
