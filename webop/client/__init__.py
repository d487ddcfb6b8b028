"""The client of the API server, for handlers, scripts and webop itself.

The names in :data:`__all__` are public; the modules of this package may change.

Handlers get a client as the argument ``client``. Functions that handlers call get the same client
with :func:`current`. Code outside of operators creates one with :func:`connect`::

    async with webop.client.connect() as client:
        for pod in await client.list("pods", namespace="default"):
            print(pod["metadata"]["name"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from webop.client.current_client import current_client

if TYPE_CHECKING:
    from webop.client.changes import Change
    from webop.client.items import Items
    from webop.client.objects import AsyncClient, SyncClient
    from webop.client.standalone import connect

__all__ = ["AsyncClient", "Change", "Items", "SyncClient", "connect", "current"]


def current() -> AsyncClient:
    """Return the client of the operator that runs the caller; use ``.sync`` in threads.

    Raises:
        LookupError: the caller is not a handler, nor a task or thread of an operator.
    """
    client: AsyncClient | None = current_client.get()
    if client is None:
        raise LookupError(
            "There is no client here: current() works in handlers and in what they call. "
            "Elsewhere, use `async with webop.client.connect() as client:`."
        )
    return client


# Names that are slow to import, and their modules.
_LAZY = {
    "AsyncClient": "webop.client.objects",
    "Change": "webop.client.changes",
    "Items": "webop.client.items",
    "SyncClient": "webop.client.objects",
    "connect": "webop.client.standalone",
}


def __getattr__(name: str) -> Any:
    """Import at first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
