"""Import the user's files and modules; their decorators register the handlers.

A file is known by its real path, whether it is imported as a file, as a module, through a link, or
runs as the script: its handlers are registered once.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from webop.errors import ConfigurationError
from webop.handling.registry import OperatorRegistry, get_default_registry, set_default_registry

_PACKAGE = Path(__file__).parent
_IMPORTING = {__file__, importlib.__file__}


def load_handlers(
    paths: Iterable[str], modules: Iterable[str], registry: OperatorRegistry | None = None
) -> OperatorRegistry:
    """Import files and modules, and return the registry with their handlers.

    A given registry becomes the default one. The decorators add handlers to the default one.

    Raises:
        ConfigurationError: a file or module does not exist, or its import fails.
    """
    if registry is not None:
        set_default_registry(registry)
    for path in paths:
        load_file(Path(path))
    for module in modules:
        load_module(module)
    return get_default_registry()


def load_sources(sources: Iterable[str]) -> None:
    """Import sources: files if they look like ``handlers.py``, else modules."""
    for source in sources:
        if source.endswith(".py") or "/" in source:
            load_file(Path(source))
        else:
            load_module(source)


def to_list(values: Any) -> list[Any]:
    """Return a list; a string becomes a list of one item."""
    return [values] if isinstance(values, str) else list(values)


def load_file(path: Path) -> None:
    """Import a file by its path, with its folder importable, as with ``python script.py``.

    Skip a file whose handlers are in the default registry: it was imported before.

    Raises:
        ConfigurationError: the file does not exist, or its import fails.
    """
    if path.is_dir():
        raise ConfigurationError(
            f"{str(path)!r} is a folder. Name the files in it, or its package as a module (-m)."
        )
    if not path.is_file():
        there = path.with_name(f"{path.name}.py")
        hint = f" Did you mean {str(there)!r}?" if there.is_file() else ""
        hint = hint or (f" For a module: -m {path}" if path.suffix not in ("", ".py") else "")
        raise ConfigurationError(f"There is no file {str(path)!r}.{hint}")
    real = path.resolve()
    folder = str(real.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if any(map(real.samefile, filter(os.path.exists, get_default_registry().list_files()))):
        return
    name = path.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(real):
        name = f"webop_handlers.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, real)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{str(path)!r} is not a Python file: its name must end in '.py'.")
    module = importlib.util.module_from_spec(spec)
    names = {name, *(other for other in _list_names(real) if other not in sys.modules)}
    sys.modules.update(dict.fromkeys(names, module))
    registry = get_default_registry()
    before = len(registry)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        for each in names:
            sys.modules.pop(each, None)
        registry.truncate(before)  # else a second try would skip the file
        raise ConfigurationError(_explain(str(path), exc)) from exc


def _list_names(path: Path) -> Iterator[str]:
    """Yield the names as which ``import`` would find a file."""
    folders = [*map(Path, sys.path), Path.cwd()]
    for folder in set(folders):
        if path.is_relative_to(folder.resolve()):
            parts = path.relative_to(folder.resolve()).with_suffix("").parts
            # A folder can have the name of a library, such as "logging".
            package = PathFinder.find_spec(parts[0], list(map(str, folders)))
            places = (package and package.submodule_search_locations) or ()
            if len(parts) == 1 or str(folder.resolve() / parts[0]) in map(os.path.realpath, places):
                yield ".".join(parts)


def load_module(name: str) -> None:
    """Import a module by its name, with the current folder importable, as with ``python -m``.

    Raises:
        ConfigurationError: the module does not exist, or its import fails.
    """
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as exc:
        is_file = isinstance(exc, ModuleNotFoundError) and name.endswith(".py")
        hint = ". This is a file, not a module: name it without -m" if is_file else ""
        raise ConfigurationError(f"{_explain(name, exc)}{hint}") from exc


def _explain(source: str, exc: BaseException) -> str:
    """Return the error and its line in the user's code, not in the import system."""
    what = traceback.format_exception_only(exc)[-1].strip()
    return f"{source!r} cannot be imported: {what}{_locate(exc)}{_advise(exc)}"


def _advise(exc: BaseException) -> str:
    if isinstance(exc, ImportError) and "no known parent package" in str(exc):
        return ". Files have no package: import it as a module (-m package.module)"
    if isinstance(exc, ModuleNotFoundError) and exc.name == "kopf":
        return ". Write 'import webop as kopf', or add --aliased (WEBOP_ALIASED=1)"
    if isinstance(exc, AttributeError) and exc.name and "Did you mean" not in str(exc):
        near = difflib.get_close_matches(exc.name, dir(exc.obj), n=1)
        return f". Did you mean {near[0]!r}?" if near else ""
    return ""


def _locate(exc: BaseException) -> str:
    if isinstance(exc, SyntaxError) and exc.filename:
        return f" ({exc.filename}, line {exc.lineno}: {(exc.text or '').strip()})"
    own = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not (frame.filename.startswith("<") or frame.filename in _IMPORTING)
    ]
    users = [frame for frame in own if not Path(frame.filename).is_relative_to(_PACKAGE)] or own
    return f" ({users[-1].filename}, line {users[-1].lineno}: {users[-1].line})" if users else ""
