"""The handlers of a test: apart from those of other tests, and from the cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from webop.handling.handlers import (
    Activity,
    ActivityHandler,
    Handler,
    IndexHandler,
    WebhookHandler,
)
from webop.handling.registry import (
    OperatorRegistry,
    get_default_registry,
    set_default_registry,
)

#: The ids of the webhook handlers that a review is for, their own filters considered.
judges: ContextVar[list[str]] = ContextVar("judges")


@contextlib.contextmanager
def replace_default_registry(registry: OperatorRegistry | None) -> Iterator[OperatorRegistry]:
    """Give the files that are loaded a registry that is not that of the next test.

    Args:
        registry: the one to be the default for a while; None is a copy of the default one.
    """
    original = get_default_registry()
    chosen = original.copy() if registry is None else registry
    set_default_registry(chosen)
    try:
        yield chosen
    finally:
        set_default_registry(original)


class AdmissionRegistry(OperatorRegistry):
    """The handlers of another registry, so far as they need no cluster.

    Those of the life of the operator are there, and the webhooks, and the indexes, which stay
    empty. Nothing is there to be watched, so there is no reason to log in to a cluster.

    Args:
        origin: the registry with all of the handlers; it may still grow.
    """

    def __init__(self, origin: OperatorRegistry) -> None:
        super().__init__()
        self._origin = origin

    def __len__(self) -> int:
        return len(self._origin)

    def append(self, handler: Handler) -> None:
        """Add a handler to the other registry."""
        self._origin.append(handler)

    def copy(self) -> OperatorRegistry:
        """Return the same for a copy of the other registry."""
        return AdmissionRegistry(self._origin.copy())

    def select_activities(self, activity: Activity) -> list[ActivityHandler]:
        """Return the handlers of an activity."""
        return self._origin.select_activities(activity)

    def select_indexers(self) -> list[IndexHandler]:
        """Return the handlers that would fill indexes."""
        return self._origin.select_indexers()

    def select_webhooks(self) -> list[WebhookHandler]:
        """Return the handlers of admission reviews, who put themselves down in :data:`judges`."""
        return [_watch(handler) for handler in self._origin.select_webhooks()]


def _watch(handler: WebhookHandler) -> WebhookHandler:
    """Have a handler put itself down when it is chosen: callbacks are the last of all filters."""

    def is_chosen(**kwargs: Any) -> bool:
        if handler.when is None or handler.when(**kwargs):
            noted = judges.get([])
            if handler.id not in noted:
                noted.append(handler.id)
            return True
        return False

    return replace(handler, when=is_chosen)
