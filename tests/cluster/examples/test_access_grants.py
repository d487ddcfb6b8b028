"""Run the tests of the example project ``access_grants`` as its users do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_PROJECT = Path(__file__).parents[3] / "examples" / "access_grants"


@pytest.mark.feature("TST-01", "TST-08")
def test_the_tests_of_the_example_pass_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """The folder has no access to this repository, only to the installed package."""
    folder = tmp_path / "access_grants"
    shutil.copytree(_PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    foreign = ("WEBOP_ADMISSION", "WEBOP_MODULES", "PYTEST", "KUBECONFIG")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "webop: ran against Kubernetes v" in done.stdout
