"""A client of an API server in memory, for unit tests of handlers without a cluster.

Flow: :class:`FakeClient` is the client of handlers; its transport hands each request to the API
server of :mod:`webop.testing.apiserver`, in the process of the test. Nothing else is fake.

The name is the field's: client-go and controller-runtime call theirs a fake client.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlsplit

import orjson
import pydantic

from webop.cli.manifests.kinds import list_builtin
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.context import current_client
from webop.client.discovery import discover
from webop.client.http import transport
from webop.client.objects import AsyncClient, SyncClient
from webop.context.child_store import ChildStore, Names
from webop.context.children import Children
from webop.context.cluster_view import ClusterView
from webop.controlplane.requests import Manifest, read_manifest
from webop.errors import ConfigurationError
from webop.events.loggers import LocalObjectLogger
from webop.handlers.model import ReconcileHandler
from webop.handlers.registry import OperatorRegistry, get_default_registry
from webop.models.fitting import dump
from webop.objects.body import Body
from webop.settings import OperatorSettings
from webop.testing.apiserver import Cluster, Request, Response, Watch
from webop.testing.apiserver.kinds import BUILT_IN, Kind

Json = dict[str, Any]

_CRD: Final = "CustomResourceDefinition"
_JSON: Final = {b"content-type": b"application/json"}
_ORDER: Final = {_CRD: 0, "Namespace": 1}


class FakeClient(AsyncClient):
    """The client of handlers, with an API server in memory instead of a cluster.

    ::

        async def test_a_backup_is_counted():
            client = webop.testing.FakeClient(Database, {"apiVersion": "v1", "kind": "Secret", ...})
            await count_backups(name="main", namespace="default", client=client)
            assert (await client.get(Database, "main", namespace="default")).status.backups == 1

    All methods work as on a cluster: schemas with their defaults, resource versions and conflicts,
    merge and JSON patches, server-side apply, finalizers, status subresources, selectors, dry runs,
    waiting. :attr:`sync` is the client for sync functions, also in tests that are not async. In a
    ``with`` block, :func:`webop.client.current` returns the client.

    Kubernetes' own kinds exist, but few of them have a schema or defaults. There is no access
    control, no CEL, no garbage collection, and no handler is called: see docs/testing_fake.md.

    Args:
        given: what exists at the start, as for ``LocalCluster.apply``: classes with
            ``@webop.resource`` (their kinds), objects as models or mappings, and paths of files
            with YAML. Objects keep their status. Their namespaces are created.
        namespace: the namespace of given objects that name none.

    Raises:
        ConfigurationError: a given object is invalid, or its kind is unknown.
    """

    def __init__(self, *given: Manifest, namespace: str = "default") -> None:
        self._server = Cluster(
            lambda: dt.datetime.now(dt.UTC),
            random.Random(0),  # noqa: S311 - for the uids, which are the same in each run
            kinds=_list_other_kinds(),
            applies=True,
        )
        self._lock = threading.RLock()
        super().__init__(self._build_requests())
        bodies = [body for each in given for body in read_manifest(each)]
        for body in sorted(bodies, key=lambda body: _ORDER.get(body["kind"], 2)):
            self._add(orjson.loads(orjson.dumps(body)), namespace)

    def __enter__(self) -> Self:
        self._before = current_client.get()
        current_client.set(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        current_client.set(self._before)

    @property
    def sync(self) -> SyncClient:
        """The client with the same methods for sync functions; each call waits for its result."""
        client = AsyncClient(self._build_requests())
        return SyncClient(client, _get_loop())

    async def children(
        self,
        parent: Mapping[str, Any] | pydantic.BaseModel,
        reconciler: Callable[..., Any],
        *,
        registry: OperatorRegistry | None = None,
    ) -> Children:
        """Return the argument ``children`` of a reconciler, for one call of it.

        ::

            await build(name="blog", spec=site.spec, children=await client.children(site, build))
            assert await client.get("services", "blog", namespace="default")

        Args:
            parent: an object that exists in this client.
            reconciler: the function with ``@webop.reconcile``.
            registry: where it is registered; by default ``webop.get_default_registry()``.

        Raises:
            TypeError: the function is no reconciler.
        """
        known = (registry or get_default_registry()).select_resource_handlers()
        found = (one for one in known if isinstance(one, ReconcileHandler) and one.fn is reconciler)
        if (handler := next(found, None)) is None:
            raise TypeError(f"{reconciler!r} is no function with @webop.reconcile.")
        raw = dump(parent) if isinstance(parent, pydantic.BaseModel) else parent
        meta, kind = raw["metadata"], (*raw["apiVersion"].split("/"), raw["kind"])
        body = Body(await self.get(kind, meta["name"], namespace=meta.get("namespace")))
        view, store, settings = ClusterView(), ChildStore(), OperatorSettings()
        view.update((await discover(self._requests)).resources)
        names = Names.build(None)
        for selector in handler.owns:
            for resource in selector.select(view.resources):
                for one in await self.list(resource, labels={names.owner: body.metadata["uid"]}):
                    store.note(resource.plural_name, None, one, names, is_read=False)
        operator: Any = SimpleNamespace(
            children=store, cluster_view=view, child_names=names, settings=settings
        )
        log = LocalObjectLogger(body=body, settings=settings)
        return Children(operator, [handler], body, log, client=self)

    def _build_requests(self) -> Client:
        vault = Vault({"fake": ConnectionInfo(server="https://fake.invalid")})
        return Client(
            vault,
            _Options(),
            transport_factory=lambda _: _Transport(self._server, self._lock),
        )

    def _add(self, body: Json, namespace: str) -> None:
        """Create an object with its status, and its namespace."""
        group, _, version = body["apiVersion"].rpartition("/")
        kinds = [kind for kind in self._server.kinds.list_served() if kind.kind == body["kind"]]
        found = [kind for kind in kinds if (kind.group, kind.version) == (group, version)]
        if not found:
            raise ConfigurationError(
                f"There is no kind {body['apiVersion']} {body['kind']}. Pass the class of the kind "
                "or its CustomResourceDefinition, too."
            )
        metadata = body.setdefault("metadata", {})
        path = f"/apis/{body['apiVersion']}" if group else f"/api/{version}"
        if found[0].namespaced:
            place = metadata.setdefault("namespace", namespace)
            if place not in self._server.get_objects("namespaces"):
                self._server.add_namespace(place)
            path = f"{path}/namespaces/{place}"
        path = f"{path}/{found[0].plural}"
        metadata.pop("resourceVersion", None)
        stored = self._request("POST", path, body)
        if "status" in body and found[0].has_status:
            whole = {**stored, "status": body["status"]}
            self._request("PUT", f"{path}/{stored['metadata']['name']}/status", whole)

    def _request(self, method: str, path: str, body: Json) -> Json:
        headers = {"content-type": "application/json"}
        response = self._server.handle(
            Request(method, path, {}, headers, orjson.dumps(body), "given")
        )
        if response.status >= 300:
            name = body["metadata"].get("name", "")
            raise ConfigurationError(
                f"{body['kind']} {name} cannot exist at the start: {response.body.get('message')}"
            )
        return response.body


@dataclass
class _Options:
    """See :class:`webop.client.http.sessions.NetworkOptions`."""

    error_backoffs: tuple[float, ...] = ()
    connect_timeout: float | None = None
    request_timeout: float | None = 60.0
    enforce_retry_after: bool = False
    trust_env: bool = False


def _list_other_kinds() -> list[Kind]:
    """Return the built-in kinds that the API server in memory has no schema for."""
    known = {(kind.group, kind.plural) for kind in BUILT_IN}
    return [
        Kind(
            one.group,
            one.version,
            one.plural,
            str(one.kind),
            namespaced=bool(one.namespaced),
            short_names=tuple(sorted(one.shortcuts)),
            subresources=tuple(one.subresources),
            counted=("spec",) if one.subresources else (),
            updates_without_version=True,
        )
        for one in list_builtin()
        if (one.group, one.plural) not in known
    ]


@functools.cache
def _get_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop in which sync clients send their requests, in a separate thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="webop-fake-client", daemon=True).start()
    return loop


class _Transport:
    """Requests to the API server in memory, from any thread."""

    def __init__(self, server: Cluster, lock: threading.RLock) -> None:
        self._server = server
        self._lock = lock

    async def send(self, request: transport.Request) -> transport.Response:
        """Send a request, wait for the head of its response."""
        await asyncio.sleep(0)  # others have their turn, as in a network
        parts = urlsplit(request.target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        lines = (line.partition(": ") for line in request.headers.decode().splitlines())
        headers = {name.lower(): value for name, _, value in lines}
        sent = Request(request.method, parts.path, query, headers, request.content)
        with self._lock:
            if query.get("watch") in ("true", "1"):
                begun = self._server.watch(sent)
                if isinstance(begun, Watch):
                    return _Events(begun)
                return _Content(begun)
            return _Content(self._server.handle(sent))

    async def aclose(self) -> None:
        """There is nothing to close."""


class _Content:
    """A response that is complete."""

    def __init__(self, response: Response) -> None:
        self.status = response.status
        extra = {name.lower().encode(): text.encode() for name, text in response.headers.items()}
        self.headers: Mapping[bytes, bytes] = _JSON | extra
        self._content = response.encode()

    async def receive(self) -> bytes:
        """Return the content, then nothing."""
        content, self._content = self._content, b""
        return content

    async def aclose(self) -> None:
        """There is nothing to close."""


class _Events:
    """The response to a watch: events as they come."""

    status = 200
    headers: Mapping[bytes, bytes] = _JSON

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        watch.on_event = self._wake

    async def receive(self) -> bytes:
        """Wait for the next events; nothing at the end."""
        while not self._watch.events and not self._watch.is_over:
            self._news.clear()
            await self._news.wait()
        events = [self._watch.events.popleft() for _ in range(len(self._watch.events))]
        return b"".join(orjson.dumps(event) + b"\n" for event in events)

    def _wake(self) -> None:
        """Note an event; the change can come from another thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    async def aclose(self) -> None:
        """End the watch."""
        self._watch.on_event = None
        self._watch.close()
