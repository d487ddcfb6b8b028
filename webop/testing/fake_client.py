"""A client of an API server in memory, for unit tests of handlers without a cluster.

Flow: :class:`FakeClient` is the client of handlers; its transport hands each request to the API
server of :mod:`webop.testing.apiserver`, in the process of the test. Nothing else is fake.

The name is the field's: client-go and controller-runtime call theirs a fake client.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Self, overload

import orjson
import pydantic

from webop.aio.clock import moved_clock
from webop.calls.execution import attempt
from webop.calls.shared_options import CallOptions
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.current_client import current_client
from webop.client.discovery import discover
from webop.client.http import transport
from webop.client.kinds import Kind as ObjectKind
from webop.client.objects import AsyncClient, Obj, SyncClient
from webop.client.standalone import Networking
from webop.context.child_store import ChildStore, Names
from webop.context.children import Children, SyncChildren
from webop.context.cluster_view import ClusterView
from webop.context.memos import Memo, Memos
from webop.controlplane.cluster_client import Manifest
from webop.errors import APINotFoundError
from webop.events.loggers import LocalObjectLogger
from webop.handlers.causes import ReconcileCause
from webop.handlers.model import ReconcileHandler
from webop.handlers.registry import OperatorRegistry, get_default_registry
from webop.models.fitting import dump
from webop.objects.body import Body
from webop.objects.fields import Json, convert_to_json
from webop.objects.patch import Patch
from webop.objects.resources import Resource
from webop.settings.groups import OperatorSettings
from webop.testing.apiserver import Cluster, Watch
from webop.testing.apiserver.garbage import GarbageCollector
from webop.testing.clock import Clock
from webop.testing.conversions import convert
from webop.testing.given import add_given
from webop.testing.played_controllers import (
    build_finished_status,
    build_ready_status,
    write_status,
)
from webop.testing.wire import JSON, Answer, parse_request


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

    Objects of several versions are converted by the functions with ``@webop.on.convert`` of
    ``webop.get_default_registry()``.

    Kubernetes' own kinds have their schemas and defaults. CEL rules need ``webop[test]``: a
    ``UserWarning`` names those that are not evaluated. There is no access control, and no handler
    is called: see docs/howto/testing_fake.md.

    Args:
        given: what exists at the start, as for ``LocalCluster.apply``: classes with
            ``@webop.models.resource`` (their kinds), objects as models or mappings, and paths of
            files with YAML. Objects keep their status. Their namespaces are created.
        namespace: the namespace of objects that name none: given ones, and parents of reconcilers.
            It exists from the start. Requests must name theirs, as on a cluster.
        now: the time at the start, with a time zone. It stands still until the test moves
            ``client.clock``. By default, it is the clock of the machine.
        garbage_collection: whether the dependents of deleted owners are deleted, at once.

    Attributes:
        clock: what ``webop.now()`` returns in :meth:`reconcile` and in a ``with`` block, and the
            time of ``creationTimestamp`` and ``deletionTimestamp``: a :class:`Clock`.

    Raises:
        ConfigurationError: a given object is invalid, or its kind is unknown.
        ValueError: ``now`` has no time zone.
    """

    def __init__(
        self,
        *given: Manifest,
        namespace: str = "default",
        now: dt.datetime | None = None,
        garbage_collection: bool = False,
    ) -> None:
        self.clock = Clock(now)
        self._server = Cluster(
            self._read_clock,
            random.Random(0),  # noqa: S311 - for the uids, which are the same in each run
            collects=garbage_collection,
            converter=convert,
        )
        self._collector = GarbageCollector(self._server) if garbage_collection else None
        self._lock = threading.RLock()
        self._blocks: list[contextlib.AbstractContextManager[None]] = []
        self._namespace = namespace
        self._settings, self._memos = OperatorSettings(), Memos(Memo())
        super().__init__(self._build_requests())
        add_given(self._server, given, namespace, converts=True)

    def __enter__(self) -> Self:
        self._blocks.append(block := self._be_current())
        block.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._blocks.pop().__exit__(None, None, None)

    @contextlib.contextmanager
    def _be_current(self) -> Iterator[None]:
        client, clock = current_client.get(), moved_clock.get()
        current_client.set(self)
        moved_clock.set(self._read_clock)
        try:
            yield
        finally:  # without tokens: a fixture can end its block in another context
            current_client.set(client)
            moved_clock.set(clock)

    @property
    def sync(self) -> SyncClient:
        """The client with the same methods for sync functions; each call waits for its result."""
        return self._build_client_of_threads().sync

    @overload
    async def children(
        self,
        parent: Mapping[str, Any] | pydantic.BaseModel,
        reconciler: Callable[..., Coroutine[Any, Any, Any]],
        *,
        registry: OperatorRegistry | None = None,
    ) -> Children: ...
    @overload
    async def children(
        self,
        parent: Mapping[str, Any] | pydantic.BaseModel,
        reconciler: Callable[..., Any],
        *,
        registry: OperatorRegistry | None = None,
    ) -> SyncChildren: ...
    async def children(
        self,
        parent: Mapping[str, Any] | pydantic.BaseModel,
        reconciler: Callable[..., Any],
        *,
        registry: OperatorRegistry | None = None,
    ) -> Children | SyncChildren:
        """Return the argument ``children`` of a reconciler, for one call of it.

        ::

            await build(name="blog", spec=site.spec, children=await client.children(site, build))
            assert await client.get("services", "blog", namespace="default")

        A function that is not async gets the methods without ``await``.

        Args:
            parent: an object that exists in this client.
            reconciler: the function with ``@webop.reconcile``.
            registry: where it is registered; by default ``webop.get_default_registry()``.

        Raises:
            TypeError: the function is no reconciler.
        """
        handler = _find_reconciler(reconciler, registry)
        _, body = await self._read(parent)
        children = await self._build_children(handler, body)
        return children if handler.is_async else children.sync

    async def reconcile(
        self,
        reconciler: Callable[..., Any],
        parent: Mapping[str, Any] | pydantic.BaseModel,
        *,
        because: Iterable[str] = ("created",),
        indexes: Mapping[str, Any] | None = None,
        registry: OperatorRegistry | None = None,
    ) -> Any:
        """Call a reconciler once for an object, with all its arguments, as an operator does.

        ::

            await client.reconcile(build, site)
            assert await client.get("services", "blog", namespace="default")

        The function gets the stored state of the object; one that is not async runs in a thread.
        What it writes in ``patch``, and a returned status, are stored, also if it raises an error.
        All calls for an object share one ``memo``. Filters of the decorator are not checked.

        Args:
            reconciler: the function with ``@webop.reconcile``.
            parent: an object that exists in this client.
            because: the argument ``because``.
            indexes: the indexes that it reads, by their names.
            registry: where it is registered; by default ``webop.get_default_registry()``.

        Returns:
            What the function has returned, such as a ``webop.again()``.

        Raises:
            TypeError: the function is no reconciler.
            Exception: what the function has raised.
        """
        handler = _find_reconciler(reconciler, registry)
        resource, body = await self._read(parent)
        has_generations = "status" in resource.subresources
        cause = ReconcileCause(
            logger=LocalObjectLogger(body=body, settings=self._settings),
            recall=lambda: self._memos.recall(body.metadata["uid"]),
            indices=indexes or {},
            resource=resource,
            body=body,
            patch=Patch(body=body, has_generations=has_generations),
            children=await self._build_children(handler, body),
            because=tuple(because),
        )
        with self._be_current():
            outcome = await attempt(handler, cause, None, CallOptions(self._settings))
            await self._write(resource, body, cause.patch)
        if outcome.exception is not None:
            raise outcome.exception
        return outcome.result

    async def make_ready(self, kind: ObjectKind, name: str, *, namespace: str | None = None) -> Obj:
        """Write the status that controllers write when all Pods of an object are ready.

        ::

            await client.make_ready("deployments.apps", "web", namespace="default")
            await client.wait_for("deployments.apps", "web", "Available", namespace="default")

        For Deployments, StatefulSets, DaemonSets (with one node), ReplicaSets, and Pods. The times
        in it are those of :attr:`clock`. No ReplicaSets and Pods are created.

        Returns:
            The object with its status.

        Raises:
            ValueError: it is of another kind.
            APINotFoundError: the object does not exist.
        """
        return await self._play(kind, name, namespace, build_ready_status)

    async def finish(
        self,
        kind: ObjectKind,
        name: str,
        *,
        namespace: str | None = None,
        succeeded: bool = True,
    ) -> Obj:
        """Write the status of a Job or a Pod that has finished.

        ::

            await client.finish("jobs.batch", "backup", namespace="default", succeeded=False)
            await client.wait_for("jobs.batch", "backup", "Failed", namespace="default")

        A failed Job has reached its ``backoffLimit``. The times are those of :attr:`clock`.

        Returns:
            The object with its status.

        Raises:
            ValueError: it is of another kind.
            APINotFoundError: the object does not exist.
        """
        build = functools.partial(build_finished_status, succeeded=succeeded)
        return await self._play(kind, name, namespace, build)

    def write_log(
        self,
        pod: str,
        text: str,
        *,
        namespace: str,
        container: str | None = None,
        previous: bool = False,
    ) -> None:
        """Add lines to the log that :meth:`logs` reads, as a container does.

        ::

            client.write_log("web-0", "ready", namespace="default")
            assert await client.logs("web-0", namespace="default") == ["ready"]

        The log ends there, also for ``follow=True``. It has no times, so ``since=`` does not count.
        Name the container if the pod has several.
        """
        self._server.logs.write(f"{namespace}/{pod}", text, container, is_previous=previous)

    async def _play(
        self,
        kind: ObjectKind,
        name: str,
        namespace: str | None,
        build: Callable[[Json, str], Json],
    ) -> Obj:
        """Write a status as a controller does."""
        resource = await self._find(kind, namespace, name)
        return await write_status(self, resource, name, namespace, build, self.clock.now)

    def _read_clock(self) -> dt.datetime:
        return self.clock.now

    async def _read(self, parent: Mapping[str, Any] | pydantic.BaseModel) -> tuple[Resource, Body]:
        """Return the kind and the stored state of an object."""
        raw = dump(parent) if isinstance(parent, pydantic.BaseModel) else parent
        resource = await self._find((*raw["apiVersion"].split("/"), raw["kind"]), None)
        meta = raw["metadata"]
        place = (meta.get("namespace") or self._namespace) if resource.namespaced else None
        return resource, Body(await self.get(resource, meta["name"], namespace=place))

    async def _build_children(self, handler: ReconcileHandler, body: Body) -> Children:
        view, store = ClusterView(), ChildStore()
        names = Names.build(None, self._settings.operator.name)
        view.update((await discover(self._requests)).resources)
        for selector in (*handler.owns, *handler.formerly_owns):
            for resource in selector.select(view.resources):
                for one in await self.list(resource, labels={names.owner: body.metadata["uid"]}):
                    store.note(resource.plural_name, None, one, names, is_read=False)
        operator: Any = SimpleNamespace(
            children=store, cluster_view=view, child_names=names, settings=self._settings
        )
        log = LocalObjectLogger(body=body, settings=self._settings)
        client = self if handler.is_async else self._build_client_of_threads()
        return Children(operator, [handler], body, log, client, is_reconciling=True)

    async def _write(self, resource: Resource, body: Body, patch: Patch) -> None:
        """Write the patch of a reconciler, unless the object is gone."""
        name, place = body.metadata["name"], body.metadata.get("namespace")
        try:
            newest = await self.get(resource, name, namespace=place)
        except APINotFoundError:
            return
        wanted = Patch(convert_to_json(patch), fns=patch.fns).as_json_patch(newest)
        status = [one for one in wanted if f"{one['path']}/".startswith("/status/")]
        status = status if "status" in resource.subresources else []
        rest = [one for one in wanted if one not in status]
        for part, operations in (("status", status), (None, rest)):
            if operations:
                await self.patch(resource, name, operations, namespace=place, subresource=part)

    def _build_client_of_threads(self) -> AsyncClient:
        """Return a client whose requests are sent in a separate thread: tests can wait for them."""
        return AsyncClient(self._build_requests(), loop=_get_loop())

    def _build_requests(self) -> Client:
        vault = Vault({"fake": ConnectionInfo(server="https://fake.invalid")})
        return Client(
            vault,
            Networking(),
            transport_factory=lambda _: _Transport(self._server, self._lock, self._collector),
        )


def _find_reconciler(
    function: Callable[..., Any], registry: OperatorRegistry | None
) -> ReconcileHandler:
    """Return the handler of a function.

    Raises:
        TypeError: the function is no reconciler.
    """
    known = get_default_registry() if registry is None else registry
    for one in known.select_resource_handlers():
        if isinstance(one, ReconcileHandler) and one.fn is function:
            return one
    name = getattr(function, "__qualname__", repr(function))
    where = "the default registry. Pass registry= if it is in another one"
    if registry is not None:
        where = "the given registry"
    raise TypeError(f"{name}() is no function with @webop.reconcile in {where}.")


@functools.cache
def _get_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop in which sync clients send their requests, in a separate thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="webop-fake-client", daemon=True).start()
    return loop


class _Transport:
    """Requests to the API server in memory, from any thread."""

    def __init__(
        self, server: Cluster, lock: threading.RLock, collector: GarbageCollector | None
    ) -> None:
        self._server = server
        self._lock = lock
        self._collector = collector

    async def send(self, request: transport.Request) -> transport.Response:
        """Send a request, wait for the head of its response."""
        await asyncio.sleep(0)  # others have their turn, as in a network
        sent = parse_request(request, "admin")
        with self._lock:
            if sent.is_watch:
                begun = self._server.watch(sent)
                if isinstance(begun, Watch):
                    return _Events(begun)
                return Answer(begun)
            response = self._server.handle(sent)
            if self._collector is not None:
                self._collector.run()
            return Answer(response)

    async def aclose(self) -> None:
        """There is nothing to close."""


class _Events:
    """The response to a watch: events as they come."""

    status = 200
    is_complete = False
    headers: Mapping[bytes, bytes] = JSON

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
