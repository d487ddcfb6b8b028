"""The API server in memory, behind a network that fails as tests say.

The client reaches it by ``tests.kit.httpx_client`` (see :meth:`FaultyCluster.connect`), or by real
sockets (:func:`tests.kit.scripted_server.answer_by`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import orjson

from tests.kit.client_options import Networking
from tests.kit.httpx_client import Answer, build_request, build_response, connect
from tests.kit.memory_cluster import MemoryCluster
from webop import Resource
from webop.client.api import Client
from webop.client.auth.vault import Vault
from webop.client.http.requests import APPLY_PATCH
from webop.testing.apiserver import Json, Refusal, Request, Watch

RESOURCE = Resource("kopf.dev", "v1", "kopfexamples", namespaced=True)
PATH = RESOURCE.get_url()


class Feed:
    """The content of one streamed answer: what is put here goes to the client."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    def put(self, data: bytes | Exception | None) -> None:
        self._queue.put_nowait(data)

    def answer(self) -> httpx.Response:
        return httpx.Response(200, content=aiter(self))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (data := await self._queue.get()) is not None:
            if isinstance(data, Exception):
                raise data
            yield data


class FaultyCluster:
    """A cluster with objects of one kind.

    Attributes:
        server: what is behind the network.
        feeds: the open watches.
        requests: all that have come.
        refusals: of the next requests, see :meth:`refuse`.

    Args:
        names: of the objects.
    """

    def __init__(self, *names: str) -> None:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        self.server = MemoryCluster(lambda: now, random.Random(0))
        self.server.add_kind(RESOURCE.group, RESOURCE.plural, "KopfExample")
        self.feeds: dict[Feed, Watch] = {}
        self.requests: list[httpx.Request] = []
        self.refusals: list[tuple[str, Answer]] = []
        for name in names:
            self.apply(name)

    @property
    def version(self) -> str:
        return str(self.server.store.version)

    @property
    def objects(self) -> dict[str, Json]:
        found = self.server.get_objects(RESOURCE.plural_name)
        return {raw["metadata"]["name"]: raw for raw in found.values()}

    def apply(self, name: str, **spec: object) -> None:
        kind = {"apiVersion": RESOURCE.api_version, "kind": "KopfExample"}
        self._send("PATCH", name, {**kind, "metadata": {"name": name}, "spec": spec})

    def delete(self, name: str) -> None:
        self._send("DELETE", name)

    def expire(self) -> None:
        """End all watches after a loss of the history, with changes that they have not seen."""
        self.server.add_namespace(f"later-than-{self.version}")
        self.server.compact()
        self.cut()

    def bookmark(self) -> None:
        for watch in self.feeds.values():
            watch.send_bookmark(self.server.store.version)

    def send(self, event: object) -> None:
        """Send to all watches anything that JSON can hold, as one line."""
        self.send_raw(encode_line(event))

    def send_raw(self, data: bytes | Exception | None) -> None:
        for feed in self.feeds:
            feed.put(data)

    def cut(self, error: Exception | None = None) -> None:
        """End all watches: gracefully, or with an error of the transport."""
        self.send_raw(error)
        self.mute()

    def mute(self) -> None:
        """Make all open watches half-open: they stay, but nothing comes any more."""
        for watch in self.feeds.values():
            watch.close()
        self.feeds.clear()

    def refuse(self, what: str, answer: Answer, times: int = 1) -> None:
        """Answer otherwise to the next requests: of "watch", "list", "pages", "stream", "all"."""
        self.refusals += [(what, answer)] * times

    def connect(self, networking: Networking | None = None, vault: Vault | None = None) -> Client:
        return connect(self.handle, networking, vault)

    async def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        kinds = get_kinds(request.url.params)
        for index, (what, answer) in enumerate(self.refusals):
            if what in kinds:
                del self.refusals[index]
                return answer()
        perform = self.server.handle if "pages" in kinds else self.server.watch
        begun = perform(build_request(request))
        return self._open(begun).answer() if isinstance(begun, Watch) else build_response(begun)

    def _open(self, watch: Watch) -> Feed:
        feed = Feed()

        def forward() -> None:
            while watch.events:
                feed.put(encode_line(watch.events.popleft()))
            if watch.is_over:
                feed.put(None)

        watch.on_event = forward
        forward()
        if not watch.is_over:
            self.feeds[feed] = watch
        return feed

    def _send(self, method: str, name: str, body: Json | None = None) -> None:
        path = RESOURCE.get_url(namespace="default", name=name)
        headers, query = {"content-type": APPLY_PATCH}, {"fieldManager": "test"}
        content = None if body is None else orjson.dumps(body)
        response = self.server.handle(Request(method, path, query, headers, content))
        assert response.status < 300, response.body


def get_kinds(params: httpx.QueryParams) -> set[str]:
    """Tell what a request is, in the words of :meth:`FaultyCluster.refuse`."""
    if params.get("watch") != "true":
        return {"all", "list", "pages"}
    return {"all", "list", "stream"} if "sendInitialEvents" in params else {"all", "watch"}


def build_error_event(code: int, reason: str, message: str) -> Json:
    return {"type": "ERROR", "object": Refusal(code, reason, message).build_status()}


def encode_line(event: object) -> bytes:
    return orjson.dumps(event) + b"\n"
