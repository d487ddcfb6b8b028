"""Histories in a simulated cluster: those that were kept, some new ones, and their replay."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.pages import ROOT
from tests.kit.processes import run_module
from tools.simulation import plans
from tools.simulation.commands import KEPT
from tools.simulation.drawing import draw_plan
from tools.simulation.mutating import MUTANTS, check
from tools.simulation.themes import THEMES
from tools.simulation.world import run

_NAMES = sorted(path.stem for path in KEPT.glob("*.json"))


def simulate(*arguments: str) -> str:
    return run_module("tools.simulation", *arguments).stdout


@pytest.mark.filterwarnings("ignore:.* did not end in time:ResourceWarning")
@pytest.mark.parametrize("name", _NAMES)
def test_a_history_that_once_went_wrong_goes_well(name: str) -> None:
    plan = plans.load(json.loads((KEPT / f"{name}.json").read_text()))
    assert run(plan).violations == []


def test_new_histories_go_well() -> None:
    told = simulate("--first", "1000000", "--jobs", "1", "--count", "3")
    assert ", 0 bad" in told.splitlines()[-1], told


def test_a_seed_replays_exactly_and_its_log_stands_in_its_story() -> None:
    first, second = (simulate("--seed", "52", *logs).splitlines() for logs in ((), ("--logs",)))
    assert any(line.startswith("digest ") for line in first)
    assert any(re.search(r" replica-0-1: INFO webop\.", line) for line in second)
    assert {*first} < {*second}


@pytest.mark.journey
@pytest.mark.parametrize(
    "name",
    [
        *("shared-gate", "missed-while-down", "late-kind", "unseen-after-pause", "resumed-again"),
        "refused-patch-kept",
    ],
)
def test_a_bug_that_is_put_back_is_found_by_histories(name: str) -> None:
    chosen = "--mutant", name, "--theme", MUTANTS[name].theme, "--first", "100000", "--count", "12"
    done = run_module("tools.simulation", *chosen, "--jobs", "1", "--no-shrink")
    assert done.returncode == 1, done.stdout


@pytest.mark.parametrize("name", MUTANTS)
def test_a_bug_can_be_put_back_into_the_present_code(name: str) -> None:
    check(name)
    path = MUTANTS[name].test.partition("::")[0]
    assert (ROOT / path).exists()


@pytest.mark.journey
def test_a_history_found_by_a_mutant_is_shortened_and_kept_when_the_user_interrupts(
    tmp_path: Path,
) -> None:
    histories = "--theme", "lockouts", "--mutant", "resumed-again", "--first", "1"
    command = [sys.executable, "-m", "tools.simulation", *histories, "--jobs", "1"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        told = []
        for line in process.stdout:
            told.append(line)
            if sum(each.startswith("The history has") for each in told) == 2:
                break
        process.send_signal(signal.SIGINT)
        told += process.stdout
    assert process.returncode == 130, told
    assert "Interrupted.\n" in told
    assert re.match(
        r'Wrote (history-\d+\.json)\. Replay it: make simulate ARGS="--plan \1 --mutant ', told[-2]
    )
    assert any("--theme lockouts --mutant resumed-again" in line for line in told)
    assert [path.suffix for path in tmp_path.glob("history-*")] == [".json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--theme", "nosuch"], "invalid choice: 'nosuch' (choose from"),
        (["--jobs", "0"], "--jobs: must be a whole number above 0, got '0'"),
        (["--plan", "tests/simulation"], "Cannot read a history from tests/simulation: "),
        (["--plan", ".github/versions.json"], "it is no history, or another version has written"),
    ],
)
def test_a_mistake_in_the_command_line_is_explained_in_one_line(
    arguments: list[str], message: str
) -> None:
    done = run_module("tools.simulation", *arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("theme", THEMES)
def test_all_histories_that_are_drawn_can_be_read_again(theme: str) -> None:
    for seed in range(8):
        plan = draw_plan(seed, theme)
        assert plans.load(json.loads(plans.dump(plan))).steps == plan.steps
