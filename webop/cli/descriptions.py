"""Handlers in words that JSON has: what they are for, and which of their options were given.

Made of what the decorators have left behind (:mod:`webop.handling.handlers`), read by
:mod:`webop.cli.listing`. Nothing is called.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from webop.handling.handlers import (
    Activity,
    ActivityHandler,
    ChangeHandler,
    Handler,
    MetaFilterToken,
    ResourceHandler,
    WebhookHandler,
)
from webop.handling.registry import OperatorRegistry
from webop.objects.resources import Selector

_FILTERS = ("labels", "annotations", "field", "value", "old", "new", "when")
_SHOWN_ELSEWHERE = {
    *_FILTERS,
    *("id", "fn", "selector", "activity", "reason", "initial", "needs_change", "is_fallback"),
    "inherited_field",
}


def list_handlers(registry: OperatorRegistry) -> Iterator[Handler]:
    """Yield the handlers: of the operator's own life, of reviews, of objects as declared."""
    for activity in Activity:
        yield from registry.select_activities(activity)
    yield from registry.select_webhooks()
    yield from registry.select_resource_handlers()


def describe_handler(handler: Handler) -> dict[str, Any]:
    """Return a handler as JSON.

    Returns:
        ``handler``: its kind, which is the name of its decorator; ``id``; ``function``;
        ``source``: the file and the line, None if it is not known; ``resource``: the names it is
        asked for by, None if it is for no resource; ``filters`` and ``options``: what was given.
        Markers are ``{"marker": "PRESENT"}``, functions are ``{"function": "module.name"}``.
    """
    resource = isinstance(handler, ResourceHandler)
    selector = getattr(handler, "selector", None)
    return {
        "handler": detect_kind(handler),
        "id": handler.id,
        "resource": _describe_selector(selector) if selector is not None else None,
        "filters": dict(_list_filters(handler)) if resource else {},
        "options": dict(_list_options(handler)),
        "function": _detect_full_name(handler.fn),
        "source": _locate(handler.fn),
    }


def detect_kind(handler: Handler) -> str:
    """Return the name of the decorator that has made a handler."""
    if isinstance(handler, ActivityHandler):
        is_login = handler.activity is Activity.AUTHENTICATION
        return "login" if is_login else handler.activity.value
    if isinstance(handler, WebhookHandler):
        return handler.reason.value
    if isinstance(handler, ChangeHandler):
        reason = handler.reason.value if handler.reason is not None else "field"
        return "resume" if handler.initial else reason
    return type(handler).__name__.removesuffix("Handler").lower()


def _describe_selector(selector: Selector) -> dict[str, Any]:
    values = {field.name: getattr(selector, field.name) for field in dataclasses.fields(selector)}
    named = {key: describe_value(value) for key, value in values.items() if value is not None}
    return {{"any_name": "name", "fn": "function"}.get(key, key): named[key] for key in named}


def _list_filters(handler: Handler) -> Iterator[tuple[str, Any]]:
    for name in _FILTERS:
        value = getattr(handler, name, None)
        if value not in (None, (), {}):
            yield name, describe_value(value)


def _list_options(handler: Handler) -> Iterator[tuple[str, Any]]:
    """Yield the options that are not what they are by default."""
    for field in dataclasses.fields(handler):
        value = getattr(handler, field.name)
        if field.name not in _SHOWN_ELSEWHERE and value != field.default:
            yield field.name, describe_value(value)


def describe_value(value: Any) -> Any:
    """Return whatever an option may be as JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, MetaFilterToken):
        return {"marker": value.name}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): describe_value(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((describe_value(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        named = value._asdict() if hasattr(value, "_asdict") else None
        return [describe_value(item) for item in value] if named is None else describe_value(named)
    return {"function": _detect_full_name(value)} if callable(value) else repr(value)


def _detect_full_name(fn: Callable[..., Any]) -> str:
    plain = _unwrap(fn)
    name = getattr(plain, "__qualname__", type(plain).__qualname__)
    module = getattr(plain, "__module__", None)
    return f"{module}.{name}" if module else str(name)


def _locate(fn: Callable[..., Any]) -> dict[str, Any] | None:
    """Return where a function is, its decorators included."""
    code = getattr(_unwrap(fn), "__code__", None)
    return None if code is None else {"file": code.co_filename, "line": code.co_firstlineno}


def _unwrap(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    plain: Callable[..., Any] = inspect.unwrap(fn)
    return plain
