"""A cluster with one kind of objects, in memory, that can be made to fail in any way.

It keeps a history as etcd does, and serves lists in pages and watches. It is served either by
``tests.kit.httpx_client`` (see :meth:`FakeCluster.connect`) or by real sockets (fake_server.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import httpx
import orjson

from tests.kit.httpx_client import answer_by
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.watch import ListingFinished, ListingStarted, State, WatchItem, WatchStatus, watch
from webop.objects.resources import Resource

RESOURCE = Resource("kopf.dev", "v1", "kopfexamples", namespaced=True)
PATH = "/apis/kopf.dev/v1/kopfexamples"
SERVER = "https://fake.cluster"

Answer = Callable[[], httpx.Response]

# What becomes of the wish for a streaming list: it is granted, it is ignored although existing
# objects are sent as in old versions of the API, or nothing is sent at all. Or it is refused with
# this status.
StreamingLists = Literal["granted", "ignored", "mute", 400, 422]


@dataclasses.dataclass
class Networking:
    request_timeout: float | None = 300
    connect_timeout: float | None = None
    error_backoffs: float | list[float] | tuple[float, ...] = ()
    enforce_retry_after: bool = False
    trust_env: bool = False


def connect(
    handle: Callable[[httpx.Request], Any],
    networking: Networking | None = None,
    vault: Vault | None = None,
) -> Client:
    """Return a client whose requests a function answers."""
    info = ConnectionInfo(server=SERVER, token="secret")
    return Client(
        vault or Vault({"test": info}),
        networking or Networking(),
        transport_factory=answer_by(handle),
    )


@dataclasses.dataclass
class Watching:
    server_timeout: float | None = None
    client_timeout: float | None = None
    connect_timeout: float | None = None
    reconnect_backoff: float = 0.1
    inactivity_timeout: float | None = 70
    streaming_list: bool = False
    managed_fields: bool = False


class Feed:
    """One open watch: what is put here goes to the client."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.is_muted = False

    def put(self, data: bytes | Exception | None) -> None:
        if not self.is_muted:
            self.queue.put_nowait(data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (data := await self.queue.get()) is not None:
            if isinstance(data, Exception):
                raise data
            yield data


class FakeCluster:
    def __init__(self, *names: str) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.compacted = 0
        self.history: list[tuple[int, bytes]] = []
        self.feeds: list[Feed] = []
        self.requests: list[httpx.Request] = []
        self.refusals: list[tuple[str, Answer]] = []
        self.is_gone_by_event = False
        self.streaming_lists: StreamingLists = "granted"
        for name in names:
            self.apply(name)

    def apply(self, name: str, **spec: Any) -> dict[str, Any]:
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = self._build(name, spec)
        self._record(kind, self.objects[name])
        return self.objects[name]

    def delete(self, name: str) -> None:
        old = self.objects.pop(name)
        self._record("DELETED", self._build(name, old["spec"]))

    def compact(self) -> None:
        """Lose the history, as etcd does after some minutes."""
        self.compacted = self.version
        self.history.clear()

    def bookmark(self) -> None:
        self.send_raw(build_bookmark(self.version))

    def send(self, event: object) -> None:
        """Send to all watches anything that JSON can hold, as one line."""
        self.send_raw(orjson.dumps(event) + b"\n")

    def send_raw(self, data: bytes | Exception | None) -> None:
        for feed in self.feeds:
            feed.put(data)

    def cut(self, error: Exception | None = None) -> None:
        """End all watches: gracefully, or with an error of the transport."""
        self.send_raw(error)
        self.feeds.clear()

    def mute(self) -> None:
        """Make all open watches half-open: they stay, but nothing comes any more."""
        for feed in self.feeds:
            feed.is_muted = True
        self.feeds.clear()

    def refuse(self, what: str, answer: Answer, times: int = 1) -> None:
        """Answer otherwise to the next requests: of "watch", "list", "pages", "stream", "all"."""
        self.refusals += [(what, answer)] * times

    def connect(self, networking: Networking | None = None, vault: Vault | None = None) -> Client:
        return connect(self.handle, networking, vault)

    async def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        params = request.url.params
        kinds = get_kinds(params)
        for index, (what, answer) in enumerate(self.refusals):
            if what in kinds:
                del self.refusals[index]
                return answer()
        if "stream" in kinds:
            return self._stream_list(params)
        return self._watch(params) if "watch" in kinds else self._list(params)

    def _list(self, params: httpx.QueryParams) -> httpx.Response:
        start, limit = int(params.get("continue", 0)), int(params["limit"])
        objects = list(self.objects.values())
        token = str(start + limit) if start + limit < len(objects) else ""
        body = {
            "apiVersion": "kopf.dev/v1",
            "kind": "KopfExampleList",
            "metadata": {"resourceVersion": str(self.version), "continue": token},
            "items": objects[start : start + limit],
        }
        return httpx.Response(200, content=orjson.dumps(body))

    def _stream_list(self, params: httpx.QueryParams) -> httpx.Response:
        assert params["resourceVersionMatch"] == "NotOlderThan"
        assert params["allowWatchBookmarks"] == "true"
        assert "resourceVersion" not in params
        if isinstance(self.streaming_lists, int):
            return answer_status(self.streaming_lists, message="sendInitialEvents: Forbidden")()
        feed = Feed()
        if self.streaming_lists != "mute":
            for raw in self.objects.values():
                feed.put(orjson.dumps({"type": "ADDED", "object": raw}) + b"\n")
        if self.streaming_lists == "granted":
            feed.put(build_bookmark(self.version, is_end_of_list=True))
        self.feeds.append(feed)
        return httpx.Response(200, content=aiter(feed))

    def _watch(self, params: httpx.QueryParams) -> httpx.Response:
        since = int(params["resourceVersion"])
        feed = Feed()
        if since < self.compacted:
            gone = build_status(410, "Expired", "too old resource version")
            if not self.is_gone_by_event:
                return httpx.Response(410, content=orjson.dumps(gone))
            feed.put(orjson.dumps({"type": "ERROR", "object": gone}) + b"\n")
            feed.put(None)
            return httpx.Response(200, content=aiter(feed))
        for version, line in self.history:
            if version > since:
                feed.put(line)
        self.feeds.append(feed)
        return httpx.Response(200, content=aiter(feed))

    def _build(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": str(self.version),
            "managedFields": [{"manager": "test"}],
        }
        return {
            "apiVersion": "kopf.dev/v1",
            "kind": "KopfExample",
            "metadata": metadata,
            "spec": spec,
        }

    def _record(self, kind: str, raw: dict[str, Any]) -> None:
        line = orjson.dumps({"type": kind, "object": raw}) + b"\n"
        self.history.append((self.version, line))
        self.send_raw(line)


class Mirror:
    """A consumer of a watch, as the controller is one: its memory is to equal the cluster."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []
        self.items: list[WatchItem] = []
        self.status = WatchStatus()
        self.options = Watching()
        self._seen: set[str] = set()
        self._changed = asyncio.Condition()

    async def follow(
        self,
        client: Client,
        options: Watching | None = None,
        resource: Resource = RESOURCE,
        namespace: str | None = None,
    ) -> None:
        self.options = options or self.options
        items = watch(client, resource, namespace, self.options, self.status)
        async for item in items:
            self.items.append(item)
            self._accept(item)
            async with self._changed:
                self._changed.notify_all()

    def _accept(self, item: WatchItem) -> None:
        match item:
            case ListingStarted():
                self._seen.clear()
            case ListingFinished():
                for name in self.objects.keys() - self._seen:
                    self._forget(name)
            case ("DELETED", raw):
                self._forget(raw["metadata"]["name"])
            case (_, raw):
                assert ("managedFields" in raw["metadata"]) == self.options.managed_fields
                self._seen.add(raw["metadata"]["name"])
                self.objects[raw["metadata"]["name"]] = raw

    def _forget(self, name: str) -> None:
        del self.objects[name]
        self.deleted.append(name)

    @property
    def versions(self) -> dict[str, str]:
        return get_versions(self.objects)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def catch_up(self, cluster: FakeCluster) -> None:
        await self.wait_for(lambda: self.versions == get_versions(cluster.objects))


def get_versions(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: raw["metadata"]["resourceVersion"] for name, raw in objects.items()}


def get_kinds(params: httpx.QueryParams) -> set[str]:
    """Tell what a request is, in the words of :meth:`FakeCluster.refuse`."""
    if params.get("watch") != "true":
        return {"all", "list", "pages"}
    return {"all", "list", "stream"} if "sendInitialEvents" in params else {"all", "watch"}


def build_bookmark(version: int, *, is_end_of_list: bool = False) -> bytes:
    metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
    if is_end_of_list:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    event = {"type": "BOOKMARK", "object": {"kind": "KopfExample", "metadata": metadata}}
    return orjson.dumps(event) + b"\n"


def build_status(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }


def answer_status(code: int, reason: str = "", message: str = "", **headers: str) -> Answer:
    content = orjson.dumps(build_status(code, reason, message))
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda: httpx.Response(code, content=content, headers=names)


@contextlib.asynccontextmanager
async def mirroring(client: Client, options: Watching | None = None) -> AsyncIterator[Mirror]:
    """Follow a cluster in a task of its own."""
    mirror = Mirror()
    async with client, asyncio.TaskGroup() as group:
        task = group.create_task(mirror.follow(client, options))
        yield mirror
        task.cancel()


@contextlib.asynccontextmanager
async def following(
    cluster: FakeCluster, options: Watching | None = None, vault: Vault | None = None
) -> AsyncIterator[Mirror]:
    """Follow a cluster, and wait until it is watched."""
    async with mirroring(cluster.connect(vault=vault), options) as mirror:
        await mirror.wait_for(lambda: mirror.status.state is State.WATCHING)
        await eventually(lambda: bool(cluster.feeds))
        yield mirror
