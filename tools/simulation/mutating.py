"""Proves that the mutants are what they say: each fails its test, and the plain story goes on.

``python -m tools.simulation.mutating [name…]`` does so for all or some of them;
``WEBOP_MUTANT=name pytest -p tools.simulation.mutating -n 0 TEST`` runs any test with one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

import click

from tools.simulation.mutants import MUTANTS, apply

VARIABLE = "WEBOP_MUTANT"

_PLAIN = (
    "tests/cluster/reactor/test_changes.py::test_a_created_object_is_handled_once",
    "tests/cluster/reactor/test_changes.py::test_only_essential_changes_are_updates",
    "tests/cluster/reactor/test_changes.py::test_a_deletion_waits_for_its_handlers",
    "tests/cluster/reactor/test_daemons.py::test_a_daemon_lives_as_long_as_its_object",
    "tests/cluster/reactor/test_indexes.py::test_an_index_and_memos_are_made_anew_by_each_operator",
)


def prove(name: str) -> str:
    """Run the test of a mutant and the plain ones; return what is wrong, nothing if all is well."""
    if name not in MUTANTS:
        return "is not in mutants.toml"
    test = MUTANTS[name].test
    options = ["-p", "tools.simulation.mutating", "-n", "0", "-q", "--tb=no", "-rfE"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, test, *_PLAIN],
        env={**os.environ, VARIABLE: name},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    wrong = [f"{other} fails, too" for other in failed if not other.startswith(test)]
    if len(wrong) == len(failed):
        last = (ran.stdout.strip() or ran.stderr.strip()).rpartition("\n")[2]
        wrong.append(f"its test does not fail: {last}")
    return "; ".join(wrong)


def main() -> int:
    """Prove mutants, all of them by default; return how many are not what they say."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulation.mutating",
        description="Check that mutants fail their tests, and that the plain story still passes.",
    )
    what = "of tools/simulation/mutants.toml (default: all of them; this takes some minutes)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=what)
    count = 0
    for name in parser.parse_args().names or MUTANTS:
        wrong = prove(name)
        count += bool(wrong)
        click.echo(f"{name:22} {wrong or 'is found by its test; the plain story goes on'}")
    return count


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        click.echo("Interrupted.")
        sys.exit(130)
elif VARIABLE in os.environ:
    apply(os.environ[VARIABLE])
