"""What the package declares to pip, and what the image of the example runs."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import webop

_ROOT = Path(__file__).parents[2]
_WORKFLOWS = sorted((_ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.feature("DEP-01")
def test_the_extras_of_the_manual_are_there() -> None:
    metadata = importlib.metadata.metadata("webop")
    assert {"full-auth", "uvloop", "dev"} <= set(metadata.get_all("Provides-Extra") or ())
    required = importlib.metadata.requires("webop") or []
    extras = {
        extra: {re.split(r"[ \[<>=;]", text)[0] for text in required if _is_of(text, extra)}
        for extra in ("full-auth", "uvloop", "dev", "ngrok")
    }
    assert extras["full-auth"] == {"kubernetes", "pykube-ng"}
    assert extras["uvloop"] == {"uvloop"}
    assert extras["ngrok"] == {"pyngrok"}
    assert "pyngrok" in extras["dev"]


def _is_of(text: str, extra: str) -> bool:
    return re.search(rf"""extra == ['"]{extra}['"]""", text) is not None


@pytest.mark.feature("DEP-03")
def test_the_image_of_the_example_runs_the_command_and_gets_its_signals() -> None:
    text = (_ROOT / "Dockerfile").read_text()
    entrypoint, command = (
        json.loads(re.search(rf"^{word} (\[.*\])$", text, re.MULTILINE)[1])  # type: ignore[index]
        for word in ("ENTRYPOINT", "CMD")
    )
    assert entrypoint == ["webop"]
    assert (command[0], command[-1]) == ("run", "handlers.py")


def test_the_changelog_describes_this_version() -> None:
    text = (_ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(webop.__version__)}\b", text, re.MULTILINE)


def _read_lower_bounds() -> dict[str, str]:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for extra in extras.values() for text in extra)]
    found = (re.fullmatch(r"([\w-]+)(\[.*\])?(>=([\d.]+))?.*", text) for text in texts)
    return {match[1]: match[4] for match in found if match and match[1] != "webop"}


def test_every_dependency_has_a_lower_bound_and_uvicorn_one_above_what_the_tests_know() -> None:
    assert all(_read_lower_bounds().values())
    text = (_ROOT / "pyproject.toml").read_text()
    bound = re.search(r'"uvicorn>=[\d.]+,<0\.(\d+)"', text)
    locked = re.search(r'name = "uvicorn"\nversion = "0\.(\d+)', (_ROOT / "uv.lock").read_text())
    assert bound
    assert locked
    assert int(bound[1]) == int(locked[1]) + 1


def test_the_lock_file_fits_the_project() -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed: these are not the locked versions")
    command = [str(uv), "lock", "--check", "--offline"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "network was disabled" in done.stderr, done.stderr


@pytest.mark.parametrize("path", _WORKFLOWS, ids=lambda path: str(path.name))
def test_workflows_pin_actions_by_digest_and_call_targets_that_exist(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: (.+)", text)
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in used)
    targets = re.findall(r"^(\w+):", (_ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z]+)", text)) <= set(targets)
