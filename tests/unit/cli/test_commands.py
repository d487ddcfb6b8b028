"""``webop`` itself: its help, its version, its exit codes, and commands that are misspelt."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import re
import sys
import threading
from pathlib import Path

import click
import pytest
import uvloop
from click.testing import CliRunner

import webop
from tests.kit.cli_runner import invoke, run_once
from tests.kit.rows import rows
from webop.cli import CLIControls, main
from webop.cli.commands.run import run as run_command


@pytest.mark.feature("CLI-03")
def test_the_help_shows_all_commands_under_headings() -> None:
    output = invoke("--help").output
    for name in main.list_commands(click.Context(main)):
        assert re.search(rf"^  {name} +[A-Z].{{1,58}}\.$", output, re.MULTILINE)
        assert f"webop {name} " in invoke(name, "--help").output
    assert re.findall(r"^(\w.*):$", output, re.MULTILINE) == [
        *("Options", "Operators", "Inspection", "Deployment", "Tools")
    ]
    assert output == invoke("-h").output == invoke().output


@pytest.mark.feature("CLI-03")
def test_the_version_is_told_whatever_the_environment_has() -> None:
    version = importlib.metadata.version("webop")
    assert invoke("--version").output == f"webop, version {version}\n"
    assert invoke("run", "--help", env={"WEBOP_VERSION": "0.0.7"}).exit_code == 0


DOCUMENTED = (
    *("-m", "--module", "-n", "--namespace", "-A", "--all-namespaces", "-L", "--liveness"),
    *("-v", "--verbose", "-d", "--debug", "-q", "--quiet", "--log-format", "--log-refkey"),
    *("--log-prefix", "--no-log-prefix", "--standalone", "--dev", "-p", "--priority"),
    *("-P", "--peering", "--lease"),
)


@pytest.mark.feature("CLI-01", "CLI-03", "CLI-04", "CLI-05", "CLI-06", "CLI-07", "CLI-08", "CLI-09")
@pytest.mark.feature("CLI-10", "CLI-11", "CLI-12", "CLI-13")
def test_the_help_of_run_has_its_options_under_headings() -> None:
    output = invoke("run", "--help").output
    headings = ("Handlers", "Scope", "Other operators", "Probes", "Logging", "Other options")
    positions = [output.index(f"\n{heading}:\n") for heading in headings]
    assert positions == sorted(positions)
    names = {name for param in run_command.params for name in (*param.opts, *param.secondary_opts)}
    assert {name for name in names if name not in output} == {"paths"}
    assert set(DOCUMENTED) <= names
    assert output.index("webop run --all-namespaces handlers.py") < output.index("It runs until")
    for part in ("Environment:", "WEBOP_RUN_<OPTION>", "Exit codes:", "130, 143"):
        assert part in output
    assert max(map(len, output.splitlines())) <= 80


@rows(
    ("name", "expected"),
    [
        ("rum", "Did you mean 'run'?"),
        ("handlers.py", "Did you mean 'webop run handlers.py'?"),
        ("whatever", "The commands are: "),
    ],
)
def test_a_command_that_is_misspelt_is_told_with_the_nearest(name: str, expected: str) -> None:
    result = invoke(name)
    assert result.exit_code == 2
    assert f"There is no command {name!r}. {expected}" in result.output


@rows("command", ["webop crd apply", "webop crd check", "webop handlers"])
def test_a_command_without_files_names_itself(command: str) -> None:
    result = invoke(*command.split()[1:])
    assert result.exit_code == 2
    assert f": {command} " in result.output


def test_the_reason_of_the_end_is_json_if_the_log_is(tmp_path: Path) -> None:
    result = invoke("run", "-A", "--log-format=json", str(tmp_path / "nowhere.py"))
    assert result.exit_code == 1
    line = json.loads(result.output)
    assert line["severity"] == "error"
    assert "There is no file" in line["message"]


@pytest.mark.feature("CLI-17", "CLI-19")
def test_the_command_line_runs_on_uvloop_if_it_is_installed_unless_a_loop_is_handed_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(run_once("-A").loop, uvloop.Loop)
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        assert run_once("-A", controls=CLIControls(loop=loop)).loop is loop
        assert not loop.is_closed()
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as if it was not installed
    assert not isinstance(run_once("-A").loop, uvloop.Loop)


@pytest.mark.feature("CLI-17")
def test_code_runs_on_the_loop_of_python_if_it_asks_for_nothing_else() -> None:
    stop_flag, loops = threading.Event(), []

    @webop.on.startup()
    async def look(**_: object) -> None:
        loops.append(asyncio.get_running_loop())
        stop_flag.set()

    webop.run(clusterwide=True, stop_flag=stop_flag)
    assert not isinstance(loops[0], uvloop.Loop)


@rows(
    ("words", "expected"),
    [
        ("webop ha", "plain,handlers"),
        ("webop run --lea", "plain,--lease"),
        ("webop run han", "file,han"),
    ],
)
def test_commands_options_and_files_are_completed(words: str, expected: str) -> None:
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    result = CliRunner().invoke(
        main, prog_name="webop", env={"_WEBOP_COMPLETE": "bash_complete", **variables}
    )
    assert result.output.splitlines() == [expected]
