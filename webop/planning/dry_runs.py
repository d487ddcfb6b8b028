"""The transport of a plan: reads pass, each write becomes a dry run, later reads show its result.

Place in the flow: between :class:`webop.client.api.Client` and the connections. So it has all that
handlers do with their client, their children and their patch.

Kubernetes API concepts, "Dry-run". A server that does not know ``dryRun`` would ignore it, and
store the object: aggregated API servers can be such. So the OpenAPI document of the API group must
name the parameter for the very request; without that, nothing is sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import orjson

from webop.client.auth.vault import ConnectionInfo
from webop.client.http.failed_requests import Attempt, build_status_error, parse_attempt
from webop.client.http.requests import REVIEWS
from webop.client.http.sessions import build_transport
from webop.client.http.streams import read_content
from webop.client.http.transport import Request, Response, Transport
from webop.context.child_store import Names, Place
from webop.objects.fields import Json
from webop.objects.label_selectors import matches_labels, parse_label_selector
from webop.objects.patch import apply_merge_patch, build_merge_patch
from webop.planning.items import MASKED, Certainty, Item, list_changes

_MARK: Final = ".planned"  # after the version of an object that is not stored like that
_marked: Final = re.compile(rb'(resourceVersion"(?::|, ?"value":) ?"\d*)\.planned"')
_DIGEST: Final = f"metadata.annotations.{Names.build(None, '').digest}"  # of any change of a child
_SUCCESS: Final[Json] = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
_GENERATED: Final = "its name is generated: it will be another one"
_QUOTA: Final = "a dry run checks the quotas of the namespace for this object alone"
_TWICE: Final = "the API server has not stored what this plan does to it before"
_UNREAD: Final = "the object cannot be read, so nobody can tell whether it would change"
_EVICTED: Final = "pods take their time to end"
_REAL: Final = "a dry run of it would give a real token"
_UNKNOWN: Final = (
    "The API server does not declare dry runs of this request: a plan never sends it. "
    "If the kind is new, plan again in a second."
)
_NO_WATCHES: Final = "A plan does not wait: nothing that it has written is stored."


@dataclass(slots=True)
class Step:
    """The requests of one function of the user.

    Attributes:
        writes: what they do to each object; a subresource other than the status counts as one.
        bases: the objects before the first of these writes.
        is_secret: whether it is called for a Secret, whose values its errors can have.
        failures: the reasons why the function has failed.
        refused: the statuses of applies that were refused, and have not succeeded since.
    """

    is_secret: bool = False
    writes: dict[Place, Item] = field(default_factory=dict)
    bases: dict[Place, Json] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    refused: dict[Place, int] = field(default_factory=dict)


current_step: ContextVar[Step | None] = ContextVar("current_step", default=None)
"""The step whose requests are sent; None for the planner itself, which reads what is stored."""


@dataclass(slots=True)
class DryRuns:
    """The knowledge that the transports of a plan share.

    Attributes:
        results: the objects as the plan leaves them; None for deleted ones.
        stored: the same objects as the API server has them; None for those that it has not.
        declared: the requests that know dry runs, by the API group and its version.
        quotas: whether a namespace can have quotas.
        others: the writes of threads and tasks that belong to no call, or outlive it.
    """

    results: dict[Place, Json | None] = field(default_factory=dict)
    stored: dict[Place, Json | None] = field(default_factory=dict)
    declared: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    quotas: dict[str, bool] = field(default_factory=dict)
    others: Step = field(default_factory=Step)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def connect(self, info: ConnectionInfo) -> Transport:
        """Return a transport for credentials."""
        return _DryTransport(build_transport(info), self, urlsplit(info.server).path.rstrip("/"))


class _Answer:
    """A response that is complete."""

    is_complete = True

    def __init__(self, found: Json, status: int = 200) -> None:
        self.status, self.headers = status, {b"content-type": b"application/json"}
        self._content = orjson.dumps(found)

    async def receive(self) -> bytes:
        content, self._content = self._content, b""
        return content

    async def aclose(self) -> None:
        """There is nothing to close."""


def _refuse(status: int, message: str, **more: Any) -> Json:
    return {**_SUCCESS, "status": "Failure", "code": status, "message": message, **more}


def _miss(place: Place) -> _Answer:
    details = {"name": place.name, "kind": place.kind.partition(".")[0]}
    return _Answer(_refuse(404, f"{place} not found", reason="NotFound", details=details), 404)


@dataclass(slots=True)
class _DryTransport:
    _inner: Transport
    _shared: DryRuns
    _base: str

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def send(self, request: Request) -> Response:
        path, _, text = request.target.removeprefix(self._base).partition("?")
        query = dict(parse_qsl(text, keep_blank_values=True))
        attempt, step = parse_attempt(request.method, path, query), current_step.get()
        kind = attempt.resource.removesuffix("/status")
        place = Place(kind, attempt.namespace, attempt.name or "")
        if attempt.verb == "watch":
            return _Answer(_refuse(400, _NO_WATCHES), 400)
        if request.method == "GET" and step is not None:
            return await self._read(request, place, query)
        if request.method == "GET" or path.startswith(REVIEWS):  # these store nothing
            return await self._inner.send(request)
        return await self._write(step or self._shared.others, request, path, place, query)

    async def _write(
        self, step: Step, request: Request, path: str, place: Place, query: Mapping[str, str]
    ) -> Response:
        shared, attempt = self._shared, parse_attempt(request.method, path)
        if shared.stored.get(place, _SUCCESS) is None and request.method == "DELETE":
            del shared.stored[place]
            step.writes.pop(place, None)
            shared.results[place] = None
            return _Answer(_SUCCESS)
        is_creating = request.method == "POST" or b"apply-patch" in request.headers
        if shared.results.get(place, _SUCCESS) is None and not is_creating:
            return _miss(place)
        before, status, found = None, 405, _refuse(405, _UNKNOWN)
        if attempt.resource == "serviceaccounts/token":
            found = _refuse(405, _REAL)
        elif await self._declares_dry_runs(request, path, attempt):
            if place.name:
                known, stored = await self._fetch(request, path.removesuffix("/status"))
                before = stored if known == 200 else None if known == 404 else {}
            content = request.content and _marked.sub(rb'\1"', request.content)
            if content and request.method == "DELETE":  # then the query does not count
                content = orjson.dumps({**orjson.loads(content), "dryRun": ["All"]})
            target = f"{self._base}{path}?{urlencode({**query, 'dryRun': 'All'})}"
            status, found = await self._exchange(request._replace(target=target, content=content))
        if status >= 300:
            if b"apply-patch" in request.headers:
                step.refused[place] = status
            found = self._note_refusal(step, attempt, place, status, found)
        elif request.method == "DELETE":
            for raw in [found] if place.name else found.get("items") or ():
                where = place if place.name else _locate(place, raw)
                step.writes[where] = Item("delete", str(where))
                shared.stored.setdefault(where, before or raw)
                shared.results[where] = raw if _is_held(raw) else None
        else:
            await self._note_result(step, place, before, found, request)
        return _Answer(found, status)

    async def _note_result(
        self, step: Step, place: Place, before: Json | None, after: Json, request: Request
    ) -> None:
        """Note what a dry run has created or changed, and how certain that is."""
        shared, meta, doubt = self._shared, after.setdefault("metadata", {}), ""
        action = "take back" if step.refused.pop(place, 0) == 409 else "change"
        known, given = shared.results.get(place), orjson.loads(request.content or b"{}")
        was = step.writes.get(place)
        if before is None:
            action = "create"
            if await self._has_quotas(request, place.namespace):
                doubt = _QUOTA
            if not place.name:
                place = place._replace(name=meta.get("name") or "")
                doubt = doubt if (given.get("metadata") or {}).get("name") else _GENERATED
            shared.stored[place] = None
        elif place in shared.results and (known is None or (was and was.action == "recreate")):
            action, doubt = "recreate", _TWICE  # it was deleted
        if known is not None:
            doubt = _TWICE
            if request.method != "PUT":  # what it does to the stored object, and what it says
                named = _select(after, given) if isinstance(given, dict) else {}
                merged = apply_merge_patch(known, build_merge_patch(before or {}, after))
                after.clear()
                after.update(apply_merge_patch(merged, named))
        present = before if known is None else known
        if action in ("change", "take back") and not any(list_changes(present, after)):
            if was and was.certainty is Certainty.UNKNOWN:
                del step.writes[place]  # an attempt that has failed
            return
        if place.kind == "pods/eviction":
            action, doubt = "evict", _EVICTED
        elif before == {}:
            doubt = _UNREAD
        version = str(after["metadata"].get("resourceVersion") or "").removesuffix(_MARK)
        after["metadata"]["resourceVersion"] = f"{version}{_MARK}"
        shared.stored.setdefault(place, before)
        shared.results[place] = after
        base = step.bases.setdefault(place, present or {})
        found = list_changes(base, after, is_secret=place.kind == "secrets")
        fields = [one for one in found if one.old or one.new not in (None, {}, [])]
        fields = [] if before == {} else [o for o in fields if o.field != _DIGEST] or fields
        fields.sort(key=lambda one: one.field.startswith(("apiVersion", "kind", "metadata")))
        if known and known["metadata"].get("deletionTimestamp") and was and was.action == "delete":
            return  # its deletion tells more
        certainty = Certainty.MAY if doubt else Certainty.WILL
        step.writes[place] = Item(action, str(place), certainty, doubt, fields)

    def _note_refusal(
        self, step: Step, attempt: Attempt, place: Place, status: int, found: Json
    ) -> Json:
        """Note a refusal, and return it; a text about a Secret can have its values."""
        message = str(found.get("message") or status)
        if attempt.verb == "delete" and status == 404:
            return found
        is_safe = status in (404, 405) or "does not support dry run" in message
        if place.kind == "secrets" and not is_safe:
            message = f"{found.get('reason') or status} {MASKED}"
            found = _refuse(status, message, reason=found.get("reason"))
        home = Place("namespaces", None, place.namespace or "")
        if self._shared.stored.get(home, _SUCCESS) is None:
            message = f"this plan creates the namespace before; in a dry run, {message}"
        step.writes[place] = Item(attempt.verb, str(place), Certainty.UNKNOWN, message)
        return found

    async def _read(self, request: Request, place: Place, query: Mapping[str, str]) -> Response:
        """Read an object or a list as the plan leaves it."""
        results = self._shared.results
        if place.name and place in results:
            found = results[place]
            return _miss(place) if found is None else _Answer(found)
        response = await self._inner.send(request)
        changed = {where: raw for where, raw in results.items() if where.kind == place.kind}
        if place.name or response.status != 200 or not changed:
            return response
        listed = orjson.loads(await read_content(response))
        items, labels = [], {**query, "fieldSelector": ""}
        for raw in listed.get("items") or ():
            new = changed.pop(_locate(place, raw), raw)
            items += [new] if new is raw or _matches(new, labels) else []
        if not listed["metadata"].get("continue"):
            items += [
                raw
                for where, raw in changed.items()
                if place.namespace in (None, where.namespace) and _matches(raw, query)
                if not _matches(self._shared.stored.get(where), query)  # else a page has had it
            ]
        return _Answer({**listed, "items": items})

    async def _declares_dry_runs(self, request: Request, path: str, attempt: Attempt) -> bool:
        """Return whether the API server declares the parameter ``dryRun`` for a request."""
        parts = path.strip("/").split("/")
        size, first = 2 if parts[0] == "api" else 3, 2 if attempt.namespace else 0
        group, rest, declared = "/".join(parts[:size]), parts[size:], self._shared.declared
        async with self._shared.lock:
            if group not in declared:
                status, document = await self._fetch(request, f"/openapi/v3/{group}")
                paths: Json = document.get("paths") or {} if status == 200 else {}
                declared[group] = frozenset(
                    (method.upper(), template)
                    for template, methods in paths.items()
                    for method, one in methods.items()
                    if isinstance(one, dict)
                    for each in (*one.get("parameters", ()), *methods.get("parameters", ()))
                    if each.get("name") == "dryRun"
                )
        rest[1:first] = ["{namespace}"] * bool(first)
        rest[first + 1 : first + 2] = ["{name}"] * bool(attempt.name)
        return (request.method, f"/{group}/{'/'.join(rest)}") in declared[group]

    async def _has_quotas(self, request: Request, namespace: str | None) -> bool:
        quotas = self._shared.quotas
        if namespace is not None and namespace not in quotas:
            path = f"/api/v1/namespaces/{namespace}/resourcequotas"
            status, found = await self._fetch(request, path)
            quotas[namespace] = status == 403 or bool(found.get("items"))
        return namespace is not None and quotas[namespace]

    async def _fetch(self, request: Request, path: str) -> tuple[int, Json]:
        """Read what is stored, with the credentials of a request."""
        target = f"{self._base}{path}"
        return await self._exchange(request._replace(method="GET", target=target, content=None))

    async def _exchange(self, request: Request) -> tuple[int, Json]:
        response = await self._inner.send(request)
        content = await read_content(response)
        if request.method == "GET" and (response.status == 429 or response.status >= 500):
            pause = response.headers.get(b"retry-after", b"").decode("latin-1")
            read = parse_attempt("GET", request.target.removeprefix(self._base))
            raise build_status_error(read, response.status, pause, content)  # the client retries
        try:
            return response.status, orjson.loads(content)
        except orjson.JSONDecodeError:
            return response.status, {"message": content.decode(errors="replace")[:500]}


def _select(found: Any, names: Any) -> Any:
    """Return the fields of an object that another one names, as a merge patch."""
    if not (isinstance(found, dict) and isinstance(names, dict)):
        return found
    return {key: _select(found.get(key), value) for key, value in names.items()}


def _locate(place: Place, raw: Json) -> Place:
    """Return the place of an object of a list."""
    meta = raw["metadata"]
    return place._replace(namespace=meta.get("namespace"), name=meta["name"])


def _is_held(raw: Json) -> bool:
    """Return whether an object that was deleted still exists: a finalizer, or time, holds it."""
    meta, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    held = [
        meta.get("deletionGracePeriodSeconds"),
        *(one.get("finalizers") for one in (meta, spec)),
    ]
    return "deletionTimestamp" in meta and any(held)


def _matches(raw: Json | None, query: Mapping[str, str]) -> bool:
    """Return whether a list has an object; of the fields, only its name and its namespace count."""
    if raw is None:
        return False
    meta = raw.get("metadata") or {}
    for text in filter(None, query.get("fieldSelector", "").split(",")):
        name, _, value = text.replace("==", "=").partition("=")
        if not name.startswith("metadata.") or meta.get(name.removeprefix("metadata.")) != value:
            return False
    labels = parse_label_selector(query.get("labelSelector", "")) or []
    return matches_labels(labels, meta.get("labels") or {})
