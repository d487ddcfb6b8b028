"""The feature checklist as data: what the manual promises, row by row, and who shows it.

``features.tsv`` lists the rows (id, group, text); ``reasons.tsv`` says, for rows with no test, why
there is none. Tests name their rows with ``@pytest.mark.feature("ID", ...)``.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
TESTS = FOLDER.parents[1] / "tests"


@dataclass(frozen=True)
class Feature:
    id: str
    group: str
    text: str


def load_features() -> list[Feature]:
    with (FOLDER / "features.tsv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Feature(**row) for row in reader]


def load_reasons() -> dict[str, str]:
    """Return by id why a row has no test: one sentence, written by hand."""
    with (FOLDER / "reasons.tsv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["id"]: row["reason"] for row in reader}


def read_marks(items: Iterable[pytest.Item]) -> dict[str, set[str]]:
    """Return the tests of each id, as ``folder/test_file.py::test_name`` relative to the tests."""
    marks: dict[str, set[str]] = defaultdict(set)
    for item in items:
        for feature in get_ids(item):
            marks[feature].add(get_test(item.nodeid))
    return dict(marks)


def get_ids(item: pytest.Item) -> list[str]:
    return sorted({feature for mark in item.iter_markers("feature") for feature in mark.args})


def get_test(node: str) -> str:
    """Return the name of the test without its parameters, relative to the folder of the tests."""
    return node.split("[", 1)[0].removeprefix("tests/")


def collect_marks() -> dict[str, set[str]]:
    """Return the same for all tests there are, by a collection of its own: some seconds."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "marks.json"
        command = [sys.executable, "-m", "pytest", "-p", "tools.parity.plugin", "--collect-only"]
        done = subprocess.run(
            [*command, "--quiet", "-m", "", "--parity-marks", str(target), "tests"],
            cwd=TESTS.parent,
            env={**os.environ, "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"The tests cannot be collected:\n{done.stdout[-2000:]}")
        marks = json.loads(target.read_text(encoding="utf-8"))
    return {feature: set(tests) for feature, tests in marks.items()}
