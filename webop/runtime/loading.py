"""Import the user's files and modules; their decorators register the handlers.

A file is known by its real path, whether it is named as a file, as a module, through a link, or
runs as the script: its handlers are in a registry once.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import takewhile
from pathlib import Path
from typing import Any

from webop.errors import ConfigurationError
from webop.handlers.registry import OperatorRegistry, get_default_registry, set_default_registry
from webop.logs.sanitizing import describe_line

_IMPORTING = {__file__, importlib.__file__}
_COMMON = {"__init__", "app", "code", "handlers", "main", "operator", "src"}
"""Names of files and folders that many operators have."""
_NAMELESS = "webop"  # as in the settings


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
        if _is_file(source):
            load_file(Path(source))
        else:
            load_module(source)


def guess_name(sources: Iterable[str]) -> str:
    """Return the default name of an operator: of its first package or file, or of their folder.

    Nothing else is known before the import, and the name must survive an update.
    """
    first = next(iter(sources), _NAMELESS)
    is_file = _is_file(first)
    place = Path(first).resolve().with_suffix("") if is_file else Path.cwd() / first.split(".")[0]
    while place.name in _COMMON:
        place = place.parent
    name = re.sub(r"[^a-z0-9]+", "-", place.name.lower()).lstrip("-0123456789")
    return name[:63].rstrip("-") or _NAMELESS


def _is_file(source: str) -> bool:
    return source.endswith(".py") or "/" in source


def to_list(values: Any) -> list[Any]:
    """Return a list; a string becomes a list of one item."""
    return [values] if isinstance(values, str) else list(values)


def load_file(path: Path) -> None:
    """Import a file by its path, with its folder importable, as with ``python script.py``.

    A file of a package is imported as a module of that package, so its relative imports work. Skip
    a file whose handlers are in the default registry: it was imported before.

    Raises:
        ConfigurationError: the file does not exist, or its import fails.
    """
    if path.is_dir():
        raise ConfigurationError(
            f"{str(path)!r} is a folder. Name the files in it, or its package as a module (-m)."
        )
    if not path.is_file():
        raise ConfigurationError(f"There is no file {str(path)!r}.{_suggest(path)}")
    real = path.resolve()
    packages = list(takewhile(_is_package, real.parents))
    with _loading(str(path), *(folder.parent for folder in packages[-1:]), real.parent) as files:
        if str(real) not in files:
            files.add(str(real))
            _import_file(real, packages)


def _suggest(path: Path) -> str:
    """Return a hint for a file that does not exist: a file of a similar name, or a module."""
    names = [each.name for each in path.parent.glob("*.py")]
    if near := difflib.get_close_matches(path.name, names, n=1, cutoff=0.75):
        return f" Did you mean {str(path.with_name(near[0]))!r}?"
    # Only its first part, since importing a parent would run it.
    package = PathFinder.find_spec(path.name.partition(".")[0], [str(Path.cwd()), *sys.path])
    is_module = path.name == str(path) and path.suffix != ".py" and package is not None
    return f" For a module: -m {path}" if is_module else ""


def load_module(name: str) -> None:
    """Import a module by its name, with the current folder importable, as with ``python -m``.

    Raises:
        ConfigurationError: the module does not exist, or its import fails.
    """
    if name.endswith(".py"):
        raise ConfigurationError(f"{name!r} is a file, not a module: name it without -m.")
    with _loading(name, Path.cwd()) as files:
        file = import_module(name).__file__
        files.update([os.path.realpath(file)] if file else [])


@contextlib.contextmanager
def _loading(source: str, *folders: Path) -> Iterator[set[str]]:
    """Make folders importable; explain an error, and remove the handlers of the failed import.

    It yields the real paths of the files whose handlers are in the default registry.
    """
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    registry = get_default_registry()
    before = registry.copy()
    try:
        yield registry.files
    except (Exception, SystemExit) as exc:
        registry.restore(before)  # else a second try would skip the files
        what = traceback.format_exception_only(exc)[-1].strip()
        pydantic = sys.modules.get("pydantic.errors")
        if pydantic is not None and isinstance(exc, pydantic.PydanticErrorMixin):
            what = what.partition("\n\n")[0]  # then come addresses, and advice for authors of types
        text = f"{source!r} cannot be imported: {what}{_locate(exc)}{_advise(exc)}"
        raise ConfigurationError(text) from exc


def _is_package(folder: Path) -> bool:
    return folder.name.isidentifier() and (folder / "__init__.py").is_file()


def _import_file(file: Path, packages: list[Path]) -> None:
    """Import a file as a module of its package, or else with its own name, unless that is taken."""
    parts = [*(folder.name for folder in reversed(packages)), file.stem]
    top = find_spec(parts[0]) if packages else None  # it can also be a library, such as "logging"
    name, parent = file.stem.replace(".", "_"), None
    if top is not None and top.origin and Path(top.origin).resolve().parent == packages[-1]:
        name = ".".join(parts).removesuffix(".__init__")
        sys.modules.pop(name, None)
        parent = import_module(name.rpartition(".")[0]) if "." in name else None
        if name in sys.modules:  # its package has imported it
            return
    while name in sys.builtin_module_names or (
        name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(file)
    ):
        name += "_"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("the name of a Python file must end in '.py'")
    sys.modules[name] = module = module_from_spec(spec)
    if parent is not None:
        setattr(parent, name.rpartition(".")[2], module)
        if file.stem != "__init__":
            # Other files in the folder may import it without the name of the package.
            sys.modules.setdefault(file.stem, module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for other in [other for other in {name, file.stem} if sys.modules.get(other) is module]:
            del sys.modules[other]
        raise


def _advise(exc: BaseException) -> str:
    if isinstance(exc, ImportError) and "no known parent package" in str(exc):
        return ". Its folder is no package: add an __init__.py, or use -m package.module"
    if isinstance(exc, ModuleNotFoundError) and exc.name == "kopf":
        return ". Write 'import webop as kopf', or add --aliased (WEBOP_ALIASED=1)"
    if isinstance(exc, AttributeError) and exc.name and "Did you mean" not in str(exc):
        near = difflib.get_close_matches(exc.name, dir(exc.obj), n=1)
        return f". Did you mean {near[0]!r}?" if near else ""
    return ""


def _locate(exc: BaseException) -> str:
    """Return the line of the error in the user's code, not in the import system."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f" {describe_line(exc.filename, exc.lineno, exc.text)}"
    # Errors in these packages are about a line that calls them.
    packages = {Path(__file__).parents[1]}
    if (pydantic := sys.modules.get("pydantic")) is not None:
        packages.add(Path(str(pydantic.__file__)).parent)
    own = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not (frame.filename.startswith("<") or frame.filename in _IMPORTING)
    ]
    users = [frame for frame in own if not packages & {*Path(frame.filename).parents}] or own
    if not users:
        return ""
    return f" {describe_line(users[-1].filename, users[-1].lineno, users[-1].line)}"
