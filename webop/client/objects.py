"""The client of handlers and scripts: objects by the names of their kinds, async and sync.

Handlers get it as ``client``. It sends requests through :class:`webop.client.api.Client`, with the
credentials, connections, retries and timeouts of the operator, but in a separate queue.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from webop.aio.concurrency import find_running_loop
from webop.client.auth.exec_plugins import current_login
from webop.client.changes import Change, Comparison, follow
from webop.client.current_client import current_client
from webop.client.http.requests import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    Call,
    Selection,
    encode_body,
    encode_yaml,
    select_name,
    strip_object,
)
from webop.client.items import Items
from webop.client.kinds import Kind, KindName, Kinds
from webop.client.pod_logs import LogOptions, read_log
from webop.client.waiting import describe
from webop.client.watch import ListingFinished, WatchOptions, WatchStatus, watch
from webop.client.watch_recovery import UsualOptions
from webop.errors import (
    APIConnectionError,
    APINotFoundError,
    APITimeoutError,
    LoginError,
    MisfitError,
)
from webop.models.definitions import is_class, is_instance
from webop.models.fitting import dump, dump_set, fit
from webop.objects.patch import Patch
from webop.objects.resources import Resource, Selector, select_objects
from webop.objects.status_conditions import meets

if TYPE_CHECKING:
    from pydantic import BaseModel

    from webop.client.api import Client

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound="BaseModel")
S_co = TypeVar("S_co", covariant=True)

Obj: TypeAlias = dict[str, Any]
"""An object as the API server sends it, without its ``metadata.managedFields``."""

Condition: TypeAlias = str | Callable[[Obj], object]

# Seconds. API servers end requests after one minute themselves; only a connection hangs longer.
_TIMEOUT = 60.0

_PODS = Resource("", "v1", "pods", namespaced=True)


class _InNamespace(TypedDict, total=False):
    namespace: str | None


class _WithTimeout(_InNamespace, total=False):
    timeout: float | None


class _Part(_InNamespace, total=False):
    subresource: str | None


class _Reading(_Part, total=False):
    managed_fields: bool


class _Creating(_Part, total=False):
    kind: KindName | None
    name: str | None


class _Owning(_InNamespace, total=False):
    field_manager: str | None
    force: bool


class _Applying(_Owning, _Part, total=False):
    pass


class _Selecting(_InNamespace, total=False):
    labels: Mapping[str, str] | str | None
    fields: Mapping[str, str] | str | None


class _Watching(_Selecting, total=False):
    on_listed: Callable[[], object]


class DeleteOptions(TypedDict, total=False):
    """How an object is deleted (Kubernetes API, meta/v1 DeleteOptions)."""

    propagation: Literal["Background", "Foreground", "Orphan"]
    """How the objects that it owns are deleted: "Background" (after it), "Foreground" (before it),
    or "Orphan" (not at all)"""
    grace_period: int
    """How long pods have to end, in seconds"""
    uid: str
    """Delete the object only if it has this uid (otherwise 409)"""
    resource_version: str
    """Delete the object only if it has this version (otherwise 409)"""


class AsyncClient:
    """Requests to the API server about objects, for async functions.

    ::

        pod = await client.get("pods", "web-0", namespace="default")
        change = {"spec": {"replicas": 3}}
        await client.patch("deployments", "web", change, namespace="default")

    Name kinds as in decorators: "pods", "Pod", "po", "deployments.apps", "apps/v1/deployments",
    ("apps", "v1", "deployments"), or pass the argument ``resource`` of a handler. Subresources are
    names such as "status" or "scale".

    Guarantees:
        - Network errors, 5xx, and 429 with ``Retry-After`` are retried after the pauses in
          ``settings.networking``, unless the request can have been executed and repeating it would
          do harm (docs/howto/client.md, "Errors"). The error says so.
        - Of each sort of handlers (of changes and events; daemons and timers; reviews; others, such
          as probes), at most 16 requests are in flight; others wait.
        - Each attempt ends after 60 s at the latest, waiting not included.
        - In reviews of dry runs, the API server stores nothing: all requests are dry runs.

    All methods raise ``webop.errors.APIError`` (``APINotFoundError``, ``APIConflictError``, …) if
    the API server refuses the request or cannot be reached, ``webop.LoginError`` if there are no
    credentials, ``webop.errors.ConfigurationError`` if several kinds have the name, and TypeError
    or ValueError for invalid arguments.

    Caveats:
        The first attempt can have succeeded although its response was lost. So a retried creation
        can conflict with itself; the error says that there was an earlier attempt.

    Attributes:
        queue: the queue of its requests; they share a limit.
        is_dry: whether it is for the review of a dry run.

    It calls ``on_use`` before each request, so that an operator logs in only when necessary. It
    belongs to the event loop in which it was entered, or to the given one.
    """

    def __init__(
        self,
        requests: Client,
        *,
        get_manager: Callable[[], str] = lambda: "webop",
        on_use: Callable[[], None] = lambda: None,
        loop: asyncio.AbstractEventLoop | None = None,
        watching: WatchOptions | None = None,
    ) -> None:
        self._requests = requests
        self._watching = watching or UsualOptions()
        self._get_manager = get_manager
        self._on_use = on_use
        self._kinds = Kinds(requests)
        self._loop = loop
        self._shares: dict[tuple[str, bool], AsyncClient] = {}
        self.queue = "handlers"
        self.is_dry = False

    def enter(self) -> None:
        """Become the client of the current context."""
        self._loop = asyncio.get_running_loop()
        current_client.set(self)

    def share(self, queue: str, *, is_dry: bool = False) -> AsyncClient:
        """Return the same client with another queue: one whose requests do not wait for these."""
        if (client := self._shares.get((queue, is_dry))) is None:
            client = self._shares[queue, is_dry] = copy.copy(self)
            client.queue, client.is_dry = queue, is_dry
        return client

    @property
    def timeout(self) -> float:
        """The limit for one attempt of a request, in seconds."""
        return min(_TIMEOUT, self._requests.options.request_timeout or _TIMEOUT)

    @property
    def sync(self) -> SyncClient:
        """The client with the same methods for functions that run in threads."""
        return SyncClient(self, self._loop or asyncio.get_running_loop())

    @overload
    async def get(self, kind: type[M], name: str, **options: Unpack[_InNamespace]) -> M: ...
    @overload
    async def get(self, kind: KindName, name: str, **options: Unpack[_Reading]) -> Obj: ...
    async def get(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        managed_fields: bool = False,
    ) -> Any:
        """Return an object, or its subresource.

        ::

            pod = await client.get("pods", "web-0", namespace="default")
            database = await client.get(Database, "main", namespace="default")  # a model

        With ``managed_fields``, it has its ``metadata.managedFields``: who has set which fields.

        Raises:
            APINotFoundError: the object does not exist.
        """
        path = await self._locate(kind, namespace, name, subresource)
        found = await self._send("GET", path, keeps_managed_fields=managed_fields)
        return found if subresource else fit_kind(kind, found)

    @overload
    def list(self, kind: type[M], **options: Unpack[_Selecting]) -> Items[M]: ...
    @overload
    def list(self, kind: KindName, **options: Unpack[_Selecting]) -> Items[Obj]: ...
    def list(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | str | None = None,
        fields: Mapping[str, str] | str | None = None,
    ) -> Items[Any]:
        """Return all objects of a kind, or those that match; read in pages of 500.

        ::

            pods = await client.list("pods", namespace="default", labels={"app": "web"})
            async for pod in client.list("pods"):  # with one page in memory
                print(pod["metadata"]["name"])

        Labels and fields are mappings, or selectors such as ``"app in (a, b), !old"``. Kubernetes
        supports only some fields of a kind. Without a namespace, the whole cluster is read.

        The objects are as of one moment. If reading takes longer than the API server keeps that
        state, 5 minutes, the rest is as of a later one.
        """
        return Items(self._read_pages(kind, namespace, build_selector(labels, fields)))

    async def has_uid(self, kind: KindName, uid: str, *, namespace: str | None = None) -> bool:
        """Return whether a kind has an object with this uid.

        ::

            if not await client.has_uid("pods", uid, namespace="default"):
                ...

        API servers find no objects by their uids: the metadata of all objects are read, in pages.
        """
        reading = self._read_pages(kind, namespace, Selection(is_partial=True))
        async with aclosing(reading) as objects:
            async for item in objects:
                if item["metadata"].get("uid") == uid:
                    return True
        return False

    @overload
    def watch(
        self, kind: type[M], **options: Unpack[_Watching]
    ) -> AsyncGenerator[Change[M], None]: ...
    @overload
    def watch(
        self, kind: KindName, **options: Unpack[_Watching]
    ) -> AsyncGenerator[Change[Obj], None]: ...
    async def watch(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | str | None = None,
        fields: Mapping[str, str] | str | None = None,
        on_listed: Callable[[], object] = lambda: None,
    ) -> AsyncGenerator[Change[Any], None]:
        """Yield all objects of a kind, or those that match, and then their changes, forever.

        ::

            async for change in client.watch("pods", namespace="default"):
                print(change.type, change.object["metadata"]["name"])

        Guarantees:
            - Objects that exist at the start come first, as "ADDED". After all of them,
              ``on_listed`` is called once.
            - Disconnects, silent connections, restarts of the API server, and a lost history (410
              Gone) do not end it. Webop reports the differences as usual changes then, and no
              change twice. States in between can be missing.
            - Objects that leave the selection, or no longer fit their model, come as "DELETED".
              Those that never fit do not come; the log names them.

        Caveats:
            It keeps the last state of each object in memory, as JSON.

        Raises:
            APIError: the watch cannot begin: a missing permission, kind or selector. Later, webop
                logs such errors and tries again.
            LoginError: there are no credentials any more.
        """
        resource = await self._find(kind, namespace)
        comparison = Comparison(lambda raw: fit_kind(kind, strip_object(raw)))
        selection, status = build_selector(labels, fields), WatchStatus(gives_up=True)
        items = watch(self._requests, resource, namespace, self._watching, status, selection)
        is_listed = False
        async with aclosing(items):
            with self._noticing_absence():
                async for item in items:
                    for change in comparison.compare(item):
                        yield change
                    if isinstance(item, ListingFinished) and not is_listed:
                        is_listed = True
                        on_listed()

    def logs(
        self, pod: str, *, namespace: str | None = None, **options: Unpack[LogOptions]
    ) -> Items[str]:
        """Return the lines of the log of a container, without their line ends.

        ::

            lines = await client.logs("web-0", namespace="default", tail=100)
            async for line in client.logs("web-0", namespace="default", follow=True):
                print(line)

        With ``follow``, they end with the container, or when the API server or the kubelet ends the
        stream. A connection that is lost after the first line is an error: lines can be missing.

        Raises:
            APINotFoundError: the pod does not exist, or its node.
            APIStatusError: the container has not started, or there was none before (400), or the
                API server cannot reach the node (500); the message says why.
        """
        if unknown := options.keys() - LogOptions.__annotations__.keys():
            raise TypeError(f"logs() has no option {', '.join(sorted(unknown))}.")
        locate = functools.partial(self._locate, _PODS, namespace, pod, "log")
        return Items(read_log(self._requests, locate, options, self.timeout))

    @overload
    async def create(self, body: M, **options: Unpack[_InNamespace]) -> M: ...
    @overload
    async def create(self, body: Mapping[str, Any], **options: Unpack[_Creating]) -> Obj: ...
    async def create(
        self,
        body: Mapping[str, Any] | BaseModel,
        *,
        namespace: str | None = None,
        kind: Kind | None = None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> Any:
        """Create an object, and return it as it is in the cluster.

        ::

            page = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}}
            created = await client.create(page, namespace="default")

        Pass the kind, name and subresource only to create a subresource of an existing object:
        ``create(eviction, kind="pods", name="web-0", subresource="eviction")``. The default
        namespace is that of the metadata.

        Raises:
            APIConflictError: an object of this name exists.
        """
        raw = dump(body) if is_instance(body) else body
        place = namespace or _get(raw, "namespace")
        is_new = not subresource
        path = await self._locate(kind or _select(raw), place, name, subresource, is_new=is_new)
        return fit_kind(type(body), await self._send("POST", path, body=raw))

    @overload
    async def replace(self, body: M, **options: Unpack[_InNamespace]) -> M: ...
    @overload
    async def replace(self, body: Mapping[str, Any], **options: Unpack[_Part]) -> Obj: ...
    async def replace(
        self,
        body: Mapping[str, Any] | BaseModel,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Any:
        """Replace an object that you have read, and return its new state (PUT).

        ::

            pod = await client.get("pods", "web-0", namespace="default")
            pod["metadata"].setdefault("labels", {})["tier"] = "web"
            pod = await client.replace(pod)

        All fields that the body does not have are removed, also those that a model does not know.

        Raises:
            APIConflictError: the object has changed since: read it again.
            APINotFoundError: it does not exist.
            ValueError: the body has no name, or no resource version.
        """
        raw = dump(body) if is_instance(body) else body
        name, place = _get(raw, "name"), namespace or _get(raw, "namespace")
        if not (name and _get(raw, "resourceVersion")):
            raise ValueError(
                "replace() needs metadata.name and metadata.resourceVersion: read the object with "
                "get(), change it, and replace it. To write some fields only, use apply() or "
                "patch()."
            )
        path = await self._locate(_select(raw), place, name, subresource)
        return fit_kind(type(body), await self._send("PUT", path, body=raw))

    @overload
    async def apply(self, body: M, **options: Unpack[_Owning]) -> M: ...
    @overload
    async def apply(self, body: Mapping[str, Any], **options: Unpack[_Applying]) -> Obj: ...
    async def apply(
        self,
        body: Mapping[str, Any] | BaseModel,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Any:
        """Set fields of an object, or create it if it does not exist (server-side apply).

        ::

            meta = {"name": "settings", "namespace": "prod"}
            config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
            await client.apply({**config, "data": {"mode": "fast"}})

        Applied fields belong to the field manager. Fields that the same manager applied before and
        leaves out now are removed. All other fields stay.

        Args:
            body: the object with its apiVersion, kind, name, and the fields to set.
            namespace: its namespace; by default, that of the metadata.
            subresource: such as "status".
            field_manager: by default ``settings.networking.field_manager``. If you apply different
                parts of one object separately, use a different manager for each part.
            force: take over fields of other managers.

        Raises:
            APIConflictError: fields of other managers would change; the message names both.
        """
        raw = dump_set(body) if is_instance(body) else body
        name, place = _get(raw, "name"), namespace or _get(raw, "namespace")
        if not name:
            raise ValueError("apply() needs a name in metadata.name.")
        params = {"force": "true" if force else "false"}
        if field_manager is not None:
            params["fieldManager"] = field_manager
        path = await self._locate(_select(raw), place, name, subresource)
        found = await self._send("PATCH", path, params=params, body=raw, content_type=APPLY_PATCH)
        return fit_kind(type(body), found)

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Obj:
        """Change an object, and return its new state.

        ::

            change = {"spec": {"replicas": 3}}
            await client.patch("deployments", "web", change, namespace="default")

        A mapping is a merge patch (RFC 7396), a list is a JSON patch (RFC 6902).

        Raises:
            APINotFoundError: the object does not exist.
            APIUnprocessableError: a test of a JSON patch fails, or the result is not valid.
            TypeError: the patch has functions, as those of ``patch.status.set_condition()``.
        """
        if isinstance(patch, Patch) and patch.fns:
            raise TypeError(
                "client.patch() cannot send the functions of a patch, such as set_condition(). "
                "Send patch.as_json_patch(body), for a body that you have read."
            )
        is_merge = isinstance(patch, Mapping)
        body = patch if is_merge else list(patch)
        content_type = MERGE_PATCH if is_merge else JSON_PATCH
        path = await self._locate(kind, namespace, name, subresource)
        return await self._send("PATCH", path, body=body, content_type=content_type)

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        missing_ok: bool = False,
        **options: Unpack[DeleteOptions],
    ) -> None:
        """Request the deletion of an object. It exists until its finalizers are removed.

        Use ``wait_gone`` to wait for that. With ``missing_ok``, the object need not exist.

        Raises:
            APINotFoundError: the object does not exist, without ``missing_ok``.
            APIConflictError: it has another ``uid`` or ``resource_version``.
        """
        if unknown := options.keys() - DeleteOptions.__annotations__.keys():
            raise TypeError(f"delete() has no option {', '.join(sorted(unknown))}.")
        preconditions = {
            "uid": options.get("uid"),
            "resourceVersion": options.get("resource_version"),
        }
        body: Obj = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": options.get("propagation"),
            "gracePeriodSeconds": options.get("grace_period"),
            "preconditions": preconditions if any(preconditions.values()) else None,
            "dryRun": ["All"] if self.is_dry else None,
        }
        try:
            path = await self._locate(kind, namespace, name)
            await self._send("DELETE", path, body=body)
        except APINotFoundError as exc:
            if not (missing_ok and exc.details.get("name")):
                raise

    @overload
    async def wait_for(
        self, kind: type[M], name: str, condition: Condition, **options: Unpack[_WithTimeout]
    ) -> M: ...
    @overload
    async def wait_for(
        self, kind: KindName, name: str, condition: Condition, **options: Unpack[_WithTimeout]
    ) -> Obj: ...
    async def wait_for(
        self,
        kind: Kind,
        name: str,
        condition: Condition,
        *,
        namespace: str | None = None,
        timeout: float | None = 60.0,
    ) -> Any:
        """Wait until an object meets a condition, and return it. It need not exist yet.

        ::

            await client.wait_for("pods", "web-0", "Ready", namespace="default")

        The condition is the type of a condition in the status, such as "Ready" or "Ready=False"; or
        a function that gets the object and returns something true. The timeout is in seconds; None
        means no limit.

        Raises:
            APITimeoutError: the timeout has expired; the message has the last known state.
        """

        def holds(obj: Obj | None) -> object:
            if obj is None:
                return False
            if isinstance(condition, str):
                return meets(obj, condition)
            result = condition(obj)
            if asyncio.iscoroutine(result):
                result.close()
                raise TypeError("The condition of wait_for() must not be an async function.")
            return result

        wish = condition if isinstance(condition, str) else "as expected"
        found = await self._wait(kind, name, namespace, timeout, holds, wish)
        return fit_kind(kind, found or {})

    async def wait_gone(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        timeout: float | None = 60.0,
    ) -> None:
        """Wait until an object does not exist. The timeout is in seconds; None means no limit.

        Raises:
            APITimeoutError: the timeout has expired.
        """
        await self._wait(kind, name, namespace, timeout, lambda obj: obj is None, "gone")

    async def _wait(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        timeout: float | None,
        is_over: Callable[[Obj | None], object],
        wish: str,
    ) -> Obj | None:
        said = kind.__name__ if isinstance(kind, type) else kind
        what = f"{said} {name!r}" + (f" in namespace {namespace!r}" if namespace else "")
        obj: Obj | None = None
        # A page comes from etcd at once; a streaming list waits for the cache of the API server.
        is_known, status = False, WatchStatus(gives_up=True, prefers_pages=True)
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                resource = await self._find(kind, namespace, name)
                own = self._watching, status, select_name(name)
                items = watch(self._requests, resource, namespace, *own)
                async with aclosing(items):
                    with self._noticing_absence():
                        async for state, *_ in follow(items):
                            obj = None if state is None else strip_object(state)
                            is_known = True
                            if is_over(obj):
                                return obj
        except TimeoutError:
            if not deadline.expired():
                raise
        how = describe(obj, wish) if is_known else "the API server did not respond"
        how += f". {status.error}" if status.error else ""
        raise APITimeoutError(f"{what} is not {wish} after {timeout:g} s: {how}.")

    async def _read_pages(
        self, kind: Kind, namespace: str | None, selection: Selection
    ) -> AsyncGenerator[Any, None]:
        """Yield the objects of a list; no more than a page of them is in memory."""
        resource = await self._find(kind, namespace)
        limits = {"queue": self.queue, "timeout": self.timeout}
        pages = self._requests.list_to_the_end(resource, namespace, selection, **limits)
        with self._noticing_absence():
            async with aclosing(pages):
                async for page in pages:
                    page.items.reverse()
                    while page.items:
                        yield fit_kind(kind, strip_object(page.items.pop()))

    async def _find(
        self, kind: Kind | Selector, namespace: str | None, *names: str | None
    ) -> Resource:
        """Return the resource of a kind; let the operator log in."""
        if current_login.get() is not None:
            raise LoginError(
                "A login handler cannot use the client: the client needs the credentials that the "
                "login handler returns."
            )
        if self._loop not in (None, asyncio.get_running_loop()):
            raise RuntimeError(
                "This client belongs to another event loop. In threads, use client.sync."
            )
        self._on_use()
        resource = await self._kinds.find(kind)
        for part in (*(() if namespace is None else (namespace,)), *names):
            if not isinstance(part, str) or part in {"", ".", ".."} or {"/", "%"} & set(part):
                raise ValueError(f"{part!r} is not a valid name or namespace for {resource.name}.")
        return resource

    async def _locate(
        self,
        kind: Kind | Selector,
        namespace: str | None,
        name: str | None,
        subresource: str | None = None,
        *,
        is_new: bool = False,
    ) -> str:
        resource = await self._find(kind, namespace, *(() if is_new else (name,)))
        if resource.namespaced and namespace is None:
            text = f"{resource.name} {name or ''}".rstrip()
            raise ValueError(f"{text} is in a namespace: pass it as namespace=.")
        return resource.get_url(namespace=namespace, name=name, subresource=subresource)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = JSON,
        keeps_managed_fields: bool = False,
    ) -> Obj:
        query = dict(params or {})
        if method in ("POST", "PUT", "PATCH"):
            query.setdefault("fieldManager", self._get_manager())
            query |= {"dryRun": "All"} if self.is_dry else {}
        encode = encode_yaml if content_type == APPLY_PATCH else encode_body
        content = None if body is None else encode(body)
        call = Call(
            method,
            path,
            query or None,
            content,
            content_type,
            timeout=self.timeout,
            queue=self.queue,
        )
        with self._noticing_absence():
            found: Obj = await self._requests.perform(call)
        return found if keeps_managed_fields else strip_object(found)

    @contextmanager
    def _noticing_absence(self) -> Iterator[None]:
        """Discover the kinds again if the missing thing is the kind, not the object."""
        try:
            yield
        except APINotFoundError as exc:
            if not exc.details.get("name"):
                self._kinds.forget()
            raise


class Waiting(Protocol[S_co]):
    """An object whose methods wait for those of another one, whose methods are async."""

    @property
    def asynchronous(self) -> S_co:
        """The other one."""

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the event loop of the operator, and return its result."""


def blocking(
    method: Callable[Concatenate[S_co, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Waiting[S_co], P], R]:
    """Return a method for sync functions that waits for the result of an async one."""

    @functools.wraps(method)
    def call(self: Waiting[S_co], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.wait(method(self.asynchronous, *args, **kwargs))

    return call


class SyncClient:
    """The methods of :class:`AsyncClient` for functions that run in threads.

    It sends requests in the event loop of the operator, over the same connections. The condition of
    :meth:`wait_for` is called in that loop, so it must not block. :meth:`list` and :meth:`logs`
    return lists. There is no ``watch``: nothing can stop a thread that waits for the next change.
    """

    __slots__ = ("_context", "_loop", "asynchronous")

    def __init__(self, asynchronous: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self.asynchronous = asynchronous
        self._loop = loop
        self._context = contextvars.copy_context()

    get = blocking(AsyncClient.get)
    list = blocking(AsyncClient.list)
    logs = blocking(AsyncClient.logs)
    create = blocking(AsyncClient.create)
    replace = blocking(AsyncClient.replace)
    apply = blocking(AsyncClient.apply)
    patch = blocking(AsyncClient.patch)
    delete = blocking(AsyncClient.delete)
    wait_for = blocking(AsyncClient.wait_for)
    wait_gone = blocking(AsyncClient.wait_gone)

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the event loop of the operator, and return its result.

        Raises:
            APIConnectionError: the operator is stopping, or is no longer the leader.
            RuntimeError: the caller runs in that event loop, which would wait for itself; or the
                loop is closed.
        """
        if find_running_loop() is self._loop:
            coroutine.close()
            raise RuntimeError(
                "The sync client would block the event loop forever. In async functions, await the "
                "methods of the argument `client`."
            )
        context = contextvars.copy_context()
        if context.get(current_client) is None:  # a thread that a handler started
            context = self._context.copy()  # with the handler's right to act
        try:
            future = context.run(asyncio.run_coroutine_threadsafe, coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise APIConnectionError(
                "The request was cancelled: the operator is stopping, or is no longer the leader."
            ) from None


def fit_kind(kind: object, obj: Obj) -> Any:
    """Return an object as its model, if it was asked for by a model.

    Raises:
        MisfitError: it does not fit; the message names the object and the fields.
    """
    if not is_class(kind):
        return obj
    try:
        return fit(kind, obj)
    except MisfitError as exc:
        place = "/".join(filter(None, (_get(obj, "namespace"), _get(obj, "name"))))
        raise MisfitError(f"{kind.__name__} {place}: {exc}", exc.causes) from exc


def _select(body: Mapping[str, Any]) -> Selector:
    version, kind = body.get("apiVersion"), body.get("kind")
    if not (isinstance(version, str) and isinstance(kind, str)):
        raise TypeError("The object must have apiVersion and kind.")
    return select_objects(version, kind)


def _get(body: Mapping[str, Any], field: str) -> str | None:
    value = (body.get("metadata") or {}).get(field)
    return value if isinstance(value, str) else None


def build_selector(
    labels: Mapping[str, str] | str | None, fields: Mapping[str, str] | str | None
) -> Selection:
    """Return the selection of a list or a watch."""
    texts = {"labelSelector": join_selector(labels), "fieldSelector": join_selector(fields)}
    return Selection({name: text for name, text in texts.items() if text})


def join_selector(selector: Mapping[str, str] | str | None) -> str:
    """Return a selector as text."""
    if isinstance(selector, Mapping):
        return ",".join(f"{key}={value}" for key, value in selector.items())
    return selector or ""
