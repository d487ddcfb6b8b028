"""Run the tests of examples as their users do: each in a process and a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.journey

_EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.feature("TST-01", "TST-08")
@pytest.mark.parametrize("name", ["access_grants", "cronjob", "desired_state", "typed_operator"])
def test_the_tests_of_the_example_pass_in_a_folder_of_its_own(tmp_path: Path, name: str) -> None:
    """The folder has no access to this repository, only to the installed package."""
    folder = tmp_path / name
    shutil.copytree(
        _EXAMPLES / name, folder, ignore=shutil.ignore_patterns("__pycache__", ".*_cache")
    )
    foreign = ("WEBOP_ADMISSION", "WEBOP_MODULES", "PYTEST", "KUBECONFIG")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    options = ["-p", "no:cacheprovider", "-W", "error"]
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "webop: ran against Kubernetes v" in done.stdout
