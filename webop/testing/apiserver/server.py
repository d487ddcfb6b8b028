"""The API server in memory: paths and methods."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from urllib.parse import unquote

import orjson

from .bodies import parse_body, parse_delete_options, parse_object
from .builtin import list_kinds
from .conversions import Converter
from .definitions import Kinds
from .discovery import ROOTS, discover
from .kinds import CRDS, Kind
from .messages import Json, NoSuchPathError, Refusal, Request, Response
from .pod_logs import PodLogs
from .reading import list_objects, open_watch
from .store import Store, Watch
from .targets import Target
from .webhooks import Webhooks
from .writing import Steps, Writer

_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.3", "platform": "linux/amd64"}
_REVIEWS = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authentication.k8s.io/v1/selfsubjectreviews",
}


class Cluster:
    """An API server with the semantics that operators depend on.

    It is synchronous and has no clock. All users may do everything. Errors of the network, access
    control and overload are not its subject: the caller can simulate them.

    Guarantees:
        - The same requests at the same times get the same answers, uids included.
        - :meth:`handle` is atomic. With :meth:`perform`, the world can go on while admission
          decides, and the outcome is what the real server makes of it.

    Attributes:
        store: what is stored, and its watch caches.
        kinds: the kinds that are served.
        logs: what containers have logged.
        webhooks: those of the webhook configurations. With :meth:`handle`, they are not called.

    Args:
        now: the wall clock, aware and in UTC.
        rng: for uids and generated names only.
        collects: whether a :class:`.GarbageCollector` is at work.
        converter: converts objects of kinds with ``strategy: Webhook``. Without it, only their
            apiVersion changes.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        rng: random.Random,
        *,
        collects: bool = False,
        converter: Converter | None = None,
    ) -> None:
        self.store = Store()
        self.kinds = Kinds(self.store, now, converter)
        self.logs = PodLogs()
        self.webhooks = Webhooks(self.store, rng)
        self._writer = Writer(self.store, now, rng, self.webhooks)
        self._writer.collects = collects
        self._now = now
        for name in ("default", "kube-system"):
            self.add_namespace(name)

    def list_discovered(self) -> list[Kind]:
        """Return the kinds of the answers about discovery."""
        return self.kinds.list_served()

    def get_objects(self, resource: str) -> dict[str, Json]:
        """Return the objects of a resource by "namespace/name", or by name; never modify them."""
        table = self.store.tables.get(resource)
        return {} if table is None else dict(table.objects)

    def add_namespace(self, name: str) -> None:
        """Create a namespace."""
        content = orjson.dumps({"metadata": {"name": name}})
        headers = {"content-type": "application/json"}
        response = self.handle(Request("POST", "/api/v1/namespaces", {}, headers, content))
        if response.status >= 300:
            raise ValueError(f"Cannot create the namespace {name}: {response.body}")

    def handle(self, request: Request) -> Response:
        """Carry out a request that is no watch."""
        steps = self.perform(request)
        while True:
            try:
                next(steps)
            except StopIteration as exc:
                response: Response = exc.value
                return response

    def perform(self, request: Request) -> Steps:
        """Carry out a request in steps, which are those of admission."""
        try:
            return (yield from self._perform(request))
        except (Refusal, NoSuchPathError) as exc:
            return exc.build_response()

    def watch(self, request: Request) -> Watch | Response:
        """Begin a watch; a Response if it is refused."""
        try:
            target = self._find_target(request)
            if target.name:
                return self.handle(request)
            prefix = f"{target.namespace}/" if target.namespace else ""
            return open_watch(self.store, target.kind, target.table, prefix, request.query)
        except (Refusal, NoSuchPathError) as exc:
            return exc.build_response()

    def _perform(self, request: Request) -> Steps:
        path = request.path
        if path == "/version":
            return Response(200, _VERSION)
        if path in _REVIEWS and request.method == "POST":
            return self._review(request)
        if path in ROOTS:
            found, etag = discover(path, tuple(self.list_discovered()))
            is_known = request.headers.get("if-none-match") == etag
            return Response(304 if is_known else 200, found, {"etag": etag})
        target = self._find_target(request)
        if target.name:
            return (yield from self._act_on_object(target))
        return (yield from self._act_on_collection(target))

    def _act_on_collection(self, target: Target) -> Steps:
        request, kind = target.request, target.kind
        prefix = f"{target.namespace}/" if target.namespace else ""
        if request.method == "GET":
            return list_objects(self.store, kind, target.table, prefix, request.query)
        if kind.namespaced and not target.namespace:
            raise NoSuchPathError
        if request.method == "POST":
            return (yield from self._writer.create(target, parse_object(kind, request)))
        raise _refuse_method()

    def _act_on_object(self, target: Target) -> Steps:
        request, writer = target.request, self._writer
        if target.subresource == "log":
            return self.logs.read(target.key, writer.read(target)[1], request.query)
        if request.method == "GET":
            return Response(200, writer.read(target)[1])
        if request.method == "PUT":
            return (yield from writer.replace(target, parse_object(target.kind, request)))
        if request.method == "PATCH":
            return (yield from writer.patch(target))
        if request.method == "DELETE" and not target.subresource:
            return (yield from self._delete(target))
        raise _refuse_method()

    def _delete(self, target: Target) -> Steps:
        options = parse_delete_options(target.request)
        crd = target.table.objects.get(target.key)
        if target.kind.resource == CRDS and crd is not None:
            stamp = self._writer.stamp()
            state = self.kinds.begin_deletion(crd, stamp, target.request)
            return Response(200, state)
        return (yield from self._writer.delete(target, options))

    def _review(self, request: Request) -> Response:
        body = parse_body(request)
        status: Json = {"allowed": True}
        metadata: Json = {}
        if request.path.endswith("selfsubjectreviews"):
            groups = ["system:authenticated"]
            status = {"userInfo": {"username": request.user, "groups": groups}}
            metadata = {"creationTimestamp": self._writer.stamp()}
        return Response(201, {**body, "metadata": metadata, "status": status})

    def _find_target(self, request: Request) -> Target:
        group, version, parts = _split_path(request.path)
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces" and parts[2] not in {"status", "finalize"}:
            namespace, parts = parts[1], parts[2:]
        plural, name, subresource = (*parts, "", "")[:3]  # the rest does not matter
        kind = self.kinds.find(group, version, plural)
        if kind is None:
            if any(group == one.group for one in list_kinds()):
                message = "the server could not find the requested resource"
                raise Refusal(404, "NotFound", message, {})
            raise NoSuchPathError
        if (namespace and not kind.namespaced) or (name and kind.namespaced and not namespace):
            raise NoSuchPathError
        table = self.store.tables[kind.resource]
        target = Target(kind, table, namespace, name, subresource, request)
        if subresource and subresource not in kind.subresources:
            raise target.refuse_absent() if kind.is_custom else NoSuchPathError()
        return target


def _split_path(path: str) -> tuple[str, str, list[str]]:
    """Return the API group, its version, and the rest."""
    root, *parts = path.strip("/").split("/")
    if "%" in path:
        parts = [unquote(part) for part in parts]
    if root == "api" and len(parts) > 1:
        return "", parts[0], parts[1:]
    if root == "apis" and len(parts) > 2:
        return parts[0], parts[1], parts[2:]
    raise NoSuchPathError


def _refuse_method() -> Refusal:
    message = "the server does not allow this method on the requested resource"
    return Refusal(405, "MethodNotAllowed", message, {})
