"""Mended bugs, put back into a process before webop is imported: they are in ``mutants.toml``.

``python -m tools.simulation.mutating [name…]`` proves that all or some of them are what they say:
each fails its test, and the plain story goes on. ``WEBOP_MUTANT=name pytest -p
tools.simulation.mutating -n 0 TEST`` runs any test with one. Nothing of webop is imported here.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

VARIABLE = "WEBOP_MUTANT"

_PLAIN = (
    "tests/cluster/reactor/test_changes.py::test_a_created_object_is_handled_once",
    "tests/cluster/reactor/test_changes.py::test_only_essential_changes_are_updates",
    "tests/cluster/reactor/test_changes.py::test_a_deletion_waits_for_its_handlers",
    "tests/cluster/reactor/test_daemons.py::test_a_daemon_lives_as_long_as_its_object",
    "tests/cluster/reactor/test_indexes.py::test_an_index_and_memos_are_made_anew_by_each_operator",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug, put back.

    Attributes:
        story: what a user would see.
        theme: of the histories that find it; empty if none do.
        module: whose source is changed.
        old: a text that is in the source exactly once.
        new: what takes its place.
        test: of the usual suite; it fails with the bug.
    """

    story: str
    module: str
    old: str
    new: str
    test: str
    theme: str = ""

    def change(self, source: str) -> str:
        """Return the source of the module with the bug in it."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"This is {count} times in {self.module}, not once: {self.old}")
        return source.replace(self.old, self.new)


_DECLARED = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())
MUTANTS = {name: Mutant(**given) for name, given in _DECLARED.items()}
"""All of them by their names."""


def check(name: str) -> None:
    """See whether a mutant can be applied."""
    if name not in MUTANTS:
        raise ValueError(f"There is no mutant {name} in mutants.toml.")
    mutant = MUTANTS[name]
    path = Path(__file__).parents[2].joinpath(*mutant.module.split(".")).with_suffix(".py")
    mutant.change(path.read_text() if path.exists() else "")


def apply(name: str) -> None:
    """Have a module of webop imported with a mended bug in it."""
    mutant = MUTANTS[name]
    if mutant.module in sys.modules:
        raise RuntimeError(f"{mutant.module} was imported before {name} was applied.")
    sys.meta_path.insert(0, _Finder(mutant))


class _Finder:
    """Finds one module, with the bug in it (PEP 451)."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == self._mutant.module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(self._mutant, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        """Compile the changed source; no bytecode is read or kept."""
        source = self._mutant.change(self.get_data(self.path).decode())
        return compile(source, self.path, "exec", dont_inherit=True)


def prove(name: str) -> str:
    """Run the test of a mutant and the plain ones; return what is wrong, nothing if all is well."""
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
    names = parser.parse_args().names or MUTANTS
    try:
        for name in names:
            check(name)
    except ValueError as error:
        parser.error(str(error))
    count = 0
    for name in names:
        wrong = prove(name)
        count += bool(wrong)
        print(f"{name:22} {wrong or 'is found by its test; the plain story goes on'}", flush=True)
    return count


if __name__ == "__main__":
    sys.exit(main())
elif VARIABLE in os.environ:
    apply(os.environ[VARIABLE])
