"""Types the tutorial in an empty folder; its files also work without a package index."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.kit.cli_runner import invoke
from tests.kit.pages import DOCS
from tools.site.playing import Player, read_steps

if TYPE_CHECKING:
    from webop.testing import LocalCluster

PARTS = [DOCS / "learn" / "tutorial.md", *sorted((DOCS / "learn").glob("tutorial_*.md"))]
LONGEST = 180  # lines of a part
STEPS = [step for part in PARTS for step in read_steps(part)]

# Packages are downloaded, an environment is made, and all parts are typed.
pytestmark = [pytest.mark.journey, pytest.mark.timeout(1200)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files of all parts."""
    user = Player(tmp_path, {})
    for step in STEPS:
        if step.title:
            user.write(step)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "websites", raising=False)  # of another test
    return tmp_path


def test_the_tutorial_can_be_typed_in_an_empty_folder(player: Player) -> None:
    assert len(PARTS) == 5
    for part in PARTS:
        player.play(part)


def test_the_tests_of_the_tutorial_pass(folder: Path, webop_cluster: LocalCluster) -> None:
    """With the environment of this run, for machines without a package index or kubectl."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    shown = re.search(r"\d+ passed", "".join(step.code for step in STEPS))
    assert shown is not None
    assert shown[0] in done.stdout, done.stdout
    assert done.returncode == 0


def test_the_tutorial_lists_the_objects_of_its_manifests(folder: Path) -> None:
    command = next(s.code for s in STEPS if s.code.startswith("webop manifests"))
    words = shlex.split(command.replace("\\\n", "").partition(">")[0])
    result = invoke(*words[1:])
    assert result.exit_code == 0, result.output
    made = [body["metadata"]["name"] for body in yaml.safe_load_all(result.stdout)]
    shown = next(s.code for s in STEPS if "serverside-applied" in s.code)
    assert made == re.findall(r"/(\S+) serverside-applied", shown)
    assert "websites/finalizers" in result.stdout
    assert "configmaps" in result.stdout
