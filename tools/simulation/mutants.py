"""Mended bugs, put back into a process before webop is imported: the simulation must find them.

They are declared in ``mutants.toml``, and :mod:`tools.simulation.mutating` proves them by the usual
suite. Nothing of webop is imported here.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug, put back.

    Attributes:
        story: what a user would see.
        needs: what a history must contain to bring it out.
        module: whose source is changed.
        old: a text that is in the source exactly once.
        new: what takes its place.
        test: of the usual suite; it fails with the bug.
    """

    story: str
    needs: str
    module: str
    old: str
    new: str
    test: str

    @property
    def path(self) -> Path:
        return (_ROOT / self.module.replace(".", "/")).with_suffix(".py")

    def find_mistake(self) -> str:
        """Say why the bug cannot be put back; nothing if it can."""
        try:
            self.change(self.path.read_text())
        except OSError:
            return f"there is no module {self.module}"
        except ValueError as error:
            return str(error)
        return ""

    def change(self, source: str) -> str:
        """Return the source of the module with the bug in it.

        Raises:
            ValueError: the source has changed: the mutant must be written again.
        """
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"This is {count} times in {self.module}, not once: {self.old}")
        return source.replace(self.old, self.new)


def read(text: str) -> dict[str, Mutant]:
    """Read declarations of mutants.

    Raises:
        ValueError: a mutant has too many keys, or too few.
    """
    found = {}
    for name, given in tomllib.loads(text).items():
        if given.keys() != {field.name for field in fields(Mutant)}:
            keys = ", ".join(field.name for field in fields(Mutant))
            raise ValueError(f"{name} in mutants.toml must have the keys {keys}.")
        found[name] = Mutant(**given)
    return found


_ROOT = Path(__file__).parents[2]
MUTANTS = read(Path(__file__).with_suffix(".toml").read_text())
"""All of them by their names."""


def apply(name: str) -> None:
    """Have a module of webop imported with a mended bug in it.

    Raises:
        KeyError: there is no such mutant.
        RuntimeError: it is too late: the module is imported already.
    """
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
