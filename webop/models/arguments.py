"""Arguments of handlers as their annotations say.

``spec: WidgetSpec`` gets a model instead of a mapping; ``widget: Widget`` gets the whole object.
An argument without such an annotation stays as it is, and costs nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_origin, get_type_hints

import pydantic

from webop.errors import ConfigurationError, MisfitError
from webop.models.annotations import build, is_alias, iterate_classes
from webop.models.definitions import find_definition, is_model, split_optional
from webop.models.fitting import build_adapter, fit

SOURCES: Final = ("body", "spec", "status", "meta", "old", "new")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that is a model."""

    name: str
    source: str  # the argument that it is made of: one of SOURCES
    part: str  # of "old" or "new": "spec" or "status"; empty for all of it
    annotation: Any
    is_optional: bool

    def find(self, arguments: Mapping[str, Any]) -> Any:
        """Return what it is made of."""
        value = arguments.get(self.source)
        return value.get(self.part) if self.part and value is not None else value

    def convert(self, arguments: Mapping[str, Any]) -> Any:
        """Return the model."""
        value = self.find(arguments)
        if value is None and (self.is_optional or self.source in ("old", "new")):
            return None
        path = {"body": "", "meta": "metadata"}.get(self.source, self.part or self.source)
        if self.source == "status" and not value and self.is_optional:
            return None
        return fit(self.annotation, value, path)


def parse_arguments(
    fn: Callable[..., Any], model: type[pydantic.BaseModel] | None, *, has_field: bool = False
) -> tuple[Argument, ...]:
    """Return the arguments of a handler that are models.

    Args:
        fn: the handler.
        model: the class of its objects, if it names one.
        has_field: whether ``old`` and ``new`` are values of a field.

    Raises:
        TypeError: an annotation cannot be evaluated, although the handler names a class; or a part
            of the object has the class of the kind.
        ConfigurationError: a class has a field that pydantic has no validator for.
    """
    function = _find_function(fn)
    annotations = getattr(function, "__annotations__", None) or {}
    if not annotations:
        return ()
    parts = {} if model is None else _list_parts(model)
    found = []
    for name in annotations:
        if name == "return" or not (name in SOURCES or model):
            continue
        is_needed = name in SOURCES and model is not None
        annotation = _evaluate(function, name, is_needed=is_needed)
        plain, is_optional = split_optional(_strip(annotation))
        if not any(iterate_classes(plain)):
            continue
        kind = _strip(plain)
        if name in SOURCES:
            part = ""
            _check_part(name, kind, model, function)
            if name in ("old", "new") and not has_field and not is_model(kind):
                if kind not in parts:
                    text = f"{name}: {getattr(kind, '__name__', kind)} of {_describe(function)}"
                    raise TypeError(
                        f"{text} is neither the model of the kind nor that of its spec or status. "
                        "Name the class of the kind in the decorator, or use field=."
                    )
                part = parts[kind]
            found.append(Argument(name, name, part, plain, is_optional))
        elif kind is model:
            found.append(Argument(name, "body", "", plain, is_optional))
    for argument in found:
        _build(argument, function)
    return tuple(found)


def _check_part(
    name: str, kind: Any, model: type[pydantic.BaseModel] | None, function: Any
) -> None:
    """Check that a part of an object does not have the class of a kind: no object would fit."""
    is_whole = is_model(kind) and (kind is model or find_definition(kind) is not None)
    if not is_whole or name not in ("spec", "status", "meta"):
        return
    right = "webop.models.Metadata" if name == "meta" else ""
    for part, source in _list_parts(kind).items():
        if source == name:
            right = getattr(part, "__name__", "")
    advice = f"{name}: {right}" if right else f"{name} without a class"
    raise TypeError(
        f"{name}: {kind.__name__} of {_describe(function)} is the class of the whole object. "
        f"Write {advice}; or body: {kind.__name__}, to get the object."
    )


def _build(argument: Argument, function: Any) -> None:
    """Build the validators now: later, an error would say that objects do not fit."""
    annotation = argument.annotation
    try:
        build(annotation, lambda: build_adapter(annotation).rebuild(raise_errors=True))
    except ConfigurationError as exc:
        text = f"{argument.name}: {getattr(annotation, '__name__', annotation)}"
        raise ConfigurationError(f"{text} of {_describe(function)}: {exc}") from exc


def convert_arguments(
    wanted: Sequence[Argument],
    arguments: dict[str, Any],
    known: dict[Argument, Any],
    *,
    is_lenient: bool = False,
) -> None:
    """Replace arguments by their models.

    Args:
        wanted: of the handler.
        arguments: of the call; they are changed in place.
        known: models that other handlers have got; new ones are added.
        is_lenient: whether an object that does not fit stays a mapping. A former state does so
            always: an older version of the model may have accepted it.
    """
    converted = {}
    for argument in wanted:
        if argument not in known:
            try:
                known[argument] = argument.convert(arguments)
            except MisfitError:
                if not is_lenient and argument.source != "old":
                    raise
                known[argument] = argument.find(arguments)
        converted[argument.name] = known[argument]
    arguments.update(converted)


def _find_function(fn: Any) -> Any:
    """Return the function behind a partial, a method, a wrapper, or a callable object."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not (inspect.isroutine(fn) or isinstance(fn, type)):
        fn = inspect.unwrap(type(fn).__call__)
    return getattr(fn, "__func__", fn)


def _describe(function: Any) -> str:
    return f"{getattr(function, '__qualname__', function)}()"


def _strip(annotation: Any) -> Any:
    """Return the type behind ``Annotated`` and ``type X = …``."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = annotation.__origin__
        elif is_alias(annotation):
            annotation = annotation.__value__
        else:
            return annotation


def _evaluate(function: Any, name: str, *, is_needed: bool) -> Any:
    annotation = function.__annotations__[name]
    if not isinstance(annotation, str):
        return annotation
    names = dict(getattr(sys.modules.get(function.__module__), "__dict__", {}))
    names |= getattr(function, "__globals__", {})
    if inspect.isfunction(function) and function.__closure__:
        for key, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            with suppress(ValueError):  # it is empty
                names[key] = cell.cell_contents
    holder = type("_", (), {"__annotations__": {name: annotation}})
    try:
        return get_type_hints(holder, names, {}, include_extras=True)[name]
    except Exception as exc:
        if not is_needed:
            return None
        raise TypeError(
            f"The annotation {name}: {annotation} of {function.__qualname__}() cannot be "
            f"evaluated: {exc}. Define or import the class before the handler, at the top of the "
            "module."
        ) from exc


def _list_parts(model: type[pydantic.BaseModel]) -> dict[Any, str]:
    """Return the classes of spec and status."""
    parts = {}
    for name in ("spec", "status"):
        info = model.model_fields.get(name)
        if info is not None:
            parts[_strip(split_optional(_strip(info.annotation))[0])] = name
    return parts
