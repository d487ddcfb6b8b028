"""Histories in a simulated cluster: those that were kept, some new ones, and their replay."""

import subprocess
import sys

import pytest

from tests.simulation.commands import KEPT

_NAMES = sorted(path.stem for path in KEPT.glob("*.json"))


def simulate(*arguments: str) -> str:
    """Run the command, return what it prints."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def kept() -> dict[str, str]:
    """The histories that once went wrong, with what they show now."""
    lines = simulate("--kept").splitlines()
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("name", _NAMES)
def test_a_history_that_once_went_wrong_goes_well(kept: dict[str, str], name: str) -> None:
    assert kept[name] == "well"


def test_new_histories_go_well() -> None:
    told = simulate("--first", "1000000", "--count", "25", "--jobs", "1")
    assert ", 0 bad" in told.splitlines()[-1], told


def test_a_seed_replays_exactly() -> None:
    first, second = (simulate("--seed", "57") for _ in range(2))
    assert "digest" in first
    assert first == second


@pytest.mark.parametrize(
    ("theme", "mutant"),
    [
        ("leases", "deleted-lease-taken"),
        ("leases", "hasty-handover"),
        ("policies", "refused-patch-kept"),
        ("lockouts", "resumed-again"),
        ("writes", "outcome-forgotten"),
        ("successors", "patch-without-uid"),
    ],
)
def test_a_bug_that_is_put_back_is_found(theme: str, mutant: str) -> None:
    histories = "--theme", theme, "--first", "1", "--count", "40"
    told = simulate("--mutant", mutant, *histories, "--jobs", "1", "--no-shrink")
    assert ", 1 bad" in told, told
