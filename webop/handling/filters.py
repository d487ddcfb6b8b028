"""Which objects a handler is for: labels, annotations, fields, callbacks (chapter "Filtering").

Pure: a handler and a cause in, a verdict out. :func:`matches` decides whether a handler is called
for a cause; :func:`prematches` ignores the change: it decides whether an object is in the scope of
a handler at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from webop.handling.causes import ResourceCause
from webop.handling.handlers import (
    ABSENT,
    PRESENT,
    ChangeHandler,
    MetaCriterion,
    Predicate,
    ResourceHandler,
    ValueCriterion,
)
from webop.objects import diffs, fields

_MISSING: Any = object()


def not_(fn: Predicate) -> Predicate:
    """Return a predicate that passes if the given one does not."""
    return lambda *args, **kwargs: not fn(*args, **kwargs)


def all_(fns: Collection[Predicate]) -> Predicate:
    """Return a predicate that passes if all of the given ones do."""
    return lambda *args, **kwargs: all(fn(*args, **kwargs) for fn in fns)


def any_(fns: Collection[Predicate]) -> Predicate:
    """Return a predicate that passes if at least one of the given ones does."""
    return lambda *args, **kwargs: any(fn(*args, **kwargs) for fn in fns)


def none_(fns: Collection[Predicate]) -> Predicate:
    """Return a predicate that passes if none of the given ones does."""
    return lambda *args, **kwargs: not any(fn(*args, **kwargs) for fn in fns)


def matches(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Tell whether a handler must be called for a cause.

    For handlers of changes with a field, the field must be what has changed.
    """
    if handler.field and isinstance(handler, ChangeHandler) and handler.needs_change:
        return bool(diffs.reduce(getattr(cause, "diff", ()), handler.field)) and prematches(
            handler, cause
        )
    return prematches(handler, cause)


def prematches(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Tell whether an object fits a handler, whatever has changed in it."""
    try:
        return _fits(handler, cause, field=True)
    except Exception as exc:
        exc.add_note(f"This was in a filter of {handler}.")
        raise


def is_in_scope(handler: ChangeHandler, cause: ResourceCause) -> bool:
    """Tell whether a handler needs the changes of an object.

    ``on.field`` without further criteria is also for objects without the field (D-37).
    """
    criteria = (handler.reason, handler.value, handler.old, handler.new)
    is_waiting = handler.needs_change and not any(item is not None for item in criteria)
    return _fits(handler, cause, field=not is_waiting)


def _fits(handler: ResourceHandler, cause: ResourceCause, *, field: bool) -> bool:
    labels, annotations = handler.labels, handler.annotations
    return (
        (not labels or _match_all(labels, cause.body.meta.labels, cause))
        and (not annotations or _match_all(annotations, cause.body.meta.annotations, cause))
        and (not handler.field or not field or _has_matching_field(handler, cause))
        and (handler.when is None or bool(handler.when(**cause.kwargs)))
    )


def _match_all(
    criteria: Mapping[str, MetaCriterion], values: Mapping[str, Any], cause: ResourceCause
) -> bool:
    return all(
        _match_value(criterion, values.get(key, _MISSING), cause)
        for key, criterion in criteria.items()
    )


def _match_value(criterion: ValueCriterion, value: Any, cause: ResourceCause) -> bool:
    if criterion is PRESENT:
        return value is not _MISSING
    if criterion is ABSENT:
        return value is _MISSING
    if callable(criterion):
        return bool(criterion(None if value is _MISSING else value, **cause.kwargs))
    return bool(value == criterion)


def _has_matching_field(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Check the field's current value; for changes, its old value also counts."""
    criterion = PRESENT if handler.value is None else handler.value
    current = _resolve(cause.body, handler)
    if not isinstance(handler, ChangeHandler) or not handler.needs_change:
        return _match_value(criterion, current, cause)
    old, new = handler.old, handler.new
    before = _resolve(getattr(cause, "old", None) or {}, handler)
    if old is None and new is None:
        return _match_value(criterion, before, cause) or _match_value(criterion, current, cause)
    return (old is None or _match_value(old, before, cause)) and (
        new is None or _match_value(new, current, cause)
    )


def _resolve(document: Mapping[str, Any], handler: ResourceHandler) -> Any:
    """Return the field's value; None means that it is absent (Kubernetes API conventions)."""
    value = fields.resolve(document, handler.field)
    return _MISSING if value is None else value
