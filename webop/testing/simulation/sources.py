"""The handlers of a simulated operator, imported again at each start of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from webop.errors import ConfigurationError
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

    Args:
        sources: what has the handlers.
        replaced: what attributes of modules are instead, by their full names.
    """

    def __init__(self, sources: Iterable[Source], replaced: Mapping[str, object]) -> None:
        given = list(sources)
        self._declaring = [one for one in given if callable(one)]
        self._named = [str(one) for one in given if not callable(one)]
        self._replaced = replaced
        self._metrics: list[Any] = []  # of the modules that were imported last
        places = [_find_place(name) for name in self._named]
        self._packages = {package for package, _ in places if package}
        self._folders = {os.path.realpath(folder) for package, folder in places if not package}

    def load(self) -> tuple[OperatorRegistry, list[ModuleType]]:
        """Return the handlers, and the modules of the project.

        Raises:
            ConfigurationError: a module or a file cannot be imported, or is patched from outside,
                or something that must be replaced does not exist.
        """
        registry, former = OperatorRegistry(), get_default_registry()
        set_default_registry(registry)
        try:
            former_modules = {name: sys.modules.pop(name) for name in self._list_own()}
            _unregister(self._metrics)
            load_sources(self._named)
            self._metrics = _list_metrics(sys.modules[name] for name in self._list_own())
            self._check_patches(former_modules)
            for name, value in self._replaced.items():
                _replace(name, value)
            for declare in self._declaring:
                declare()
        finally:
            set_default_registry(former)
        names = [*self._list_own(), *(one.__module__ for one in self._declaring)]
        return registry, [sys.modules[name] for name in names if name in sys.modules]

    def _check_patches(self, former: Mapping[str, ModuleType]) -> None:
        """Refuse what was patched in a module before: the new module has the real thing."""
        for name in former.keys() & sys.modules.keys():
            for attribute, value in vars(sys.modules[name]).items():
                before = vars(former[name]).get(attribute, value)
                is_patched = _is_defined_in(name, value) and not _is_defined_in(name, before)
                if is_patched and f"{name}.{attribute}" not in self._replaced:
                    raise ConfigurationError(
                        f"{name}.{attribute} is patched, but its module is imported again at each "
                        f"start of the operator: pass replace={{'{name}.{attribute}': …}}."
                    )

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Put all modules back after a block."""
        before = {name: sys.modules[name] for name in self._list_own()}
        named = [  # a package can have another thing under the name of a module of it
            (package, own, vars(package)[own])
            for parent, _, own in (name.rpartition(".") for name in before)
            if (package := sys.modules.get(parent)) is not None and own in vars(package)
        ]
        path, metrics = list(sys.path), _list_metrics(before.values())
        for parent, _, own in (name.rpartition(".") for name in self._replaced):
            if (place := sys.modules.get(parent)) is not None and own in vars(place):
                named.append((place, own, vars(place)[own]))
        _unregister(metrics)
        try:
            yield
        finally:
            for name in self._list_own():
                del sys.modules[name]
            _unregister(self._metrics)
            _register(metrics)
            sys.modules.update(before)
            sys.path[:] = path
            for package, own, value in named:
                setattr(package, own, value)

    def _list_own(self) -> list[str]:
        return [name for name, module in list(sys.modules.items()) if self._is_own(name, module)]

    def _is_own(self, name: str, module: ModuleType) -> bool:
        parts, file = name.split("."), getattr(module, "__file__", None)
        if parts[0] in self._packages:
            return not _is_test(parts)
        if not self._folders or not file or "site-packages" in file:
            return False
        is_near = os.path.dirname(os.path.realpath(file)) in self._folders  # noqa: PTH120 - fast
        return is_near and not _is_test(parts) and parts[0] not in {"webop", "__main__"}


def _is_defined_in(module: str, value: object) -> bool:
    """Tell whether a function or a class is defined in a module."""
    return callable(value) and getattr(value, "__module__", None) == module


def _is_test(parts: list[str]) -> bool:
    """Tell whether a module is of tests, by the parts of its name."""
    is_test = parts[-1].startswith("test_") or parts[-1].endswith("_test")
    return is_test or not {"tests", "test", "conftest"}.isdisjoint(parts)


def _find_place(source: str) -> tuple[str, str]:
    """Return the package that a source is in, or else its folder."""
    if source.endswith(".py") or "/" in source:
        folder = Path(source).resolve().parent
        package = ""
        while (folder / "__init__.py").is_file():
            package, folder = folder.name, folder.parent
        return package, str(folder)
    top, is_inside, _ = source.partition(".")
    for place in (str(Path.cwd()), *sys.path):
        if not is_inside and (Path(place) / f"{top}.py").is_file():
            return "", place
    return top, ""


def _list_metrics(modules: Iterable[ModuleType]) -> list[Any]:
    """Return the metrics that modules have: they cannot declare them twice."""
    if (library := sys.modules.get("prometheus_client.metrics")) is None:
        return []
    values = [value for module in modules for value in vars(module).values()]
    return [one for one in values if isinstance(one, library.MetricWrapperBase)]


def _unregister(metrics: Iterable[Any]) -> None:
    for one in metrics:
        with contextlib.suppress(KeyError):  # it is in another registry, or twice in the modules
            sys.modules["prometheus_client"].REGISTRY.unregister(one)


def _register(metrics: Iterable[Any]) -> None:
    for one in metrics:
        with contextlib.suppress(ValueError):
            sys.modules["prometheus_client"].REGISTRY.register(one)


def _replace(name: str, value: Any) -> None:
    module, _, attribute = name.rpartition(".")
    found = sys.modules.get(module)
    if found is None or not hasattr(found, attribute):
        raise ConfigurationError(
            f"replace= names {name!r}, which is no attribute of a module that the handlers import."
        )
    setattr(found, attribute, value)
