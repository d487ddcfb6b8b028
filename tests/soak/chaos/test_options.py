"""The command line of chaos runs: wrong options, and Ctrl-C."""

import shutil
from pathlib import Path

import pytest

from tests.kit.pages import ROOT
from tests.kit.processes import run_module

pytestmark = pytest.mark.journey


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "0"], "--replicas must be above 0"),
        (["--minutes", "inf"], "--minutes must be at most 10080 (a week)"),
        (["--keep", "README.md"], "--keep must be a new or an empty folder, got README.md"),
        (["--alone", "--replicas", "2"], "--alone runs one replica: --replicas does nothing"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_started(
    arguments: list[str], message: str
) -> None:
    done = run_module("tools.soak.chaos", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr


def test_a_run_does_not_test_another_copy_of_webop(tmp_path: Path) -> None:
    copy = tmp_path / "webop"
    shutil.copytree(ROOT / "webop", copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "app.py").write_text("# It was edited in the clone since.\n")
    done = run_module("tools.soak.chaos", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"chaos: the webop in {copy} differs from this clone, ")
    assert f" -m pip install -e '{ROOT}'" in done.stderr
