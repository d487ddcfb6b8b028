"""The handlers of a test: apart from those of other tests, and from the cluster."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from webop.errors import PermanentError
from webop.handling.handlers import Activity, ActivityHandler, ResourceHandler, WebhookHandler
from webop.handling.registry import OperatorRegistry, get_default_registry, set_default_registry
from webop.objects.resources import Selector

# What is in there has not been written by the author of the test.
_LIBRARIES: set[Path | str] = {"webop", *map(Path, sysconfig.get_paths().values())}

#: The ids of the webhook handlers that a review is for, their own filters considered, in order.
judges: ContextVar[dict[str, None]] = ContextVar("judges")


@contextlib.contextmanager
def replace_default_registry(registry: OperatorRegistry | None) -> Iterator[OperatorRegistry]:
    """Give the files that are loaded a registry that is not that of the next test."""
    original = get_default_registry()
    chosen = original.copy() if registry is None else registry
    set_default_registry(chosen)
    try:
        with forgetting_imports(chosen):
            yield chosen
    finally:
        set_default_registry(original)


@contextlib.contextmanager
def forgetting_imports(registry: OperatorRegistry) -> Iterator[None]:
    """Have the modules of an operator imported anew by the next one that is made of them.

    Decorators work on import. A module that stays imported while its handlers have gone with the
    registry would give none to the next operator. So what is imported within the block is
    forgotten, if a module with handlers is in the same package, or beside it in a folder.
    """
    known, path = set(sys.modules), list(sys.path)
    before = set(_list_modules(registry))
    try:
        yield
    finally:
        sys.path[:] = [folder for folder in sys.path if folder in path]
        fresh = {name: sys.modules[name] for name in sys.modules.keys() - known}
        own = (set(_list_modules(registry)) - before) & fresh.keys()
        origins = {origin for name in own for origin in _tell_origins(fresh[name])} - _LIBRARIES
        for name, module in fresh.items():
            if origins.intersection(_tell_origins(module)):
                del sys.modules[name]


def _list_modules(registry: OperatorRegistry) -> Iterator[str]:
    """Yield the names of the modules that the functions of the handlers are in."""
    activities = [each for activity in Activity for each in registry.select_activities(activity)]
    webhooks = registry.select_webhooks()
    for handler in (*registry.select_resource_handlers(), *webhooks, *activities):
        yield getattr(handler.fn, "__module__", None) or ""


def _tell_origins(module: Any) -> set[Path | str]:
    """Return what a module has in common with others that have been written with it."""
    package = getattr(module, "__name__", "").partition(".")[0]
    file = getattr(module, "__file__", None)
    is_alone = file is not None and not getattr(module, "__package__", "")
    return {package, Path(str(file)).parent} if is_alone else {package}


class AdmissionRegistry(OperatorRegistry):
    """The handlers of another registry, so far as they need no cluster: nothing is watched.

    Indexes are there, and stay empty. Nobody logs in to the cluster that the developer uses.

    The other registry may still grow.
    """

    def __init__(self, origin: OperatorRegistry) -> None:
        super().__init__()
        self._handlers = origin._handlers  # noqa: SLF001 - a view of it

    def select_activities(self, activity: Activity) -> list[ActivityHandler]:
        """Return the handlers of the operator's life, but those that log in."""
        if activity is not Activity.AUTHENTICATION:
            return super().select_activities(activity)
        return [ActivityHandler(id="no_cluster", fn=_refuse_login, activity=activity)]

    def select_resource_handlers(self) -> list[ResourceHandler]:
        """Return none: there is no cluster."""
        return []

    def collect_selectors(self) -> frozenset[Selector]:
        """Return none: there is nothing to discover."""
        return frozenset()

    def select_webhooks(self) -> list[WebhookHandler]:
        """Return the handlers of admission reviews, who note themselves in :data:`judges`."""
        return [_watch(handler) for handler in super().select_webhooks()]


async def _refuse_login(**_: Any) -> None:
    text = "AdmissionClient has no cluster; give it one by cluster=, for the client of handlers"
    raise PermanentError(text)


def _watch(handler: WebhookHandler) -> WebhookHandler:
    """Have a handler note itself when it is chosen: callbacks are the last of all filters."""

    def is_chosen(**kwargs: Any) -> bool:
        if handler.when is not None and not handler.when(**kwargs):
            return False
        judges.get({})[handler.id] = None
        return True

    return replace(handler, when=is_chosen)
