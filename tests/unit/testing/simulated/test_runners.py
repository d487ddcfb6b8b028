"""Simulated tests run under all runners; the lines that failures print run them again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.journey

_COMMON = """
import pytest
import unittest
import webop
from webop.testing import SimulatedCluster, simulated

METADATA = {"name": "one", "namespace": "default"}
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA}

def declare():
    @webop.on.create("configmaps", id="mark")
    async def mark(patch, **_):
        patch.metadata.labels["marked"] = "yes"

def expect(cluster, wanted):
    cluster.settle()
    config = cluster.get("configmaps", "one", namespace="default")
    assert config["metadata"]["labels"]["marked"] == wanted

marking = simulated(declare, given=[CONFIG], seeds=2)
"""


def build_module(head: str = "", marks: str = "", argument: str = "") -> str:
    """Return a good and a bad test, with marks and a further argument."""
    return f"""
{head}

{marks}
@marking
def test_good(cluster{argument}):
    expect(cluster, "yes")

{marks}
@marking
def test_bad(cluster{argument}):
    expect(cluster, "yes" if cluster.seed == 0 else "no")
"""


_PLAIN = build_module()
_ASYNC = build_module(
    """
@pytest.fixture
async def value():
    return "yes"

async def test_beside():
    pass
""",
    argument=", value",
)
_ANYIO = build_module(
    """
pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def test_beside():
    pass
""",
    argument=", anyio_backend",
)
_HYPOTHESIS = build_module(
    """
from hypothesis import given, settings, strategies

values = given(value=strategies.integers(0, 9))
few = settings(deadline=None, max_examples=3)
""",
    marks="@few\n@values",
    argument=", value",
)
_UNITTEST = """
class Marking(unittest.TestCase):
    @marking
    def test_good(self, cluster):
        expect(cluster, "yes")

    @marking
    def test_bad(self, cluster):
        expect(cluster, "yes" if cluster.seed == 0 else "no")

if __name__ == "__main__":
    unittest.main()
"""


def run(folder: Path, command: str, **variables: str) -> str:
    """Run a command as in a shell of a user, and return what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    foreign = ("PYTEST", "WEBOP")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**own, "PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def check(folder: Path, text: str, command: str, *, outcome: str, **variables: str) -> None:
    """Expect an outcome of a suite, and that the line of its failure shows it again."""
    (folder / "test_marking.py").write_text(textwrap.dedent(_COMMON + text))
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    output = run(folder, command, **variables)
    assert re.search(outcome, output), output
    line = re.search(r"Seed 1\. To run it again: (WEBOP_SEED=1 .+)", output)
    assert line, output
    again = run(folder, line[1], **variables)
    assert f"Seed 1. To run it again: {line[1]}" in again, again
    assert re.search(r"\b1 failed|failures=1", again), again
    assert "test_good" not in again


_ASYNCIO = "-o asyncio_default_fixture_loop_scope=function -o asyncio_mode=auto"


@pytest.mark.parametrize(
    ("text", "options", "passed"),
    [
        pytest.param(_ASYNC, _ASYNCIO, 2, id="asyncio"),
        pytest.param(_ANYIO, "-p no:asyncio", 2, id="anyio"),
        pytest.param(_HYPOTHESIS, "-p no:asyncio", 1, id="hypothesis"),
        pytest.param(_UNITTEST, "-p no:asyncio", 1, id="unittest"),
        pytest.param(_PLAIN, "-p no:asyncio -n 4", 1, id="xdist"),
    ],
)
def test_it_runs_in_pytest_with(tmp_path: Path, text: str, options: str, passed: int) -> None:
    check(
        *(tmp_path, text, "pytest"),
        outcome=f"1 failed, {passed} passed",
        PYTEST_ADDOPTS=f"{options} -p no:cacheprovider",
    )


def test_it_runs_in_pytest_without_plugins(tmp_path: Path) -> None:
    plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    check(tmp_path, _PLAIN, "pytest", outcome="1 failed, 1 passed", **plain)


@pytest.mark.parametrize("command", ["python -m unittest", "python test_marking.py"])
def test_it_runs_in_unittest(tmp_path: Path, command: str) -> None:
    check(tmp_path, _UNITTEST, command, outcome=r"Ran 2 tests[\s\S]+failures=1")
