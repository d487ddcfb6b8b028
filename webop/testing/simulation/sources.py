"""The handlers of a simulated operator, imported again at each start of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from webop.handlers.registry import (
    OperatorRegistry,
    get_default_registry,
    set_default_registry,
)
from webop.runtime.loading import load_sources

Source: TypeAlias = str | Path | Callable[[], object]
"""A module, a file, or a function that declares handlers."""


class Sources:
    """Imports the handlers, and what they import of their own project, each time again.

    The modules of tests (``test_*``, ``*_test``, ``conftest``, all in ``tests``) stay. Afterwards,
    all modules are those that were there before.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        given = list(sources)
        self._declaring = [one for one in given if callable(one)]
        self._named = [str(one) for one in given if not callable(one)]
        self._folders = [_find_folder(one) for one in self._named]

    def load(self) -> tuple[OperatorRegistry, list[ModuleType]]:
        """Return the handlers, and the modules of the project.

        Raises:
            ConfigurationError: a module or a file cannot be imported.
        """
        registry, former = OperatorRegistry(), get_default_registry()
        set_default_registry(registry)
        try:
            for name in self._list_own():
                del sys.modules[name]
            load_sources(self._named)
            for declare in self._declaring:
                declare()
        finally:
            set_default_registry(former)
        names = [*self._list_own(), *(one.__module__ for one in self._declaring)]
        return registry, [sys.modules[name] for name in names if name in sys.modules]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Put all modules back after a block."""
        before = {name: sys.modules[name] for name in self._list_own()}
        path = list(sys.path)
        try:
            yield
        finally:
            for name in self._list_own():
                del sys.modules[name]
            sys.modules.update(before)
            sys.path[:] = path
            for name, module in before.items():
                parent, _, own = name.rpartition(".")
                place = sys.modules.get(parent)
                if isinstance(getattr(place, own, None), ModuleType):
                    setattr(place, own, module)

    def _list_own(self) -> list[str]:
        starts = tuple(f"{folder}{os.sep}" for folder in self._folders)
        return [
            name
            for name, module in list(sys.modules.items())
            if starts and (getattr(module, "__file__", None) or "").startswith(starts)
            if not _is_foreign(name, module)
        ]


def _is_foreign(name: str, module: ModuleType) -> bool:
    """Tell whether a module is of tests, the main one, or of a library."""
    parts = name.split(".")
    is_test = parts[-1].startswith("test_") or parts[-1].endswith("_test")
    is_test |= not {"tests", "test", "conftest"}.isdisjoint(parts)
    is_library = parts[0] in {"webop", "__main__"} or "site-packages" in (module.__file__ or "")
    return is_test or is_library


def _find_folder(source: str) -> Path:
    """Return the folder of a file, or of the package of a module."""
    if source.endswith(".py") or "/" in source:
        return Path(source).resolve().parent
    top = source.partition(".")[0]
    for place in (str(Path.cwd()), *sys.path):
        if (Path(place) / top / "__init__.py").is_file() or (Path(place) / top).is_dir():
            return (Path(place) / top).resolve()
        if (Path(place) / f"{top}.py").is_file():
            return Path(place).resolve()
    return Path.cwd()
