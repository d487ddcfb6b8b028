"""The options of ``webop run``: where they come from, what is stronger, what they lead to."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest

import webop
from tests.kit.cli_runner import invoke, run_once
from tests.kit.rows import rows
from webop.cli import CLIControls, LogFormatParamType
from webop.settings.base import list_fields


@pytest.mark.feature("CLI-10", "CLI-11", "CLI-12", "CLI-13", "CLI-08", "CLI-16", "CFG-50")
@rows(
    ("args", "variables", "path", "value"),
    [
        (["-A"], {}, "peering.clusterwide", True),
        (["-n", "a", "-n", "b-*"], {}, "peering.clusterwide", False),
        (["-A", "-p", "7"], {}, "peering.priority", 7),
        (["-A", "--dev"], {}, "peering.priority", 666),
        (["-A", "--dev", "-p", "7"], {}, "peering.priority", 666),
        (["-A", "--standalone"], {}, "peering.standalone", True),
        (["-A", "--peering=mine"], {}, "peering.mandatory", True),
        (["-A", "--lease", "mine"], {}, "leadership.lease_name", "mine"),
        # Variables of options
        ([], {"RUN_CLUSTERWIDE": "true"}, "peering.clusterwide", True),
        ([], {"RUN_NAMESPACES": "a b-*,!b-c"}, "peering.clusterwide", False),
        (["-A"], {"RUN_PRIORITY": "7"}, "peering.priority", 7),
        (["-A"], {"RUN_PEERING": "mine"}, "peering.name", "mine"),
        # The command line is stronger, also than the variables of settings.
        (["-A"], {"RUN_NAMESPACES": "a"}, "peering.clusterwide", True),
        (["-n", "a"], {"RUN_CLUSTERWIDE": "1"}, "peering.clusterwide", False),
        (["-A", "-p7"], {"RUN_PRIORITY": "5"}, "peering.priority", 7),
        (["-A"], {"PEERING__PRIORITY": "5"}, "peering.priority", 5),
        (["-A", "-p7"], {"PEERING__PRIORITY": "5"}, "peering.priority", 7),
    ],
)
def test_options_and_their_variables_set_what_they_are_about(
    args: list[str], variables: dict[str, str], path: str, value: Any
) -> None:
    run = run_once(*args, env={f"WEBOP_{name}": text for name, text in variables.items()})
    group, name = path.split(".")
    assert getattr(getattr(run.settings, group), name) == value
    assert "unknown environment variable" not in run.result.output


@pytest.mark.feature("CLI-19", "CFG-50")
def test_settings_that_are_handed_in_stay_as_they_are_but_for_what_options_say() -> None:
    settings = webop.OperatorSettings()
    settings.peering.priority, settings.peering.name = 5, "mine"
    settings.peering.standalone = settings.peering.clusterwide = True
    settings.leadership.lease_name = "mine"
    before = {name: repr(getattr(settings, name)) for name in list_fields(type(settings))}
    run = run_once(
        "-A", controls=CLIControls(settings=settings), env={"WEBOP_POSTING__LEVEL": "10"}
    )
    assert run.settings is settings
    assert {name: repr(getattr(settings, name)) for name in before} == before
    run_once("-A", "-p7", controls=CLIControls(settings=settings))
    assert settings.peering.priority == 7


@pytest.mark.feature("SCP-15", "CLI-18")
@rows(
    ("args", "variables", "expected"),
    [
        (["-A", "-n", "a"], {}, "exclude each other"),
        ([], {"WEBOP_RUN_NAMESPACES": "a", "WEBOP_RUN_CLUSTERWIDE": "1"}, "exclude each other"),
        (["-A", "--peerign=x"], {}, "Did you mean"),
        (["-A"], {"WEBOP_RUN_PRIORITY": "high"}, "'high' is not a valid integer"),
        (["-n", ""], {}, "-n/--namespace is empty"),
    ],
)
def test_mistakes_in_options_are_told(
    args: list[str], variables: dict[str, str], expected: str
) -> None:
    result = invoke("run", *args, env=variables)
    assert result.exit_code == 2
    assert expected.lower() in result.output.lower()
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [("WEBOP_RUN_NAMESPACE", "WEBOP_RUN_NAMESPACES"), ("WEBOP_POSTNG__LEVEL", "POSTING__LEVEL")],
)
def test_variables_that_mean_nothing_are_told_once(variable: str, nearest: str) -> None:
    output = run_once("-A", env={variable: "x"}).result.output
    (line,) = (line for line in output.splitlines() if variable in line)
    assert "WARNING" in line
    assert f"{nearest}?" in line


@pytest.mark.feature("REF-77", "CLI-19")
def test_controls_are_a_dataclass_with_the_documented_fields() -> None:
    names = ["ready_flag", "stop_flag", "vault", "registry", "settings", "loop"]
    assert dataclasses.asdict(CLIControls()) == dict.fromkeys(names)


@pytest.mark.feature("REF-78", "CLI-20", "CLI-06")
def test_log_formats_are_chosen_by_their_names() -> None:
    assert issubclass(LogFormatParamType, click.Choice)
    convert = LogFormatParamType().convert
    formats = [convert(name, None, None) for name in ("plain", "full", "json")]
    assert formats == list(webop.LogFormat)
    assert convert(webop.LogFormat.JSON, None, None) is webop.LogFormat.JSON
    with pytest.raises(click.BadParameter, match="xml"):
        convert("xml", None, None)
