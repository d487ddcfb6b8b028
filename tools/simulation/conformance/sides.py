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
import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

import orjson

from tools.simulation.api_server import APIServer
from webop.testing.apiserver import Json, Request, Response, Watch

from .requests import JSON, Drawn

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_TIMESTAMPS = ("creationTimestamp", "deletionTimestamp", "lastTransitionTime")
_RECENT = 300  # writes
_PATIENCE = 20.0  # seconds, for what controllers of the real server do
_UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"


class EventStream(Protocol):
    @property
    def is_over(self) -> bool:
        """Whether the server has ended it."""

    def read(self) -> list[Json]:
        """Return all events until now, from the first one on."""

    def close(self) -> None:
        """End it."""


class Side(Protocol):
    def send(self, request: Request) -> tuple[int, Any]:
        """Return the status and the content of an answer."""

    def watch(self, request: Request) -> EventStream | tuple[int, Any]:
        """Begin a watch; or return the refusal."""


class RealSide:
    def __init__(self, cluster: LocalCluster) -> None:
        parts = urlsplit(cluster.server)
        self._address = parts.hostname or "", parts.port or 443
        self._token = cluster.token
        ca = base64.b64decode(cluster.ca_data).decode()
        self._context = ssl.create_default_context(cadata=ca)
        self._connection = self._connect()

    def send(self, request: Request) -> tuple[int, Any]:
        return _read(self._begin(self._connection, request))

    def watch(self, request: Request) -> EventStream | tuple[int, Any]:
        """Begin a watch; or return the refusal."""
        connection = self._connect()
        answer = self._begin(connection, request)
        if answer.status != 200:
            content = _read(answer)
            connection.close()
            return content
        return _RealStream(connection, answer)

    def reconnect(self) -> None:
        """Begin a new connection: after Ctrl-C, a response can be missing on the old one."""
        self._connection.close()
        self._connection = self._connect()

    def close(self) -> None:
        self._connection.close()

    def _connect(self) -> http.client.HTTPSConnection:
        host, port = self._address
        connection = http.client.HTTPSConnection(host, port, context=self._context)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _begin(
        self, connection: http.client.HTTPSConnection, request: Request
    ) -> http.client.HTTPResponse:
        target = f"{request.path}?{urlencode(request.query)}" if request.query else request.path
        headers = {"accept": "application/json", **request.headers}
        headers["authorization"] = f"Bearer {self._token}"
        connection.request(request.method, target, request.body, headers)
        return connection.getresponse()


class _RealStream:
    """A watch of the real server: a thread reads its events."""

    def __init__(
        self, connection: http.client.HTTPSConnection, answer: http.client.HTTPResponse
    ) -> None:
        self._events: list[Json] = []
        self._connection = connection
        self._socket = connection.sock
        self._answer = answer
        self._thread = threading.Thread(target=self._work, name="conformance watch", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def read(self) -> list[Json]:
        return list(self._events)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the server may have closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._answer.close()
        self._connection.close()

    def _work(self) -> None:
        try:
            while line := self._answer.readline():
                self._events.append(orjson.loads(line))
        except (OSError, http.client.HTTPException):
            pass  # it was closed


class SimulatedSide:
    def __init__(self, seed: int, **options: Any) -> None:
        self.cluster = APIServer(lambda: datetime.now(UTC), random.Random(seed), **options)

    def send(self, request: Request) -> tuple[int, Any]:
        return _split(self.cluster.handle(request))

    def watch(self, request: Request) -> EventStream | tuple[int, Any]:
        """Begin a watch; or return the refusal."""
        watch = self.cluster.watch(request)
        return _split(watch) if isinstance(watch, Response) else _SimulatedStream(watch)


class _SimulatedStream:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    @property
    def is_over(self) -> bool:
        return self._watch.is_over

    def read(self) -> list[Json]:
        return list(self._watch.events)

    def close(self) -> None:
        self._watch.close()


class Memory:
    """What one side has answered until now; its answers in the words of both.

    Args:
        is_ranking: whether versions become their places among those of the writes until now.
    """

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

    def normalise_review(self, request: Json) -> Any:
        """Return the request of a review in the words of both sides."""
        others = {"uid", "userInfo", "options"}
        result = self._normalise({key: request[key] for key in request if key not in others})
        if "generateName" in ((request.get("object") or {}).get("metadata") or {}):
            result.pop("name", None)
        return {**result, "options": (request["options"] or {}).get("kind")}

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


def _read(answer: http.client.HTTPResponse) -> tuple[int, Any]:
    content = answer.read()
    try:
        return answer.status, orjson.loads(content)
    except orjson.JSONDecodeError:
        return answer.status, content.decode()


def _split(response: Response) -> tuple[int, Any]:
    return response.status, response.text or response.body


Told = list[tuple[str, Any]]


class Player:
    """Plays a story on one side, and keeps what it answers.

    With what the other side has told, answers are waited for until they are the same: controllers
    of the real server need moments.
    """

    def __init__(self, side: Side, wanted: Told | None) -> None:
        self.told: Told = []
        # How often something is read until it is as wanted is by chance.
        self.memory = Memory(is_ranking=False)
        self.side = side
        self._wanted = wanted
        self._streams: list[EventStream] = []

    def send(
        self, method: str, path: str, body: Any = None, form: str = JSON, **query: str
    ) -> None:
        request = build_request(method, path, self.memory.fill_in(body), form, **query)

        def ask() -> tuple[Any, bool]:
            status, answer = self.side.send(request)
            told = self.describe(path, status, answer)
            return told, method != "GET" and status not in {404, 429}

        self.keep(f"{method} {path} {body or ''} {query or ''}", ask)

    def describe(self, path: str, status: int, answer: Any) -> Any:
        """Take note of an answer; return what is compared."""
        self.memory.take(path.partition("/namespaces/")[2].split("/")[-1], status, answer)
        return self.memory.normalise(status, answer)

    def watch(self, path: str, **query: str) -> EventStream:
        stream = self.side.watch(Request("GET", path, {"watch": "true", **query}))
        assert not isinstance(stream, tuple), stream
        self._streams.append(stream)
        return stream

    def read(self, what: str, stream: EventStream) -> None:
        """Note the events until now, and whether they have ended."""

        def look() -> tuple[Any, bool]:
            events = [self.memory.normalise_event(event) for event in stream.read()]
            return (events, stream.is_over), False

        self.keep(what, look)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def keep(self, what: str, look: Callable[[], tuple[Any, bool]]) -> None:
        """Note what is to be seen: as wanted, or at last, or if it is final."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            result, is_final = look()
            is_alike = self._wanted is None or self._wanted[len(self.told)][1] == result
            if is_alike or is_final or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self.told.append((what, result))


P = TypeVar("P", bound=Player)


def play_both(
    story: Callable[[P], None], real: Side, simulated: Side, make: Callable[[Side, Told | None], P]
) -> list[tuple[str, Any, Any]]:
    """Play a story on both sides; return the differences: what, real, simulated."""
    first = make(simulated, None)
    story(first)
    second = make(real, first.told)
    try:
        story(second)
    finally:
        for player in (first, second):
            player.close()
    pairs = zip(second.told, first.told, strict=True)
    return [(what, found, wanted) for (what, found), (_, wanted) in pairs if found != wanted]


def build_request(
    method: str, path: str, body: Any = None, form: str = JSON, **query: str
) -> Request:
    content = None if body is None else orjson.dumps(body)
    return Request(method, path, query, {"content-type": form}, content)


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
