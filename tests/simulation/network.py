"""The network between the replicas and the API server: slow, unreliable, deterministic.

Place in the flow: a replica's client sends its requests into :class:`SimulatedTransport`; they
arrive at the cluster some moments later, whatever has become of the replica meanwhile, and the
answers come back some moments after that. What goes wrong on the way is up to the faults of now.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import orjson

from tests.simulation.virtual import VirtualLoop
from webop.client.http.transport import Request, TransportError
from webop.testing import apiserver as servers

_LATENCY = 0.001, 0.015  # seconds, one way
_SAVE = 0.1  # seconds, between the requests of one patch
_JSON = {b"content-type": b"application/json"}


HANGING = {"hung", "silent", "lost", "mute"}
"""Kinds of faults that let a watch hang until it is given up."""


@dataclass(frozen=True)
class Fault:
    """Something that is wrong for a while.

    Attributes:
        kind: what happens to a request: "refused", "hung" (no answer, not carried out), "silent"
            (no answer, carried out), "lost" (carried out, then the connection is cut), "slow" (it
            arrives late), "late" (carried out at once, the answer is late), "status". Or what
            happens to watches: "cut" at once; "mute": they bring nothing more.
        replicas: who is concerned; all if empty.
        methods: which requests are concerned; all if empty.
        path: a part of the paths that are concerned.
        share: of the requests that are concerned, by chance.
        status: of the answer.
        seconds: how slow, or after how long the client is to try again.
        content: a part of the bodies that are concerned.
    """

    kind: str
    replicas: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    path: str = ""
    share: float = 1.0
    status: int = 503
    seconds: float = 0.0
    content: str = ""

    def concerns(self, replica: int, method: str, path: str, body: bytes | None = None) -> bool:
        return (
            (not self.replicas or replica in self.replicas)
            and (not self.methods or method in self.methods)
            and self.path in path
            and self.content.encode() in (body or b"")
        )


class Sender(Protocol):
    """A process that sends requests.

    Attributes:
        number: of the replica.
        identity: of this incarnation.
    """

    number: int
    identity: str


class Network:
    """Carries requests; see the module.

    Attributes:
        faults: what is wrong now.
        policies: what the API server denies for ever.
        is_given_up: whether the request that is being carried out has no sender any more.

    Args:
        loop: the loop of all processes.
        cluster: what the requests go to.
        rng: for delays, and for who is hit by a fault.
        on_request: called for each request that is carried out, with its sender.
        on_impatience: called when a process patches or reads again before the time that
            ``Retry-After`` has told: with the process, the method, the path, the times from and
            until, and whether it writes more.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        cluster: servers.Cluster,
        rng: random.Random,
        on_request: Callable[[Sender, servers.Request], None],
        on_impatience: Callable[[str, str, str, float, float, bool], None],
    ) -> None:
        self.faults: list[Fault] = []
        self.policies: list[Fault] = []
        self._loop = loop
        self._cluster = cluster
        self._rng = rng
        self._on_request = on_request
        self._on_impatience = on_impatience
        # By process, method and path, since when, until when and for what it was refused.
        self._pauses: dict[tuple[str, str, str], tuple[float, float, set[str]]] = {}
        self._patched: dict[tuple[str, str], float] = {}  # the last time
        self._context = contextvars.Context()  # of no process: it goes on when one stands still
        self._watches: dict[WatchAnswer, Sender] = {}
        self._gone: set[str] = set()
        self.is_given_up = False

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        self._loop.call_at(self._loop.time() + seconds, call, *args, context=self._context)

    def draw_latency(self) -> float:
        return self._rng.uniform(*_LATENCY)

    def begin(self, fault: Fault) -> None:
        """Let something go wrong from now on."""
        self.faults.append(fault)
        for watch, sender in list(self._watches.items()):
            if (
                fault.concerns(sender.number, "WATCH", watch.path)
                and self._rng.random() < fault.share
            ):
                if fault.kind == "cut":
                    watch.fail("the connection was reset")
                elif fault.kind == "mute":
                    watch.is_mute = True

    def end(self, fault: Fault) -> None:
        """Let it be right again; connections that hang do so until somebody gives up."""
        self.faults.remove(fault)

    def cut_off(self, sender: Sender) -> None:
        """Drop the connections of a process that has ended; nothing new comes from it."""
        self._gone.add(sender.identity)
        for watch, owner in list(self._watches.items()):
            if owner is sender:
                watch.fail("the process is gone")

    def submit(self, sender: Sender, request: Request, waiter: asyncio.Future[Any]) -> None:
        if sender.identity in self._gone:
            fail(waiter, "the process is gone")
            return
        path, query = _parse_target(request.target)
        headers = _parse_headers(request.headers)
        sent = servers.Request(
            request.method, path, {**query}, headers, request.content, sender.identity
        )
        is_watch = query.get("watch") in {"true", "1"}
        # Operators may list what they cannot watch, and watch what they cannot list by a watch.
        how = "STREAM" if query.get("sendInitialEvents") == "true" else "WATCH"
        key = sender.identity, how if is_watch else request.method, path
        since, until, refused = self._pauses.get(key, (0.0, 0.0, set()))
        now, place = self._loop.time(), (sender.identity, path.removesuffix("/status"))
        if now < until - _LATENCY[1]:
            # What comes after a part that is new must not stay behind.
            is_next = now - self._patched.get(place, -1.0) < _SAVE
            writes_more = is_next or not _list_values(sent.body) <= refused
            self._on_impatience(*key, since, until, writes_more)
        delay, fault = self.draw_latency(), self._choose(sender.number, sent)
        if request.method == "PATCH" and fault is None:
            self._patched[place] = now
        if fault is None or fault.kind in {"slow", "late"}:
            extra = fault.seconds * self._rng.random() if fault else 0.0
            delay, extra = (delay, extra) if fault and fault.kind == "late" else (delay + extra, 0)
            carry = self._watch if is_watch else self._carry
            self.later(delay, carry, sender, sent, waiter, extra)
        elif fault.kind == "refused":
            self.later(delay, fail, waiter, "connection refused")
        elif fault.kind == "status":
            self.later(delay, succeed, waiter, _refuse(fault))
            if request.method in {"PATCH", "GET"} and fault.status in {429, 503}:
                answered, values = self._loop.time() + delay, _list_values(sent.body)
                if answered < until:  # what a timer writes meanwhile makes a pause no longer
                    refused |= values
                else:
                    self._pauses[key] = now, answered + fault.seconds, values
        elif fault.kind in {"lost", "silent"} and not is_watch:
            self.later(delay, self._lose, sender, sent, waiter, fault)

    def forget(self, watch: WatchAnswer) -> None:
        self._watches.pop(watch, None)

    def _choose(self, replica: int, sent: servers.Request) -> Fault | None:
        what = replica, sent.method, sent.path, sent.body
        for fault in (*self.policies, *self.faults):
            is_hit = fault.kind not in {"cut", "mute"} and fault.concerns(*what)
            if is_hit and self._rng.random() < fault.share:
                return fault
        return None

    def _carry(
        self, sender: Sender, sent: servers.Request, waiter: asyncio.Future[Any], extra: float
    ) -> None:
        self._on_request(sender, sent)
        self.is_given_up = waiter.done()
        answer = self._cluster.handle(sent)
        self.is_given_up = False
        self.later(self.draw_latency() + extra, self._answer, sender, sent, waiter, answer)

    def _answer(
        self,
        sender: Sender,
        sent: servers.Request,
        waiter: asyncio.Future[Any],
        answer: servers.Response,
    ) -> None:
        succeed(waiter, _build_answer(answer))

    def _lose(
        self, sender: Sender, sent: servers.Request, waiter: asyncio.Future[Any], fault: Fault
    ) -> None:
        self._on_request(sender, sent)
        self._cluster.handle(sent)
        if fault.kind == "lost":
            self.later(self.draw_latency() + fault.seconds, fail, waiter, "the answer was cut off")

    def _watch(
        self, sender: Sender, sent: servers.Request, waiter: asyncio.Future[Any], extra: float
    ) -> None:
        self._on_request(sender, sent)
        watch = self._cluster.watch(sent)
        if isinstance(watch, servers.Response):
            self.later(self.draw_latency(), succeed, waiter, _build_answer(watch))
            return
        answer = WatchAnswer(self, sent.path, watch)
        self._watches[answer] = sender
        if "timeoutSeconds" in sent.query:
            self.later(float(sent.query["timeoutSeconds"]), answer.end)
        self.later(self.draw_latency() + extra, succeed, waiter, answer)


class SimulatedTransport:
    """The connections of one replica (see :class:`webop.client.http.transport.Transport`)."""

    def __init__(self, network: Network, sender: Sender) -> None:
        self._network = network
        self._sender = sender

    async def send(self, request: Request) -> Any:
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._network.submit(self._sender, request, waiter)
        return await waiter

    async def aclose(self) -> None:
        """Nothing is to be closed."""


class WatchAnswer:
    is_complete = False

    def __init__(self, network: Network, path: str, watch: servers.Watch) -> None:
        self.status = 200
        self.headers: Mapping[bytes, bytes] = _JSON
        self.path = path
        self.is_mute = False
        self._network = network
        self._watch = watch
        self._chunks: deque[bytes] = deque()
        self._problem = ""
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        self._is_due = False
        watch.on_event = self._expect
        self._expect()

    async def receive(self) -> bytes:
        while not self._chunks:
            if self._problem:
                raise TransportError(self._problem)
            if self._is_over:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._chunks.popleft()

    async def aclose(self) -> None:
        """Close it: the API server notices it at once."""
        self._leave()

    def fail(self, problem: str) -> None:
        self._problem = problem
        self._leave()

    def end(self) -> None:
        """End it as the API server does when its time is over."""
        if not self.is_mute:
            self._is_over = True
            self._leave()

    def _expect(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._network.later(self._network.draw_latency(), self._deliver)

    def _deliver(self) -> None:
        self._is_due = False
        events = list(self._watch.events)
        self._watch.events.clear()
        if self.is_mute:
            return
        if events:
            self._chunks.append(b"".join(orjson.dumps(event) + b"\n" for event in events))
            self._wake()
        if self._watch.is_over:
            self.end()

    def _leave(self) -> None:
        self._watch.close()
        self._network.forget(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _ContentAnswer:
    is_complete = True

    def __init__(self, status: int, headers: Mapping[bytes, bytes], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self._content = content

    async def receive(self) -> bytes:
        """Return the content, then nothing."""
        content, self._content = self._content, b""
        return content

    async def aclose(self) -> None:
        """Nothing is to be closed."""


def succeed(waiter: asyncio.Future[Any], answer: Any) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def fail(waiter: asyncio.Future[Any], problem: str) -> None:
    """Tell whoever still waits that there is no answer."""
    if not waiter.done():
        waiter.set_exception(TransportError(problem))


def _build_answer(response: servers.Response) -> _ContentAnswer:
    extra = {name.lower().encode(): value.encode() for name, value in response.headers.items()}
    return _ContentAnswer(response.status, _JSON | extra, response.encode())


def _list_values(patch: bytes | None) -> set[str]:
    """Return what a patch writes, and where; not the version of the object that it is made for."""
    content = orjson.loads(patch or b"{}")
    if isinstance(content, list):
        return {str(operation) for operation in content if operation["op"] != "test"}

    def walk(value: Any, place: str) -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            yield from walk(inner, f"{place}/{key}")
        if not isinstance(value, dict) and not place.endswith("/resourceVersion"):
            yield f"{place}: {value}"

    return {*walk(content, "")}


@functools.lru_cache(256)
def _parse_target(target: str) -> tuple[str, Mapping[str, str]]:
    parts = urlsplit(target)
    return parts.path, dict(parse_qsl(parts.query, keep_blank_values=True))


@functools.lru_cache(256)
def _parse_headers(block: bytes) -> dict[str, str]:
    lines = block.decode().split("\r\n")
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


_REASONS: Mapping[int, str] = {
    401: "Unauthorized",
    403: "Forbidden",
    409: "Conflict",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def _refuse(fault: Fault) -> _ContentAnswer:
    # What is about the content of a patch is of a policy; else permissions are missing.
    is_policy = fault.status == 403 and fault.content
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "denied the request" if is_policy else "as the simulation wants it",
        "reason": _REASONS[fault.status],
        "code": fault.status,
    }
    headers = {**_JSON}
    if fault.seconds:
        headers[b"retry-after"] = b"%d" % max(1, fault.seconds)
    return _ContentAnswer(fault.status, headers, orjson.dumps(status))
