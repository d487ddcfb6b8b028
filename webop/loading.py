"""Importing the user's files and modules, whose decorators register the handlers."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from webop.errors import ConfigurationError

_PACKAGE = Path(__file__).parent


def load_sources(sources: Iterable[str]) -> None:
    """Import files (``handlers.py``) and modules (``package.module``), as each looks like."""
    for source in sources:
        if source.endswith(".py") or "/" in source:
            load_file(Path(source))
        else:
            load_module(source)


def load_file(path: Path) -> None:
    """Import a script by its path; its folder becomes importable, as with ``python script.py``.

    Raises:
        ConfigurationError: there is no such file, or it fails on import.
    """
    if not path.is_file():
        raise ConfigurationError(f"There is no file {str(path)!r} to take handlers from.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path.resolve()):
        name = f"webop_handlers.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{str(path)!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        sys.modules.pop(name, None)
        raise ConfigurationError(_explain(str(path), exc)) from exc


def load_module(name: str) -> None:
    """Import a module by its name, with the current folder importable, as with ``python -m``.

    Raises:
        ConfigurationError: there is no such module, or it fails on import.
    """
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as exc:
        raise ConfigurationError(_explain(name, exc)) from exc


def _explain(source: str, exc: BaseException) -> str:
    """Say what is wrong and in which line of the user's code, not of the import system."""
    what = traceback.format_exception_only(exc)[-1].strip()
    return f"{source!r} cannot be imported: {what}{_locate(exc)}"


def _locate(exc: BaseException) -> str:
    if isinstance(exc, SyntaxError):
        return f" ({exc.filename}, line {exc.lineno}: {(exc.text or '').strip()})"
    own = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    users = [frame for frame in own if not Path(frame.filename).is_relative_to(_PACKAGE)] or own
    return f" ({users[-1].filename}, line {users[-1].lineno}: {users[-1].line})" if users else ""
