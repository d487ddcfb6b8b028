"""Filters of handlers: labels, annotations, fields, functions (chapter "Filtering").

No I/O. :func:`matches` decides whether a handler is called for a cause; :func:`is_in_scope` decides
whether the object's state is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from webop.aio.cancellation import convert_exception
from webop.handlers.causes import DiffCause, ResourceCause, WebhookCause
from webop.handlers.model import (
    ABSENT,
    PRESENT,
    ChangeHandler,
    MetaCriterion,
    Predicate,
    ResourceHandler,
    ValueCriterion,
)
from webop.objects import fields

_MISSING: Any = object()


def not_(fn: Predicate) -> Predicate:
    """Return a filter that is true if the given one is not.

    ::

        @webop.on.create("databases.example.com", when=webop.not_(is_paused))
    """
    return lambda *args, **kwargs: not fn(*args, **kwargs)


def all_(fns: Collection[Predicate]) -> Predicate:
    """Return a filter that is true if all given ones are.

    ::

        @webop.on.create("pods", labels={"env": webop.all_([is_prod, is_stage])})
    """
    return lambda *args, **kwargs: all(fn(*args, **kwargs) for fn in fns)


def any_(fns: Collection[Predicate]) -> Predicate:
    """Return a filter that is true if at least one of the given ones is.

    ::

        @webop.on.create("pods", labels={"env": webop.any_([is_prod, is_stage])})
    """
    return lambda *args, **kwargs: any(fn(*args, **kwargs) for fn in fns)


def none_(fns: Collection[Predicate]) -> Predicate:
    """Return a filter that is true if none of the given ones is.

    ::

        @webop.on.create("pods", labels={"env": webop.none_([is_prod, is_stage])})
    """
    return lambda *args, **kwargs: not any(fn(*args, **kwargs) for fn in fns)


def is_in_scope(handler: ChangeHandler, cause: ResourceCause) -> bool:
    """Return whether a handler needs the changes of an object, so that its state is stored.

    ``on.field`` without another filter also needs objects without the field.
    """
    filters = (handler.reason, handler.when, handler.value, handler.old, handler.new)
    has_filters = any(item is not None for item in filters)
    is_for_all = not (has_filters or handler.labels or handler.annotations)
    return (handler.needs_change and is_for_all) or matches(handler, cause, is_about_change=False)


def matches(
    handler: ResourceHandler,
    cause: ResourceCause,
    *,
    is_about_change: bool = True,
    has_missed: bool = False,
) -> bool:
    """Return whether a handler must be called for a cause.

    Handlers of changes that have a field match only if this field has changed, unless this is not
    about the change: then ``old`` and ``new`` are ignored, too. If its record proves that it has
    missed a change, ``old`` and ``value`` are: they can be about a state in between.
    """
    try:
        return (
            (not (handler.labels or handler.annotations) or _has_matching_metadata(handler, cause))
            and (not handler.field or _has_matching_field(handler, cause, has_missed=has_missed))
            and (not is_about_change or _has_matching_change(handler, cause, has_missed=has_missed))
            and (handler.when is None or bool(handler.when(**cause.kwargs)))
        )
    except BaseException as exc:  # noqa: BLE001
        failure = convert_exception(exc)
        failure.add_note(f"This was in a filter of {handler}.")
        raise failure  # noqa: B904  it has the cause


def _has_matching_metadata(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Check the labels and annotations.

    API servers call a webhook if its ``objectSelector`` matches the old object or the new one, so
    a request that removes a label is judged, too.
    """
    labels, annotations = handler.labels, handler.annotations
    old = cause.old if isinstance(cause, WebhookCause) else None
    return any(
        (not labels or _match_all(labels, body.meta.labels, cause))
        and (not annotations or _match_all(annotations, body.meta.annotations, cause))
        for body in (cause.body, old)
        if body is not None
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


def _has_matching_field(
    handler: ResourceHandler, cause: ResourceCause, *, has_missed: bool
) -> bool:
    """Check the field's current value; for changes, the old value can match as well."""
    criterion = PRESENT if handler.value is None else handler.value
    return _match_value(criterion, _resolve(cause.body, handler), cause) or (
        isinstance(handler, ChangeHandler)
        and handler.needs_change
        and (has_missed or _match_value(criterion, _resolve_old(handler, cause), cause))
    )


def _has_matching_change(
    handler: ResourceHandler, cause: ResourceCause, *, has_missed: bool
) -> bool:
    """Check that the field has changed, and its values on both sides."""
    if not (handler.field and isinstance(handler, ChangeHandler) and handler.needs_change):
        return True
    old, new = handler.old, handler.new
    has_changed = has_missed or (
        isinstance(cause, DiffCause)
        and bool(cause.find_diff(handler.field))
        and (old is None or _match_value(old, _resolve_old(handler, cause), cause))
    )
    return has_changed and (new is None or _match_value(new, _resolve(cause.body, handler), cause))


def _resolve_old(handler: ResourceHandler, cause: ResourceCause) -> Any:
    return _resolve(getattr(cause, "old", None) or {}, handler)


def _resolve(document: Mapping[str, Any], handler: ResourceHandler) -> Any:
    """Return the field's value; None means that it is absent (Kubernetes API conventions)."""
    value = fields.resolve(document, handler.field)
    return _MISSING if value is None else value
