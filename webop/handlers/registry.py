"""The registry of an operator's handlers: filled at import, then only read. No I/O."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from webop.handlers.causes import ChangeCause, ResourceCause, WebhookCause
from webop.handlers.filters import is_in_scope, matches
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
    Rule,
    WebhookHandler,
    WebhookType,
)
from webop.objects.fields import FieldPath
from webop.objects.resources import Selector

H = TypeVar("H", bound=Handler)


class ResourceHandlers:
    """The handlers of one resource by family, sorted once instead of at each event."""

    def __init__(self, handlers: Iterable[ResourceHandler]) -> None:
        everything = self.everything = list(handlers)
        self.events = _select_of(EventHandler, everything)
        self.changes = _select_of(ChangeHandler, everything)
        self.background = _select_of(BackgroundHandler, everything)
        self.indexers = _select_of(IndexHandler, everything)
        self.reconcilers = _select_of(ReconcileHandler, everything)
        self.children = _select_of(ChildHandler, everything)
        self.reads_children = not all(handler.metadata_only for handler in self.children)
        self.has_only_children = bool(everything) and len(self.children) == len(everything)
        fields = (each.field for each in (*self.events, *self.changes, *self.background))
        self.extra_fields: frozenset[FieldPath] = frozenset(filter(None, fields))
        self._fields = {handler.id: handler.field for handler in self.changes if handler.field}
        self.metadata_only = bool(everything) and all(each.metadata_only for each in everything)
        self.uses_finalizers = any(
            handler.needs_finalizer for handler in (*self.changes, *self.background)
        )

        observing = (*self.changes, *self.background, *self.reconcilers)
        self.looks_at_anything = any(each.when or each.annotations for each in observing)
        self.has_models = any(each.arguments for each in observing)
        models = {handler.model for handler in everything if handler.model is not None}
        self.reports_misfits = False  # by conditions of objects that do not fit their model
        if models:
            from webop.models.annotations import has_conditions  # noqa: PLC0415 - pydantic

            self.reports_misfits = any(map(has_conditions, models))

    def select_changes(self, cause: ChangeCause) -> list[ChangeHandler]:
        """Return the handlers to call for a change, in order of declaration.

        Each pair of a function and an id occurs once, and not for resuming if there is another.
        """
        chosen: dict[tuple[Any, str], ChangeHandler] = {}
        reason = cause.reason
        is_first, is_deleted = cause.initial, cause.initial and cause.is_deleted
        is_any = reason in (Reason.CREATE, Reason.UPDATE, Reason.RESUME)
        for handler in self.changes:
            if handler.initial:  # in the first cycle of any reason; in deletions on demand
                is_for = is_first and (handler.deleted or not is_deleted)
            else:
                is_for = is_any if handler.reason is None else handler.reason is reason
            if is_for and matches(handler, cause):
                key = handler.key
                if key not in chosen or chosen[key].initial:
                    chosen[key] = handler
        return list(chosen.values())

    def find_field(self, key: str) -> FieldPath:
        """Return the field of a handler of changes by its id; sub-handlers have none here."""
        return self._fields.get(key, ())

    def has_scope_for(self, cause: ChangeCause) -> bool:
        """Return whether the object is in the scope of a handler of changes."""
        return any(is_in_scope(handler, cause) for handler in self.changes)

    def needs_finalizer(self, cause: ResourceCause) -> bool:
        """Return whether a handler of changes requires the finalizer on the object."""
        return any(
            handler.needs_finalizer and matches(handler, cause, is_about_change=False)
            for handler in self.changes
        )


class OperatorRegistry:
    """The handlers of one operator.

    The decorators of :mod:`webop.on` fill the default registry (see
    :func:`get_default_registry`) unless they get ``registry=``.

    Attributes:
        files: the real paths of the files that have registered handlers, or were loaded to do so.
        rules: the rules for API servers (``webop.rule``).
    """

    def __init__(self) -> None:
        self._handlers: list[Handler] = []
        self.rules: list[Rule] = []
        self.files: set[str] = set()

    def __len__(self) -> int:
        return len(self._handlers)

    def append(self, handler: Handler) -> None:
        """Add a handler; the order of declaration is the order of calls."""
        self._handlers.append(handler)
        self._note_file()

    def remove(self, handler: Handler) -> None:
        """Remove a handler."""
        self._handlers.remove(handler)

    def append_rule(self, rule: Rule) -> None:
        """Add a rule, except if the same one is there: a file can be loaded twice."""
        if rule not in self.rules:
            self.rules.append(rule)
        self._note_file()

    def _note_file(self) -> None:
        """Remember the file whose import has called."""
        frame = sys._getframe(1)  # noqa: SLF001  the documented way to the caller
        while frame.f_back is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        self.files.add(os.path.realpath(frame.f_code.co_filename))

    def copy(self) -> OperatorRegistry:
        """Return a copy of the registry with the same handlers."""
        copied = OperatorRegistry()
        copied.restore(self)
        return copied

    def restore(self, copied: OperatorRegistry) -> None:
        """Return to the handlers of a copy, as an import has failed."""
        self._handlers[:] = copied._handlers
        self.rules[:] = copied.rules
        self.files = {*copied.files}

    def select_activities(self, activity: Activity) -> list[ActivityHandler]:
        """Return the handlers of an activity; the fallbacks only if there are no others."""
        found = [h for h in _select_of(ActivityHandler, self._handlers) if h.activity is activity]
        explicit = [h for h in found if not h.is_fallback]
        return list(deduplicated(explicit or found))

    def select_resource_handlers(self) -> list[ResourceHandler]:
        """Return the handlers that need watches of the cluster."""
        found = _select_of(ResourceHandler, self._handlers)
        return [handler for handler in found if not isinstance(handler, WebhookHandler)]

    def select_indexers(self) -> list[IndexHandler]:
        """Return the handlers that fill indexes."""
        return list(_select_of(IndexHandler, self._handlers))

    def select_webhooks(self) -> list[WebhookHandler]:
        """Return the handlers of admission reviews, each decorator separately.

        Several decorators of a function are for several operations or resources.
        """
        return list(_select_of(WebhookHandler, self._handlers))

    def select_converters(self) -> list[ConversionHandler]:
        """Return the functions between versions of kinds."""
        return list(_select_of(ConversionHandler, self._handlers))

    @property
    def needs_webhook_server(self) -> bool:
        """Whether API servers call this operator."""
        return bool(self.select_webhooks() or self.select_converters())

    def collect_selectors(self) -> frozenset[Selector]:
        """Return the selectors of all handlers, for discovery."""
        found = _select_of(ResourceHandler, self._handlers)
        return frozenset(handler.selector for handler in found if handler.selector)

    @property
    def follows_kinds(self) -> bool:
        """Whether new kinds matter at once; named kinds of webhooks can wait for a discovery."""
        return bool(self.select_resource_handlers()) or any(
            not selector.is_specific for selector in self.collect_selectors()
        )

    def handlers_of(self, selectors: Iterable[Selector]) -> ResourceHandlers:
        """Return the handlers with these selectors, which match one resource."""
        served = frozenset(selectors)
        return ResourceHandlers(h for h in self.select_resource_handlers() if h.selector in served)


def select_webhooks(
    handlers: Iterable[WebhookHandler], cause: WebhookCause
) -> list[WebhookHandler]:
    """Return the handlers to call for a review."""
    found = [
        handler
        for handler in handlers
        if (not handler.operations or cause.operation in handler.operations)
        and handler.subresource in ("*", cause.subresource)
        and (  # mutating ones run on DELETE only if they ask for it and for nothing else
            cause.operation != "DELETE"
            or handler.reason is WebhookType.VALIDATING
            or handler.operations == {"DELETE"}
        )
        and matches(handler, cause)
    ]
    return found if len(found) < 2 else list(deduplicated(found))


def deduplicated(handlers: Iterable[H]) -> Iterator[H]:
    """Yield each pair of a function and an id only once."""
    seen: set[tuple[Any, str]] = set()
    for handler in handlers:
        key = handler.key
        if key not in seen:
            seen.add(key)
            yield handler


def _select_of(family: type[H], handlers: Iterable[Handler]) -> tuple[H, ...]:
    return tuple(handler for handler in handlers if isinstance(handler, family))


_default_registry: OperatorRegistry | None = None


def get_default_registry() -> OperatorRegistry:
    """Return the registry that decorators fill by default."""
    global _default_registry  # noqa: PLW0603  the manual's one global
    if _default_registry is None:
        _default_registry = OperatorRegistry()
    return _default_registry


def set_default_registry(registry: OperatorRegistry) -> None:
    """Replace the default registry for all following decorators."""
    global _default_registry  # noqa: PLW0603  the manual's one global
    _default_registry = registry
