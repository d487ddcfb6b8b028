"""The two servers that are compared: what each has answered, and its answers made comparable.

Requests are drawn once for both. What differs between the servers by nature is written in them as
placeholders, which each side replaces with its own: ``$version:KEY`` is the resource version of an
object, ``$uid:KEY`` its uid, ``$past:N`` the version of the N-th write, ``$token`` the last token
of a list. KEY is "resource/namespace/name".
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import orjson

from tests.kit.memory_cluster import MemoryCluster
from webop.testing.apiserver import Json, Request, Response

from .requests import JSON, Drawn, build_request

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_TIMESTAMPS = ("creationTimestamp", "deletionTimestamp", "lastTransitionTime")
_RECENT = 300  # writes
_PATIENCE = 20.0  # seconds, for what controllers of the real server do
_UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"


class EventStream(Protocol):
    """A watch, with all its events until now, from the first one on."""

    @property
    def events(self) -> Collection[Json]: ...

    @property
    def is_over(self) -> bool:
        """Whether the server has ended it."""

    def close(self) -> None: ...


class Side(Protocol):
    def send(self, request: Request) -> tuple[int, Any]:
        """Return the status and the content of an answer."""

    def watch(self, request: Request) -> EventStream | tuple[int, Any]:
        """Begin a watch; or return the refusal."""


class RealSide:
    def __init__(self, cluster: LocalCluster) -> None:
        trust = ssl.create_default_context(cadata=base64.b64decode(cluster.ca_data).decode())
        headers = {"accept": "application/json", "authorization": f"Bearer {cluster.token}"}
        self._http = httpx.Client(
            base_url=cluster.server, headers=headers, verify=trust, trust_env=False, timeout=None
        )

    def send(self, request: Request) -> tuple[int, Any]:
        return _read(self._http.send(self._build(request)))

    def watch(self, request: Request) -> EventStream | tuple[int, Any]:
        answer = self._http.send(self._build(request), stream=True)
        if answer.status_code == 200:
            return _RealStream(answer)
        answer.read()
        return _read(answer)

    def close(self) -> None:
        self._http.close()

    def _build(self, request: Request) -> httpx.Request:
        query, headers = dict(request.query), dict(request.headers)
        return self._http.build_request(
            request.method, request.path, params=query, headers=headers, content=request.body
        )


class _RealStream:
    """A watch of the real server: a thread reads its events."""

    def __init__(self, answer: httpx.Response) -> None:
        self.events: list[Json] = []
        self._answer = answer
        self._thread = threading.Thread(target=self._work, name="conformance watch", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        stream = self._answer.extensions["network_stream"]
        with contextlib.suppress(OSError):  # the server may have closed it
            stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._answer.close()

    def _work(self) -> None:
        with contextlib.suppress(httpx.HTTPError):  # it was closed
            for line in self._answer.iter_lines():
                self.events.append(orjson.loads(line))


class SimulatedSide:
    def __init__(self, seed: int, **options: Any) -> None:
        self.cluster = MemoryCluster(lambda: datetime.now(UTC), random.Random(seed), **options)

    def send(self, request: Request) -> tuple[int, Any]:
        response = self.cluster.handle(request)
        return response.status, response.text or response.body

    def watch(self, request: Request) -> EventStream | tuple[int, Any]:
        watch = self.cluster.watch(request)
        return (watch.status, watch.body) if isinstance(watch, Response) else watch


def _read(answer: httpx.Response) -> tuple[int, Any]:
    try:
        return answer.status_code, orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return answer.status_code, answer.text


class Memory:
    """What one side has answered until now; its answers in the words of both."""

    def __init__(self, *, is_ranking: bool = True) -> None:
        self.token = ""
        self._is_ranking = is_ranking
        self._versions: list[int] = []
        self._objects: dict[str, Json] = {}
        self._uids: dict[str, str] = {}

    def fill_in(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.fill_in(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.fill_in(item) for item in value]
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        name, _, key = value[1:].partition(":")
        if name == "token":
            return self.token
        if name == "past":
            # Not from long ago: every five minutes, the real server forgets what is older.
            recent = self._versions[-_RECENT:]
            return str(recent[int(key) % len(recent)]) if recent else "0"
        metadata = self._objects.get(key, {}).get("metadata", {})
        if name == "uid":
            return metadata.get("uid", _UNKNOWN_UID)
        if name == "version":
            return metadata.get("resourceVersion", "1")
        return {**self._objects[key]} if key in self._objects else {}

    def build(self, drawn: Drawn) -> Request:
        """Return a request without placeholders."""
        query, body = self.fill_in(drawn.query), self.fill_in(drawn.body)
        return build_request(drawn.method, drawn.path, body, drawn.content_type, **query)

    def take(self, resource: str, status: int, body: Any) -> None:
        """Remember an answer to a request that is no watch."""
        if not isinstance(body, dict) or status >= 300:
            return
        metadata = body.get("metadata") or {}
        self.token = metadata.get("continue") or self.token
        for raw in body.get("items") or [body]:
            version = raw.get("metadata", {}).get("resourceVersion")
            if "uid" in raw.get("metadata", {}) and version and int(version) > 0:
                self._learn(resource, raw)

    def normalise(self, status: int, body: Any) -> Any:
        """Return an answer in the words of both sides."""
        if not isinstance(body, dict):
            return status, "text"
        if status >= 300 or body.get("status") in ("Failure", "Success"):
            details = body.get("details") or {}
            known = {key: details.get(key) for key in ("name", "group", "kind")}
            return status, body.get("reason"), known
        if body.get("kind") == "APIResourceList":
            # Of custom kinds, in any order.
            resources = sorted(body["resources"], key=lambda resource: str(resource["name"]))
            for resource in resources:
                resource.pop("storageVersionHash", None)
                resource["verbs"] = sorted(resource["verbs"])
            return status, {**body, "resources": resources}
        return status, self._normalise(body)

    def normalise_event(self, event: Json) -> Any:
        """Return an event of a watch in the words of both sides."""
        raw = event["object"]
        if event["type"] == "ERROR":
            return "ERROR", raw.get("code"), raw.get("reason")
        if event["type"] == "BOOKMARK":
            annotations = raw["metadata"].get("annotations")
            return "BOOKMARK", raw["kind"], annotations, self._rank(raw)
        return event["type"], self._normalise(raw)

    def _normalise(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._normalise(item) for item in value]
        if not isinstance(value, dict):
            return value
        result = {key: self._normalise(item) for key, item in value.items()}
        for field in _TIMESTAMPS:
            if isinstance(value.get(field), str):
                result[field] = "a moment"
        metadata = value.get("metadata")
        if isinstance(metadata, dict):
            result["metadata"] = self._normalise_metadata(metadata, result["metadata"])
        return result

    def _normalise_metadata(self, raw: Json, result: Json) -> Json:
        result.pop("managedFields", None)
        if result.get("continue"):
            result["continue"] = "a token"
        else:
            result.pop("continue", None)
        if "uid" in raw:
            result["uid"] = self._uids.setdefault(raw["uid"], f"uid {len(self._uids)}")
        if "resourceVersion" in raw:
            result["resourceVersion"] = self._rank({"metadata": raw})
        if "generateName" in raw and raw.get("name", "").startswith(raw["generateName"]):
            result["name"] = f"{raw['generateName']}#"
        return result

    def _rank(self, raw: Json) -> str:
        """Return where a version is among those of the writes until now."""
        if not raw["metadata"]["resourceVersion"].isdecimal():
            return "nonsense"  # of the request
        if not self._is_ranking:
            return "a version"
        version = int(raw["metadata"]["resourceVersion"])
        index = bisect.bisect_right(self._versions, version)
        is_known = index > 0 and self._versions[index - 1] == version
        is_object = "uid" in raw["metadata"] or "name" in raw["metadata"]
        # Lists and bookmarks can be as of a later moment: others write, too.
        return f"write {index}" + ("" if is_known or not is_object else " or later")

    def _learn(self, resource: str, raw: Json) -> None:
        metadata = raw["metadata"]
        key = f"{resource}/{metadata.get('namespace', '')}/{metadata['name']}"
        self._objects[key] = raw
        version = int(metadata["resourceVersion"])
        index = bisect.bisect_left(self._versions, version)
        if self._versions[index : index + 1] != [version]:
            self._versions.insert(index, version)


Told = list[tuple[str, Any]]


class Player:
    """Plays a story on one side, and keeps what it answers.

    With what the other side has told, answers are waited for until they are the same: controllers
    of the real server need moments.
    """

    def __init__(self, side: Side, wanted: Told | None, *, is_ranking: bool) -> None:
        self.told: Told = []
        self.memory = Memory(is_ranking=is_ranking)
        self.side = side
        self._wanted = wanted
        self._streams: list[EventStream] = []

    def send(
        self, method: str, path: str, body: Any = None, form: str = JSON, **query: str
    ) -> None:
        request = build_request(method, path, self.memory.fill_in(body), form, **query)

        def ask() -> tuple[Any, bool]:
            status, answer = self.side.send(request)
            resource = path.partition("/namespaces/")[2].partition("/")[2].partition("/")[0]
            self.memory.take(resource, status, answer)
            is_final = method != "GET" and status not in {404, 429}
            return self.memory.normalise(status, answer), is_final

        self._keep(f"{method} {path} {body or ''} {query or ''}", ask)

    def watch(self, path: str, **query: str) -> EventStream:
        request = Request("GET", path, {"watch": "true", **query})
        deadline = time.monotonic() + _PATIENCE
        while isinstance(stream := self.side.watch(request), tuple):
            # After a change of a definition, the real server is not ready for a moment.
            assert stream[0] == 429, stream
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self._streams.append(stream)
        return stream

    def read(self, what: str, stream: EventStream) -> None:
        """Note the events until now, and whether they have ended."""

        def look() -> tuple[Any, bool]:
            events = [self.memory.normalise_event(event) for event in list(stream.events)]
            return (events, stream.is_over), False

        self._keep(what, look)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _keep(self, what: str, look: Callable[[], tuple[Any, bool]]) -> None:
        """Note what is to be seen: as wanted, or at last, or if it is final."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            result, is_final = look()
            is_alike = self._wanted is None or self._wanted[len(self.told)][1] == result
            if is_alike or is_final or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self.told.append((what, result))


def play_both(
    story: Callable[[Player], None], real: Side, simulated: Side, *, is_ranking: bool
) -> list[tuple[str, Any, Any]]:
    """Play a story on both sides; return the differences: what, real, simulated."""
    first = Player(simulated, None, is_ranking=is_ranking)
    story(first)
    second = Player(real, first.told, is_ranking=is_ranking)
    try:
        story(second)
    finally:
        for player in (first, second):
            player.close()
    pairs = zip(second.told, first.told, strict=True)
    return [(what, found, wanted) for (what, found), (_, wanted) in pairs if found != wanted]


def reduce(one: Any, other: Any) -> tuple[Any, Any]:
    """Return only the parts of two values that differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if one.get(key, "-") != other.get(key, "-")]
        pairs = {key: reduce(one.get(key, "-"), other.get(key, "-")) for key in keys}
        return {key: pair[0] for key, pair in pairs.items()}, {
            key: pair[1] for key, pair in pairs.items()
        }
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        lists = [reduce(*pair) for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
        return [pair[0] for pair in lists], [pair[1] for pair in lists]
    return one, other
