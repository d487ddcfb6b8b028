"""Proves that the mutants are what they say: each fails its test, and the plain story goes on.

``python -m tests.simulation.mutating [name…]`` does so for all or some of them;
``WEBOP_MUTANT=name pytest -p tests.simulation.mutating -n 0 TEST`` runs any test with one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

import click

from tests.simulation.mutants import MUTANTS, apply

VARIABLE = "WEBOP_MUTANT"

_PLAIN = (
    "tests/reactor/test_changes.py::test_a_created_object_is_handled_once",
    "tests/reactor/test_changes.py::test_an_update_is_told_with_both_states_and_the_difference",
    "tests/reactor/test_changes.py::test_a_deletion_waits_for_its_handlers",
    "tests/reactor/test_daemons.py::test_a_daemon_lives_as_long_as_its_object",
    "tests/reactor/test_indexes.py::test_an_index_follows_the_objects",
)


def prove(name: str) -> str:
    """Run the test of a mutant and the plain ones; return what is wrong, nothing if all is well."""
    named, plain = _run(name, MUTANTS[name].test), _run(name, *_PLAIN)
    wrong = [] if re.search(r"\b[1-9]\d* failed", named) else [f"its test: {named}"]
    if f"{len(_PLAIN)} passed" not in plain:
        wrong.append(f"the plain ones: {plain}")
    return "; ".join(wrong)


def _run(name: str, *tests: str) -> str:
    """Run tests with a mutant; return the summary of pytest."""
    plugin = "tests.simulation.mutating"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", plugin, "-n", "0", "-q", "--tb=no", *tests],
        env={**os.environ, VARIABLE: name},
        capture_output=True,
        text=True,
        check=False,
    )
    return (ran.stdout.strip() or ran.stderr.strip()).rpartition("\n")[2]


def main(names: Sequence[str]) -> int:
    """Prove mutants, all of them by default; return how many are not what they say."""
    count = 0
    for name in names or MUTANTS:
        wrong = prove(name)
        count += bool(wrong)
        click.echo(f"{name:22} {wrong or 'is found by its test; the plain story goes on'}")
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
elif VARIABLE in os.environ:
    apply(os.environ[VARIABLE])
