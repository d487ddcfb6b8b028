"""A poster at work without a cluster, for the tests of what is told about objects."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import webop
from tests.kit.waiting import eventually
from webop import Resource
from webop.client.api import Client
from webop.errors import APIConflictError
from webop.events.loggers import EVENTS, Poster, current_poster

BODY: dict[str, Any] = {
    "apiVersion": "kopf.dev/v1",
    "kind": "KopfExample",
    "metadata": {"name": "kex", "namespace": "ns", "uid": "u1"},
}
REFERENCE = {"apiVersion": "kopf.dev/v1", "kind": "KopfExample", **BODY["metadata"]}


class Recorder:
    """Stands for the client: keeps what is posted, with its updates.

    Attributes:
        stored: the events by their names, as they are in the cluster.
        requests: the methods in order.
        failures: what the next requests fail with.
        losses: what the next events fail with after they were stored.
    """

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.failures: list[BaseException] = []
        self.losses: list[BaseException] = []

    async def create(
        self, resource: Resource, namespace: str, body: dict[str, Any], **options: Any
    ) -> dict[str, Any]:
        self._accept("POST", resource, options)
        name = body["metadata"]["name"]
        if name in self.stored:
            raise APIConflictError("exists", status=409)
        assert namespace == body["metadata"]["namespace"]
        self.stored[name] = json.loads(json.dumps(body))
        if self.losses:
            raise self.losses.pop(0)
        return body

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: dict[str, Any], **options: Any
    ) -> dict[str, Any] | None:
        self._accept("PATCH", resource, options)
        if name not in self.stored:
            return None
        assert namespace == self.stored[name]["metadata"]["namespace"]
        self.stored[name] |= patch
        return self.stored[name]

    def _accept(self, method: str, resource: Resource, options: dict[str, Any]) -> None:
        self.requests.append(method)
        assert resource == EVENTS
        assert not options["is_retried"]
        if self.failures:
            raise self.failures.pop(0)

    async def wait(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many events are posted, and see that there are no more."""
        await eventually(lambda: len(self.events) >= count)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(self.events) == count
        return self.events

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events, oldest first."""
        return list(self.stored.values())

    @property
    def texts(self) -> list[tuple[str, str, str]]:
        """The types, reasons and messages of the events."""
        return [(event["type"], event["reason"], event["message"]) for event in self.events]


@contextlib.asynccontextmanager
async def post(settings: webop.OperatorSettings, recorder: Recorder) -> AsyncIterator[None]:
    poster = Poster(settings)
    current_poster.set(poster)
    task = asyncio.create_task(poster.run(cast("Client", recorder)))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
