"""Check handlers before the first call: arguments, ids, intervals. No I/O."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeGuard

from webop.errors import ConfigurationError
from webop.handlers.causes import REVIEW_ARGUMENTS
from webop.handlers.model import (
    Activity,
    ActivityHandler,
    BackgroundHandler,
    ChangeHandler,
    ChildHandler,
    ConversionHandler,
    EventHandler,
    Handler,
    IndexHandler,
    Reason,
    ReconcileHandler,
    ResourceHandler,
    TimerHandler,
    WebhookHandler,
)
from webop.handlers.registry import OperatorRegistry
from webop.logs.sanitizing import describe_line
from webop.models.definitions import find_definition

if TYPE_CHECKING:
    from webop.models.versions import Versions

_ALL = frozenset({"logger", "memo", "client", "param", "retry", "started", "runtime"})
_OBJECT = _ALL | {
    *("resource", "patch", "body", "spec", "meta", "status", "uid", "name", "namespace"),
    *("labels", "annotations"),
}
_DIFF = _OBJECT | {"old", "new", "diff"}
ARGUMENTS: dict[type[Handler], frozenset[str]] = {
    ActivityHandler: _ALL | {"settings", "activity", "planning"},
    IndexHandler: _OBJECT,
    EventHandler: _OBJECT | {"type", "event"},
    BackgroundHandler: _OBJECT | {"stopped"},
    ChangeHandler: _DIFF | {"reason"},
    ReconcileHandler: _OBJECT | {"because", "children"},
    WebhookHandler: _DIFF | {*REVIEW_ARGUMENTS},
}
"""The arguments of the handlers of each family, without the indexes of the operator."""

_HINTS = frozenset().union(*ARGUMENTS.values()) - {"resource"}  # selector functions take it, too


def is_handler(value: object) -> TypeGuard[FunctionType]:
    """Return whether a value is certainly a handler, by the names of its parameters.

    A lambda is a selector of resources: a decorator without parentheses cannot get one.
    """
    is_named = inspect.isfunction(value) and value.__name__ != "<lambda>"
    items = inspect.signature(value).parameters.values() if is_named else ()  # type: ignore[arg-type]
    first = next(iter(items), None)
    return first is not None and (first.kind is first.VAR_KEYWORD or first.name in _HINTS)


def names_argument(fn: Callable[..., Any], name: str) -> bool:
    """Return whether a handler has a parameter of this name."""
    return any(item.name == name for item in _read_parameters(fn) or ())


def check_signature(
    fn: Callable[..., Any], family: type[Handler], indexes: Iterable[str] = ()
) -> None:
    """Check that a handler accepts its arguments; for a wrapped function, check the wrapper."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"The handler {_name(fn)} is a generator function: calling it would not run its body. "
            "Replace yield by return."
        )
    parameters = _read_parameters(fn)
    if parameters is None:
        return
    for item in parameters:
        if item.kind is item.POSITIONAL_ONLY and item.default is item.empty:
            raise TypeError(
                f"The handler {_name(fn)} takes {item.name!r} by position only, but webop passes "
                "arguments by name. Remove the / from its parameters."
            )
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return
    accepted = {item.name for item in parameters if item.kind is not item.POSITIONAL_ONLY}
    if missing := sorted(_get_arguments(family).union(indexes) - accepted):
        words = [str(item.replace(annotation=item.empty)) for item in parameters]
        few = f"Write its parameters as ({', '.join([*words, '**_'])})."
        raise TypeError(
            f"The handler {_name(fn)} must accept all keyword arguments, including unused ones "
            f"({', '.join(missing[:3])}{', …' if missing[3:] else ''}). "
            + ("Add **_ to its parameters." if len(words) > 5 or "_" in accepted else few)
        )


def check_converter(fn: Callable[..., Any]) -> None:
    """Check that a function between versions takes one argument, and is no generator function."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"The converter {_name(fn)} is a generator function: replace yield.")
    try:
        inspect.signature(fn).bind(None)
    except TypeError as exc:
        raise TypeError(
            f"The converter {_name(fn)} must take one argument, the object in the version to "
            f"convert from, and nothing else: {exc}."
        ) from exc
    except ValueError:  # such as some builtins
        return


def check_metadata_only(handler: ResourceHandler) -> None:
    """Check that a handler with only the metadata of objects, and its filters, need no more."""
    if handler.field and handler.field[0] != "metadata":
        field = ".".join(handler.field)
        raise TypeError(
            f"metadata_only=True and field={field!r} exclude each other: the handler gets only the "
            "metadata. Remove one of them."
        )
    if typed := [one.name for one in handler.arguments if one.source != "meta"]:
        raise TypeError(
            f"metadata_only=True and the model of {typed[0]!r} exclude each other: "
            f"{_name(handler.fn)} gets only the metadata. Remove one of them."
        )
    metas = (*(handler.labels or {}).values(), *(handler.annotations or {}).values())
    values = (handler.value, *(getattr(handler, name, None) for name in ("old", "new")))
    for fn in (handler.fn, handler.when, *metas, *values):
        named = [name for name in ("spec", "status") if callable(fn) and names_argument(fn, name)]
        if named:
            raise TypeError(
                f"{_name(fn)} takes {named[0]!r}, which is always empty with metadata_only=True. "
                "Remove one of them."
            )


def check_registry(registry: OperatorRegistry) -> list[str]:
    """Check all handlers together: at this time, all indexes are known.

    Returns:
        Warnings about probable mistakes.

    Raises:
        ConfigurationError: some handlers cannot be called; the message lists all of them.
    """
    activities = [each for activity in Activity for each in registry.select_activities(activity)]
    objects = [*registry.select_resource_handlers(), *registry.select_webhooks()]
    indexes = {handler.id for handler in registry.select_indexers()}
    problems: dict[str, None] = {}  # several decorators of a function cause the same problem
    reconciled = {one.selector for one in objects if isinstance(one, ReconcileHandler)}
    for handler in (*activities, *objects):
        if isinstance(handler, ChildHandler):  # it has the function of its reconciler
            continue
        has_children = isinstance(handler, ChangeHandler) and handler.selector in reconciled
        more = indexes | {"children"} if has_children else indexes
        problems |= dict.fromkeys(_find_problems(handler, more))
    for versions in _collect_versions(registry).values():
        problems |= dict.fromkeys(versions.find_gaps())
    if problems:
        raise ConfigurationError("\n".join(problems))
    return [
        *_find_clashes(objects),
        *_find_unpaced_timers(objects),
        *_find_converted_indexes(registry),
        *_find_unruled_scales(registry),
    ]


def _find_problems(handler: Handler, indexes: set[str]) -> Iterator[str]:
    family = type(handler)
    place = _locate(handler.fn)
    try:
        check_signature(handler.fn, family, indexes)
    except TypeError as exc:
        yield f"{exc}{place}"
    given = sorted(_get_arguments(family) | indexes)
    for item in _read_parameters(handler.fn) or ():
        is_by_name = item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
        is_known = item.name in given or any(item.name == one.name for one in handler.arguments)
        if is_by_name and item.default is item.empty and not is_known:
            nearest = difflib.get_close_matches(item.name, given, n=1)
            advice = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(given)}."
            if item.name == "children" and family is ChangeHandler:
                advice = "children needs a function with @webop.reconcile for the same kind."
            kind = getattr(handler, "activity", None) or getattr(handler, "reason", None)
            label = kind.value if kind else handler.family
            yield (
                f"The handler {_name(handler.fn)} requires {item.name!r}, but {label} handlers "
                f"have no such argument, and no index has this name: {advice}{place}"
            )


def _find_clashes(handlers: Iterable[ResourceHandler]) -> Iterator[str]:
    """Find different functions with the same id and cause: progress is stored by id."""
    groups: dict[Any, list[ResourceHandler]] = {}
    for handler in handlers:
        for family in (BackgroundHandler, ChangeHandler, ReconcileHandler):
            if isinstance(handler, family):
                groups.setdefault((family, handler.id, handler.selector), []).append(handler)
    for group in groups.values():
        for first, second in combinations(group, 2):
            if first.fn != second.fn and _list_reasons(first) & _list_reasons(second):
                yield (
                    f"Two handlers for {first.selector} have the id {first.id!r}: "
                    f"{_name(first.fn)}{_locate(first.fn)} and {_name(second.fn)}"
                    f"{_locate(second.fn)}. webop calls only the first, unless their filters never "
                    "match the same object. Give one of them another id=, or rename it."
                )


def _list_reasons(handler: ResourceHandler) -> set[Reason | None]:
    """Return the reasons of a handler; resume handlers are called in creations and updates too."""
    reason: Reason | None = getattr(handler, "reason", None)
    if not isinstance(handler, ChangeHandler) or reason is not None:
        return {reason}
    return {Reason.CREATE, Reason.UPDATE, *([Reason.RESUME] if handler.initial else [])}


def _find_unpaced_timers(handlers: Iterable[ResourceHandler]) -> Iterator[str]:
    for handler in handlers:
        if not isinstance(handler, TimerHandler) or handler.idle is not None:
            continue
        if not handler.interval:
            how = "only once for each object" if handler.interval is None else "without a pause"
            place = _locate(handler.fn)
            yield f"{handler} is called {how}. Set interval= or idle= in seconds{place}."


def _collect_versions(registry: OperatorRegistry) -> dict[str, Versions[ConversionHandler]]:
    if not (converters := registry.select_converters()):
        return {}
    from webop.models.versions import collect_versions  # noqa: PLC0415 - it imports pydantic

    return collect_versions(converters)


def _find_unruled_scales(registry: OperatorRegistry) -> Iterable[str]:
    if not registry.rules:
        return ()
    from webop.handlers.admission_rules import find_unruled_scales  # noqa: PLC0415 - pydantic

    return find_unruled_scales(registry.rules)


def _find_converted_indexes(registry: OperatorRegistry) -> Iterator[str]:
    """Find indexes whose objects this operator must convert before it is ready to convert any."""
    kinds = _collect_versions(registry)
    for handler in registry.select_indexers():
        definition = None if handler.model is None else find_definition(handler.model)
        if definition and definition.name in kinds and not definition.stored:
            stored = kinds[definition.name].models[kinds[definition.name].hub]
            yield (
                f"{handler} is for {definition}, which is not the stored version. Behind a "
                "Service, the operator is not ready before the index is filled, and only ready "
                f"operators convert objects. Use {stored.__name__}{_locate(handler.fn)}."
            )


def _get_arguments(family: type[Handler]) -> frozenset[str]:
    return next(ARGUMENTS[base] for base in family.__mro__ if base in ARGUMENTS)


def _read_parameters(fn: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Return the parameters of the called function; None if they are uncertain."""
    function = _find_function(fn)
    if hasattr(function, "__signature__") or _is_proxy(function):  # the real parameters may differ
        return None
    try:
        return list(inspect.signature(fn, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # such as some builtins
        return None


def _find_function(fn: Any) -> Any:
    """Return the function behind a partial, a method, or an instance of a callable class."""
    while not (inspect.isfunction(fn) or _is_proxy(fn)):
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif inspect.isfunction(getattr(type(fn), "__call__", None)):  # noqa: B004
            fn = type(fn).__call__
        else:
            break
    return fn


def _is_proxy(fn: Any) -> bool:
    """Return whether this is a proxy of another object, such as a wrapper of wrapt."""
    return fn.__class__ is not type(fn)


def _name(fn: Any) -> str:
    return f"{getattr(_find_function(fn), '__qualname__', repr(fn))}()"


def _locate(fn: Any) -> str:
    code = getattr(inspect.unwrap(_find_function(fn)), "__code__", None)
    return f" {describe_line(code.co_filename, code.co_firstlineno)}" if code else ""
