"""Operators run by tests against a real API server, and the objects that they are shown.

What a test needs: a :class:`Kind` served by the cluster, :class:`Objects` of it in a namespace of
its own, and :func:`operate`, which runs ``webop.operator()`` in the loop of the test. Everything
is waited for by conditions; nothing sleeps for luck.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import itertools
import operator
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

import webop
from tests.kit.waiting import PATIENCE, eventually
from webop import Resource
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.http.requests import Call
from webop.embedding import EmbeddingOptions
from webop.errors import APIConflictError, APINotFoundError, APITooManyRequestsError
from webop.events.loggers import EVENTS
from webop.handlers.model import ChangeHandler, ChildHandler, MappingHandler
from webop.settings.groups import NetworkingSettings

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Json = dict[str, Any]

PREFIX = "kopf.zalando.org"
DIFFBASE = f"{PREFIX}/last-handled-configuration"
FINALIZER = f"{PREFIX}/KopfFinalizerMarker"

CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", kind="CustomResourceDefinition"
)


_LONG_AGO = "2000-01-01T00:00:00Z"
_FENCE = "tests.webop.dev/fence"
_fences = itertools.count()


def get_connection(cluster: LocalCluster, server: str | None = None) -> ConnectionInfo:
    """Return the administrator's credentials, for another address of the server maybe."""
    return ConnectionInfo(
        server=server or cluster.server, ca_data=cluster.ca_data, token=cluster.token
    )


def build_tls(ca_data: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=base64.b64decode(ca_data).decode())


def open_http(cluster: LocalCluster, **options: Any) -> httpx.AsyncClient:
    """Return a plain HTTP client of the administrator, to see all of the answers."""
    return httpx.AsyncClient(
        base_url=cluster.server,
        headers={"Authorization": f"Bearer {cluster.token}"},
        verify=build_tls(cluster.ca_data),
        trust_env=False,
        **{"timeout": 30, **options},
    )


@contextlib.asynccontextmanager
async def connect(cluster: LocalCluster) -> AsyncIterator[Client]:
    vault = Vault({"test": get_connection(cluster)})
    async with Client(vault, NetworkingSettings()) as client:
        yield client


async def wait_served(client: Client, resource: Resource) -> None:
    # The server asks for a second (429), but is ready after some hundredths of one.
    early = (APIConflictError, APINotFoundError, APITooManyRequestsError)
    await eventually(lambda: _backdate(client, resource), f"{resource} there", ignoring=early)
    call = Call("GET", resource.get_url(), is_retried=False)
    await eventually(lambda: client.perform(call), f"{resource} served", ignoring=early)


async def undefine(client: Client, resource: Resource) -> None:
    """Remove a definition, if it is there, with all objects; wait until it is not served."""
    name = f"{resource.plural}.{resource.group}"
    with contextlib.suppress(APINotFoundError):
        await client.delete(CRDS, None, name)

    async def is_gone() -> bool:
        for path in (CRDS.get_url(name=name), resource.get_url()):  # the latter a moment later
            with contextlib.suppress(APINotFoundError):
                await client.request("GET", path)
                return False
        return True

    await eventually(is_gone, f"{resource} gone")


async def _backdate(client: Client, resource: Resource) -> bool:
    """Let a definition look established for long; return whether it is established at all.

    In the two seconds after that, an API server takes two seconds for each creation, because other
    API servers may not serve the kind yet. In a cluster of tests there are no others.
    """
    name = f"{resource.plural}.{resource.group}"
    found = await client.get(CRDS, None, name)
    conditions = (found.get("status") or {}).get("conditions") or []
    if ("Established", "True") not in {(each["type"], each["status"]) for each in conditions}:
        return False
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    conditions = [{**each, "lastTransitionTime": _LONG_AGO} for each in conditions]
    patch = {"metadata": version, "status": {"conditions": conditions}}
    await client.patch(CRDS, None, name, patch, "status")
    return True


@dataclass(frozen=True)
class Kind:
    """A custom resource of a test: ``widgets`` unless it says otherwise.

    Kinds of other groups need other names: ``widgets`` alone would be ambiguous in the cluster.
    """

    group: str
    plural: str = "widgets"
    kind: str = "Widget"
    has_status: bool = False
    keeps_status: bool = True
    shortcut: str = ""

    @property
    def resource(self) -> Resource:
        return Resource(self.group, "v1", self.plural, kind=self.kind, namespaced=True)

    @property
    def crd_name(self) -> str:
        return f"{self.plural}.{self.group}"

    def build_crd(self) -> Json:
        """Return the definition (Kubernetes API, apiextensions/v1)."""
        loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        properties = {"spec": loose, **({"status": loose} if self.keeps_status else {})}
        names: Json = {"plural": self.plural, "kind": self.kind, "singular": self.kind.lower()}
        if self.shortcut:
            names["shortNames"] = [self.shortcut]
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.crd_name},
            "spec": {
                "group": self.group,
                "scope": "Namespaced",
                "names": names,
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
                        "subresources": {"status": {}} if self.has_status else {},
                    }
                ],
            },
        }

    async def define(self, client: Client) -> None:
        """Put the definition into the cluster, and wait until it is served.

        Another worker of the test run may have put it there.
        """
        with contextlib.suppress(APIConflictError):
            await client.create(CRDS, None, self.build_crd())
        await self.wait_served(client)

    async def wait_served(self, client: Client) -> None:
        await wait_served(client, self.resource)

    async def undefine(self, client: Client) -> None:
        """Remove the definition with all of its objects, and wait until it is not served."""
        await undefine(client, self.resource)


def define_kinds(cluster: LocalCluster, kinds: Iterable[Kind]) -> Iterator[Kind]:
    """Define kinds for tests, all at once."""
    made = list(kinds)

    async def define() -> None:
        async with connect(cluster) as client:
            await asyncio.gather(*(kind.define(client) for kind in made))

    asyncio.run(define())
    return iter(made)


@dataclass
class Objects:
    """The objects of a kind in a namespace, by the word of the API server."""

    client: Client
    kind: Kind
    namespace: str

    def __post_init__(self) -> None:
        self.resource = self.kind.resource

    async def create(self, name: str, spec: Json | None = None, **metadata: Any) -> Json:
        """Create an object; ``status`` is not a part of it."""
        body = {
            "apiVersion": self.resource.api_version,
            "kind": self.kind.kind,
            "metadata": {"name": name, **metadata},
            "spec": spec or {},
        }
        return await self.client.create(self.resource, self.namespace, body)

    async def make(self, name: str, spec: Json | None = None, **metadata: Any) -> Json:
        """Create an object, and wait until it is handled."""
        await self.create(name, spec, **metadata)
        return await self.wait_handled(name)

    async def change(self, name: str, patch: Json) -> Json:
        """Apply a merge patch, and wait until the new state is handled."""
        await self.patch(name, patch)
        return await self.wait_handled(name)

    async def remove(self, name: str) -> None:
        """Ask for the deletion, and wait for the end of the object."""
        await self.delete(name)
        await self.wait_gone(name)

    async def get(self, name: str) -> Json:
        return await self.client.get(self.resource, self.namespace, name)

    async def patch(self, name: str, patch: Json, subresource: str | None = None) -> Json:
        patched = await self.client.patch(self.resource, self.namespace, name, patch, subresource)
        assert patched is not None, f"{name} is gone"
        return patched

    async def delete(self, name: str) -> None:
        await self.client.delete(self.resource, self.namespace, name)

    async def pass_fence(self) -> None:
        """Wait until the operator has seen all that has happened to the objects before.

        An object for nobody but :func:`operate` itself is created and handled: events come in
        order, so those before it have been taken in.
        """
        name = f"fence-{next(_fences)}"
        await self.create(name, labels={_FENCE: "yes"})
        await self.wait_handled(name)

    async def pass_first_list(self, calls: Calls) -> None:
        """Wait until what is created is no part of the first list, and so is not resumed.

        Needs a handler "resumed", which notes its calls. A fence can be handled from that list.
        """
        is_listed = True
        while is_listed:
            before = len(calls)
            await self.pass_fence()
            is_listed = any(call["handler"] == "resumed" for call in calls.items[before:])

    async def exists(self, name: str) -> bool:
        try:
            await self.get(name)
        except APINotFoundError:
            return False
        return True

    async def wait(
        self, name: str, condition: Callable[[Json], Any], timeout: float = PATIENCE
    ) -> Json:
        look = functools.partial(self.get, name)
        body: Json = await eventually(look, f"{name} as expected", timeout, check=condition)
        return body

    async def wait_handled(self, name: str) -> Json:
        """Wait until the present spec of an object is stored as handled, with no progress left."""
        return await self.wait(name, is_handled)

    async def wait_gone(self, name: str, timeout: float = PATIENCE) -> None:
        look = functools.partial(self.exists, name)
        await eventually(look, f"the end of {name}", timeout, check=operator.not_)


def get_annotations(body: Json) -> Json:
    annotations: Json = body["metadata"].get("annotations") or {}
    return annotations


def get_progress(body: Json) -> Json:
    """Return the texts of the progress records of an object by the ids of handlers."""
    return {
        key.removeprefix(f"{PREFIX}/"): text
        for key, text in get_annotations(body).items()
        if key.startswith(f"{PREFIX}/") and key != DIFFBASE
    }


def has_finalizer(body: Json) -> bool:
    """Tell whether an object has the finalizer of webop."""
    return FINALIZER in body["metadata"].get("finalizers", ())


def is_handled(body: Json) -> bool:
    """Tell whether the present spec of an object is stored as handled, with no progress left."""
    stored = webop.AnnotationsDiffBaseStorage().fetch(body=webop.Body(body))
    return (
        isinstance(stored, dict) and stored.get("spec") == body["spec"] and not get_progress(body)
    )


@dataclass
class Calls:
    items: list[Json] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Json]:
        return iter(self.items)

    def note(self, handler: str, kwargs: Json, **more: Any) -> None:
        """Take note of a call: the handler, the object, and what of the arguments is of use."""
        names = ("reason", "old", "new", "retry")
        chosen: Json = {key: kwargs[key] for key in names if key in kwargs}
        spec = dict(kwargs["spec"]) if "spec" in kwargs else None
        self.items.append(
            {"handler": handler, "name": kwargs.get("name"), "spec": spec, **chosen, **more}
        )

    def noting(self, handler: str, released: asyncio.Event | None = None) -> Callable[..., Any]:
        """Return a handler that notes its calls, and goes on until it is released."""

        async def fn(**kwargs: Any) -> None:
            self.note(handler, kwargs)
            if released is not None:
                await released.wait()

        return fn

    def of(self, name: str, handler: str | None = None) -> list[Json]:
        """Return the calls about an object, of one handler maybe."""
        return [c for c in self.items if c["name"] == name and handler in (None, c["handler"])]

    def handlers(self, name: str) -> list[str]:
        return [call["handler"] for call in self.of(name)]

    async def wait(self, name: str, handler: str | None = None, count: int = 1) -> list[Json]:
        what = f"call {count} of {handler or 'a handler'} for {name} (so far: {self.items})"
        await eventually(lambda: len(self.of(name, handler)) >= count, what)
        return self.of(name, handler)


@dataclass
class Running:
    tasks: Collection[asyncio.Task[None]]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


RunOperator = Callable[..., contextlib.AbstractAsyncContextManager[Running]]


def build_settings(**sections: Json) -> webop.OperatorSettings:
    """Return settings with which an operator is quiet, and others as they are given."""
    settings = webop.OperatorSettings()
    settings.posting.enabled = False
    settings.admission.shutdown_delay = 0
    for section, values in sections.items():
        for name, value in values.items():
            setattr(getattr(settings, section), name, value)
    return settings


@contextlib.asynccontextmanager
async def operate(
    info: ConnectionInfo,
    registry: webop.OperatorRegistry,
    settings: webop.OperatorSettings | None = None,
    *,
    beside: bool = False,
    **options: Any,
) -> AsyncIterator[Running]:
    """Run an operator; it is stopped at the end of the block.

    To be used in the test itself: an operator ends the tasks that were started after it, and
    pytest runs the ends of fixtures in tasks of their own.

    Args:
        info: the credentials.
        registry: the handlers; one for fences is added.
        settings: by default, those of :func:`build_settings`.
        beside: whether there is another operator in the same loop, whose tasks are to be spared.
        options: more of those of ``webop.operator()``.
    """
    _declare_fences(registry)
    ready = asyncio.Event()
    chosen: EmbeddingOptions = {
        "registry": registry,
        "settings": settings or build_settings(),
        "vault": Vault({"test": info}),
        "ready_flag": ready,
        "standalone": True,
    }
    chosen.update(options)  # type: ignore[typeddict-item]
    if beside:
        tasks = await webop.spawn_tasks(**chosen)
    else:
        tasks = [asyncio.create_task(webop.operator(**chosen), name="operator under test")]
    waiter = asyncio.create_task(ready.wait())
    await asyncio.wait({*tasks, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    running = Running(tasks)
    try:
        yield running
    finally:
        await running.stop()
        for task in tasks:
            if not task.cancelled() and (exc := task.exception()) is not None:
                raise exc


def is_no_fence(labels: Mapping[str, str], **_: Any) -> bool:
    """Tell whether an object is not one of :meth:`Objects.pass_fence`: for ``when=``."""
    return _FENCE not in labels


def _declare_fences(registry: webop.OperatorRegistry) -> None:
    handlers = registry.select_resource_handlers()
    is_enough = all(handler.metadata_only for handler in handlers)
    others = {one.selector for one in handlers if isinstance(one, ChildHandler | MappingHandler)}
    for selector in registry.collect_selectors() - others:
        registry.append(
            ChangeHandler(
                id="fence",
                fn=do_nothing,
                selector=selector,
                reason=webop.Reason.CREATE,
                labels={_FENCE: webop.PRESENT},
                metadata_only=is_enough,
            )
        )


async def do_nothing(**_: Any) -> None:
    """Be a handler."""


async def wait_for_events(
    objects: Objects, name: str, condition: Callable[[list[Json]], Any]
) -> list[Json]:
    """Wait until the events about an object are as they should be, oldest first."""

    async def look() -> list[Json]:
        found: list[Json] = []
        async for page in objects.client.list_pages(EVENTS, objects.namespace):
            found += [e for e in page.items if e["involvedObject"].get("name") == name]
        return sorted(found, key=lambda event: str(event["eventTime"]))

    events: list[Json] = await eventually(look, "the events", check=condition)
    return events
