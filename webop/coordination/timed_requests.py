"""Requests about Leases and peering objects, each with one attempt and a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from webop.client.api import Client
from webop.client.http.requests import JSON, Call, encode_body, select_name
from webop.client.watch import State, WatchItem, WatchOptions, WatchStatus, watch
from webop.errors import APIConflictError, APIConnectionError, APINotFoundError
from webop.objects.resources import Resource

LEASES = Resource("coordination.k8s.io", "v1", "leases", kind="Lease", namespaced=True)


class LeaseAccess:
    """A Lease by its namespace and name.

    Each request has one attempt and ``timeout`` seconds, so that renewals are never late. It raises
    APIError if it fails; a write can have succeeded although its response was lost.
    """

    def __init__(self, client: Client, namespace: str, name: str, timeout: float) -> None:
        self._client = client
        self.timeout = timeout
        self._status = WatchStatus()
        self.namespace = namespace
        self.name = name
        self._selection = select_name(name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_watched(self) -> bool:
        """Whether the watch reports changes at the moment."""
        return self._status.is_connected and self._status.state is State.WATCHING

    async def read(self) -> dict[str, Any] | None:
        """Return the Lease; None if there is none."""
        try:
            response: dict[str, Any] = await self._perform("GET", self.name)
        except APINotFoundError:
            return None
        return response

    async def write(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        """Create the Lease, or replace the given version; None if another write was faster."""
        is_new = "resourceVersion" not in raw["metadata"]
        method, name = ("POST", None) if is_new else ("PUT", self.name)
        try:
            response: dict[str, Any] = await self._perform(method, name, encode_body(raw))
        except APIConflictError:
            return None
        except APINotFoundError:
            if is_new:
                raise  # the namespace does not exist
            return None
        return response

    def watch(self, options: WatchOptions) -> AsyncGenerator[WatchItem, None]:
        """Yield the Lease whenever it changes; see :func:`webop.client.watch.watch`."""
        return watch(self._client, LEASES, self.namespace, options, self._status, self._selection)

    async def _perform(self, method: str, name: str | None, content: bytes | None = None) -> Any:
        path = LEASES.get_url(namespace=self.namespace, name=name)
        return await perform_once(self._client, method, path, content, timeout=self.timeout)


async def perform_once(
    client: Client,
    method: str,
    path: str,
    content: bytes | None = None,
    content_type: str = JSON,
    *,
    timeout: float,
) -> Any:
    """Send a request in one attempt. The timeout includes a login."""
    call = Call(method, path, None, content, content_type, timeout=timeout, is_retried=False)
    try:
        async with asyncio.timeout(timeout):
            return await client.perform(call)
    except TimeoutError:
        raise APIConnectionError(f"Cannot {call.attempt}: no response in {timeout:g} s") from None
