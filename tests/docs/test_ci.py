"""What CI runs on which Python, shown with stand-ins for make and for the interpreters."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / ".ci" / "run"


class Machine:
    """A project of one script, with nothing in PATH but what is put there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in (".ci", ".venv/bin", "shims", "bin"):
            (root / folder).mkdir(parents=True)
        shutil.copy(_SCRIPT, root / ".ci" / "run")
        for tool in ("bash", "dirname", "paste"):
            (root / "bin" / tool).symlink_to(shutil.which(tool) or tool)
        self.put("bin/make", 'echo "make $*"')
        self.put(".venv/bin/python", "echo Python 3.11.7")

    def put(self, path: str, command: str) -> Path:
        (self.root / path).write_text(f"#!/usr/bin/env bash\n{command}\n")
        (self.root / path).chmod(0o755)
        return self.root / path

    def install(self, name: str, version: str) -> Path:
        command = f'[[ $1 == --version ]] && echo "Python {version}" || echo "$0"'
        return self.put(f"bin/{name}", command)

    def run(self) -> list[str]:
        path = f"{self.root}/shims:{self.root}/bin"
        bash = shutil.which("bash") or "bash"
        done = subprocess.run(
            [bash, str(self.root / ".ci" / "run")],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_ci_runs_the_whole_suite_on_the_oldest_python_and_a_part_on_the_newest(
    machine: Machine,
) -> None:
    oldest, newest = (
        machine.install("python3.11", "3.11.7"),
        machine.install("python3.13", "3.13.0"),
    )
    machine.install("python3.12", "3.12.1")
    lines = machine.run()
    assert f"make test PYTHON={oldest}" in lines
    assert any(line.startswith(f"make test PYTHON={newest} VENV=.venv-newest ") for line in lines)
    assert any(line.startswith(f"make lowest PYTHON={oldest} VENV=.venv-lowest ") for line in lines)
    assert "3.12" not in " ".join(lines)
    assert lines[-1] == "CI: the whole suite passed on Python 3.11.7, a part of it on Python 3.13.0"


def test_ci_passes_over_a_shim_that_does_not_work(machine: Machine) -> None:
    machine.install("python3.11", "3.11.7")
    machine.put("shims/python3.13", "echo python3.13: command not found; exit 127")
    newest = machine.install("python3.13", "3.13.0")
    assert any(f"PYTHON={newest} " in line for line in machine.run())


def test_ci_finds_the_versions_of_pyenv_that_are_not_selected(machine: Machine) -> None:
    machine.put("bin/pyenv", "echo 3.11.7; echo 3.13.0")
    newest = machine.install("versions-3.13", "3.13.0")
    machine.put("shims/python3.13", f'[[ $PYENV_VERSION == *:3.13.0 ]] && echo "{newest}"')
    assert any(f"PYTHON={newest} " in line for line in machine.run())


def test_ci_says_in_one_line_that_there_is_no_newer_python(machine: Machine) -> None:
    lines = machine.run()
    assert "make test PYTHON=python3" in lines
    assert lines[-1] == "CI: this machine has no newer Python: only Python 3.11.7 was tested"


def test_ci_installs_a_browser_if_there_is_none_and_says_if_it_cannot(machine: Machine) -> None:
    absent = "CI: installing Chromium"
    failed = "CI: cannot install Chromium; the tests of the status page are skipped"
    lines = machine.run()
    assert [absent, failed] == [line for line in lines if "Chromium" in line]
    assert any(line.startswith("make test ") for line in lines)
    machine.put("bin/apt-get", 'echo "$*" >>asked')
    assert failed not in machine.run()
    assert "install -y" in (machine.root / "asked").read_text()
    machine.put("bin/chromium", "exit 1")
    assert not [line for line in machine.run() if "Chromium" in line]
