"""Registries that isolate the handlers of a test from other tests and from the cluster."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from webop.errors import PermanentError
from webop.handlers.model import Activity, ActivityHandler, ResourceHandler, WebhookHandler
from webop.handlers.registry import OperatorRegistry, get_default_registry, set_default_registry
from webop.objects.resources import Selector

# Code that the author of the test has not written.
_LIBRARIES: set[Path | str] = {"webop", *map(Path, sysconfig.get_paths().values())}

#: The ids of the webhook handlers that match a review, after their filters, in order.
called: ContextVar[dict[str, None]] = ContextVar("called")


@contextlib.contextmanager
def replace_default_registry(registry: OperatorRegistry | None) -> Iterator[OperatorRegistry]:
    """Replace the default registry during a block, so that loaded files register there."""
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
    """Forget the modules of an operator after the block, so that the next one imports them again.

    Decorators work on import: a module that stays imported would register no handlers for the
    next operator. So everything that was imported within the block is forgotten if it is in the
    package or the folder of a module with handlers.
    """
    known, path, before = set(sys.modules), list(sys.path), set(registry.files)
    try:
        yield
    finally:
        sys.path[:] = [folder for folder in sys.path if folder in path]
        fresh = {name: sys.modules[name] for name in sys.modules.keys() - known}
        files = {name: getattr(module, "__file__", None) for name, module in fresh.items()}
        own = [
            one for one in files if os.path.realpath(files[one] or "") in registry.files - before
        ]
        origins = {origin for name in own for origin in _find_origins(fresh[name])} - _LIBRARIES
        for name, module in fresh.items():
            if origins.intersection(_find_origins(module)):
                del sys.modules[name]


def _find_origins(module: Any) -> set[Path | str]:
    """Return the package of a module, and its folder if it is a single file."""
    package = getattr(module, "__name__", "").partition(".")[0]
    file = getattr(module, "__file__", None)
    is_alone = file is not None and not getattr(module, "__package__", "")
    return {package, Path(str(file)).parent} if is_alone else {package}


class AdmissionRegistry(OperatorRegistry):
    """A view of another registry with the handlers that need no cluster; nothing is watched.

    Indexes exist, but stay empty. Login handlers are replaced, so that the test does not use the
    cluster of the developer. The other registry can still grow.
    """

    def __init__(self, origin: OperatorRegistry) -> None:
        super().__init__()
        self._handlers = origin._handlers  # noqa: SLF001 - a view of it

    def select_activities(self, activity: Activity) -> list[ActivityHandler]:
        """Return the handlers of an activity; for logins, one that fails."""
        if activity is not Activity.AUTHENTICATION:
            return super().select_activities(activity)
        return [ActivityHandler(id="no_cluster", fn=_refuse_login, activity=activity)]

    def select_resource_handlers(self) -> list[ResourceHandler]:
        """Return none: there is no cluster."""
        return []

    def collect_selectors(self) -> frozenset[Selector]:
        """Return none: nothing needs discovery."""
        return frozenset()

    def select_webhooks(self) -> list[WebhookHandler]:
        """Return the webhook handlers; each records its calls in :data:`called`."""
        return [_record(handler) for handler in super().select_webhooks()]


async def _refuse_login(**_: Any) -> None:
    text = "AdmissionClient has no cluster. To use the client in handlers, set cluster="
    raise PermanentError(text)


def _record(handler: WebhookHandler) -> WebhookHandler:
    """Return a handler that records when it is chosen: ``when`` is the last of all filters."""

    def is_chosen(**kwargs: Any) -> bool:
        if handler.when is not None and not handler.when(**kwargs):
            return False
        called.get({})[handler.id] = None
        return True

    return replace(handler, when=is_chosen)
