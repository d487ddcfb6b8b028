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
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import orjson

from webop.client.http.failed_requests import Attempt, parse_attempt
from webop.client.http.requests import APPLY_PATCH, JSON_PATCH, REVIEWS
from webop.client.http.sessions import build_transport
from webop.client.http.streams import read_content
from webop.client.http.transport import Request, Response, Transport
from webop.context.child_store import Place
from webop.objects.label_selectors import matches_labels, parse_label_selector
from webop.objects.patch import apply_merge_patch, build_merge_patch
from webop.planning.items import MASKED, Certainty, Item, list_changes

if TYPE_CHECKING:
    from webop.client.auth.vault import ConnectionInfo

Json = dict[str, Any]

_MARK: Final = ".planned"  # after the version of an object that is not stored like that
_MARKED: Final = re.compile(rb'"(\d*)\.planned"')
_TEMPLATED: Final = "{name}"
_UNCHECKED: Final = "the API server has not stored what this plan does to it before"
_NO_DRY_RUNS: Final = (
    "The API server does not say that it knows dry runs of this request, so a plan never sends it."
)
_NO_WATCHES: Final = "A plan does not wait: nothing that it has written is stored."


@dataclass(slots=True)
class Write:
    """What a step does to one object.

    ``before`` and ``after`` are the object; None if there is none.
    """

    action: str
    before: Json | None = None
    after: Json | None = None
    certainty: Certainty = Certainty.WILL
    reason: str = ""


@dataclass(slots=True)
class Step:
    """The requests of one function of the user.

    Attributes:
        writes: by the object; a subresource other than the status is an object of its own.
        has_failed: whether an apply was refused, so that nothing is pruned.
        conflicts: where an apply would have taken fields of others.
    """

    writes: dict[Place, Write] = field(default_factory=dict)
    has_failed: bool = False
    conflicts: set[Place] = field(default_factory=set)

    def list_items(self) -> list[Item]:
        """Return the writes as items of a plan."""
        found = []
        for place, write in self.writes.items():
            is_secret = place.kind == "secrets"
            before, after = write.before, write.after
            changes = (
                () if after is None else list_changes(before or {}, after, is_secret=is_secret)
            )
            fields = tuple(one for one in changes if one.old or one.new not in (None, {}, []))
            if write.certainty is Certainty.UNKNOWN or fields or after is None:
                found.append(Item(write.action, str(place), write.certainty, write.reason, fields))
        return found


current_step: ContextVar[Step | None] = ContextVar("current_step", default=None)
"""The step whose requests are sent; None for those of the planner, which see what is stored."""


@dataclass(slots=True)
class DryRuns:
    """What all transports of a plan know.

    Attributes:
        startup: the step of functions that are called for no object.
        results: the objects as the plan leaves them; None for deleted ones.
        planned: of these, the ones that the API server does not have.
    """

    startup: Step = field(default_factory=Step)
    results: dict[Place, Json | None] = field(default_factory=dict)
    planned: set[Place] = field(default_factory=set)
    known: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    quotas: dict[str, bool] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def connect(self, info: ConnectionInfo) -> Transport:
        """Return a transport for credentials."""
        return _DryTransport(build_transport(info), self, urlsplit(info.server).path.rstrip("/"))


class _Answer:
    """A response that is complete."""

    is_complete = True

    def __init__(self, status: int, content: bytes, headers: Mapping[bytes, bytes]) -> None:
        self.status, self.headers, self._content = status, headers, content

    async def receive(self) -> bytes:
        content, self._content = self._content, b""
        return content

    async def aclose(self) -> None:
        """There is nothing to close."""


def _answer(found: Any, status: int = 200) -> _Answer:
    return _Answer(status, orjson.dumps(found), {b"content-type": b"application/json"})


def _refuse(status: int, message: str, reason: str = "", **details: Any) -> _Answer:
    head = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return _answer({**head, "message": message, "reason": reason, "details": details}, status)


class _DryTransport:
    """See the module."""

    def __init__(self, inner: Transport, shared: DryRuns, base: str) -> None:
        self._inner = inner
        self._shared = shared
        self._base = base

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def send(self, request: Request) -> Response:
        path, _, text = request.target.removeprefix(self._base).partition("?")
        query = dict(parse_qsl(text, keep_blank_values=True))
        attempt = parse_attempt(request.method, path, query)
        kind = attempt.resource.removesuffix("/status")
        place = Place(kind, attempt.namespace, attempt.name or "")
        if attempt.verb == "watch":
            return _refuse(400, _NO_WATCHES)
        if request.method == "GET" and current_step.get() is not None:
            return await self._read(request, place, query)
        if request.method == "GET" or path.startswith(REVIEWS):  # these store nothing
            return await self._inner.send(request)
        if not await self._knows_dry_runs(request, path, attempt):
            refusal = orjson.loads(await _refuse(405, _NO_DRY_RUNS).receive())
            return self._note_failure(request, attempt, place, 405, refusal)
        if place in self._shared.planned:
            return self._write_planned(request, place, query)
        return await self._write(request, path, query, attempt)

    async def _read(self, request: Request, place: Place, query: Mapping[str, str]) -> Response:
        """Read an object or a list as the plan leaves it."""
        results = self._shared.results
        if place.name and place in results:
            found = results[place]
            return _answer(found) if found is not None else _say_missing(place)
        response = await self._inner.send(request)
        if place.name or response.status != 200 or not any(p.kind == place.kind for p in results):
            return response
        listed = orjson.loads(await read_content(response))
        kept, shown = [], set()
        for raw in listed.get("items") or ():
            meta = raw["metadata"]
            shown.add(where := Place(place.kind, meta.get("namespace"), meta["name"]))
            newest = results.get(where, raw)
            kept += [] if newest is None else [newest]
        if not (listed["metadata"].get("continue") or query.get("continue")):
            kept += [
                raw
                for where, raw in results.items()
                if raw is not None and where not in shown and where in self._shared.planned
                if where.kind == place.kind and place.namespace in (None, where.namespace)
                if _matches(raw, query)
            ]
        return _answer({**listed, "items": kept})

    async def _write(
        self, request: Request, path: str, query: dict[str, str], attempt: Attempt
    ) -> Response:
        shared, step = self._shared, current_step.get() or self._shared.startup
        place = Place(
            attempt.resource.removesuffix("/status"), attempt.namespace, attempt.name or ""
        )
        before = None
        if attempt.name:
            status, found = await self._fetch(request, path.removesuffix("/status"))
            before = found if status == 200 else None
        content = _MARKED.sub(rb'"\1"', request.content) if request.content else None
        if request.method == "DELETE" and content:  # then the query does not count
            content = orjson.dumps({**orjson.loads(content), "dryRun": ["All"]})
        target = f"{self._base}{path}?{urlencode({**query, 'dryRun': 'All'})}"
        status, after = await self._exchange(request._replace(target=target, content=content))
        if status >= 300:
            return self._note_failure(request, attempt, place, status, after)
        if request.method == "DELETE":
            for raw in after.get("items", [before]):
                meta = (raw or {}).get("metadata") or {}
                where = place._replace(namespace=meta.get("namespace"), name=meta.get("name") or "")
                self._note(step, where, Write("delete", raw, None))
            return _answer(after, status)
        write = Write("create" if before is None else "change", before, after)
        meta = after.get("metadata") or {}
        if not attempt.name:
            place = place._replace(name=meta.get("name") or "")
            if not _get_name(content):
                write.certainty = Certainty.MAY
                write.reason = "its name is generated: it will be another one"
        if write.action == "create" and await self._has_quota(request, place.namespace):
            write.certainty = Certainty.MAY
            write.reason = "a dry run checks the quota of the namespace for this object alone"
        if place in step.conflicts:
            write.action = "take back"
        if attempt.resource.endswith("/eviction"):
            write.after, write.certainty = None, Certainty.MAY
            write.action, write.reason = "evict", "the pod takes its time to end"
        elif (known := shared.results.get(place)) is not None and before is not None:
            write.after = after = apply_merge_patch(known, build_merge_patch(before, after))
            write.certainty, write.reason = Certainty.MAY, _UNCHECKED
        is_changed = before is None or any(list_changes(before, after))
        if is_changed and isinstance(after.get("metadata"), dict):
            version = (meta.get("resourceVersion") or "").removesuffix(_MARK)
            after["metadata"]["resourceVersion"] = f"{version}{_MARK}"
        if before is None:
            shared.planned.add(place)
        if is_changed:
            self._note(step, place, write)
        return _answer(after, status)

    def _write_planned(self, request: Request, place: Place, query: Mapping[str, str]) -> Response:
        """Change an object that only the plan has; the API server cannot be asked."""
        step, known = current_step.get() or self._shared.startup, self._shared.results.get(place)
        kind = _find_type(request)
        if known is None and request.method == "DELETE":
            return _say_missing(place)
        if kind == JSON_PATCH or request.method == "POST":
            return _refuse(409, f"{place} exists only in this plan.", "Conflict")
        body = orjson.loads(request.content or b"{}")
        after = None if request.method == "DELETE" else body
        if request.method == "PATCH":
            after = apply_merge_patch(known or {}, body)
        self._note(step, place, Write("create", None, after, Certainty.MAY, _UNCHECKED))
        if after is None:
            del step.writes[place]
        return _answer(after or {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _note(self, step: Step, place: Place, write: Write) -> None:
        """Note a write, and what the object is then."""
        if (earlier := step.writes.get(place)) is not None and earlier.before is not None:
            write.before = earlier.before
        step.writes[place] = write
        self._shared.results[place] = write.after

    def _note_failure(
        self, request: Request, attempt: Attempt, place: Place, status: int, found: Json
    ) -> Response:
        """Note a refusal, and return it; a text about a Secret can have its values."""
        step, message = current_step.get() or self._shared.startup, str(found.get("message") or "")
        is_known = status in (404, 405) or "does not support dry run" in message
        if place.kind == "secrets" and not is_known:
            message = f"{found.get('reason') or status} {MASKED}"
            found = {**found, "message": message, "details": {"name": place.name}}
        if status == 404 and request.method == "DELETE":
            return _answer(found, status)
        namespace = Place("namespaces", None, place.namespace or "")
        if status == 404 and namespace in self._shared.planned:
            message = f"this plan creates the namespace {place.namespace!r} before"
        is_apply = _find_type(request) == APPLY_PATCH
        if status == 409 and is_apply:
            step.conflicts.add(place)
        step.has_failed |= is_apply
        step.writes[place] = Write(attempt.verb, None, None, Certainty.UNKNOWN, message)
        return _answer(found, status)

    async def _knows_dry_runs(self, request: Request, path: str, attempt: Attempt) -> bool:
        """Return whether the API server declares the parameter ``dryRun`` for a request."""
        parts = path.strip("/").split("/")
        group, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
        known, place = self._shared.known, "/".join(group)
        async with self._shared.lock:
            if place not in known:
                status, document = await self._fetch(request, f"/openapi/v3/{place}")
                found = document.get("paths") or {} if status == 200 else {}
                known[place] = frozenset(
                    (method.upper(), template)
                    for template, methods in found.items()
                    for method, one in methods.items()
                    if isinstance(one, dict)
                    if any(each.get("name") == "dryRun" for each in one.get("parameters") or ())
                )
        if attempt.namespace:
            rest[1] = "{namespace}"
        if attempt.name:
            rest[3 if attempt.namespace else 1] = _TEMPLATED
        return (request.method, f"/{'/'.join((*group, *rest))}") in known[place]

    async def _has_quota(self, request: Request, namespace: str | None) -> bool:
        """Return whether a namespace can have a quota."""
        quotas = self._shared.quotas
        if namespace is not None and namespace not in quotas:
            path = f"/api/v1/namespaces/{namespace}/resourcequotas"
            status, found = await self._fetch(request, path)
            quotas[namespace] = status == 403 or bool(found.get("items"))
        return namespace is not None and quotas[namespace]

    async def _fetch(self, request: Request, path: str) -> tuple[int, Json]:
        """Read what is stored, with the credentials of a request."""
        read = request._replace(method="GET", target=f"{self._base}{path}", content=None)
        return await self._exchange(read)

    async def _exchange(self, request: Request) -> tuple[int, Json]:
        response = await self._inner.send(request)
        content = await read_content(response)
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError:
            found = {"message": content.decode(errors="replace")[:500]}
        return response.status, found


def _find_type(request: Request) -> str:
    """Return the media type of the content."""
    for line in request.headers.decode("ascii").split("\r\n"):
        name, _, value = line.partition(": ")
        if name.lower() == "content-type":
            return value
    return ""


def _get_name(content: bytes | None) -> str:
    return str((orjson.loads(content or b"{}").get("metadata") or {}).get("name") or "")


def _say_missing(place: Place) -> _Answer:
    plural = place.kind.partition(".")[0]
    message = f'{place.kind} "{place.name}" not found'
    return _refuse(404, message, "NotFound", name=place.name, kind=plural)


def _matches(raw: Json, query: Mapping[str, str]) -> bool:
    """Return whether a list has an object; of the fields, only its name and its namespace count."""
    meta, fields = raw["metadata"], query.get("fieldSelector", "")
    for text in filter(None, fields.split(",")):
        name, _, value = text.replace("==", "=").partition("=")
        if not name.startswith("metadata.") or meta.get(name.removeprefix("metadata.")) != value:
            return False
    labels = parse_label_selector(query.get("labelSelector", "")) or []
    return matches_labels(labels, meta.get("labels") or {})
