"""The network between the replicas and the API server: slow, unreliable, deterministic.

Place in the flow: a replica's client sends its requests into :class:`SimulatedTransport`; they
arrive at the cluster some moments later, whatever has become of the replica meanwhile, and the
answers come back some moments after that. :meth:`Network.choose` says which of them fail.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from webop.client.http.transport import Request, TransportError
from webop.testing import apiserver as servers
from webop.testing.simulation.virtual_loop import VirtualLoop
from webop.testing.wire import JSON, Answer, parse_request

LATENCY = 0.001, 0.015  # seconds, one way


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
        seconds: how slow, or after how long the client must try again.
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
        is_given_up: whether the request that is being carried out has no sender any more.
        latency: the shortest and the longest time of one way, in seconds.

    Args:
        loop: the loop of all processes.
        cluster: what the requests go to.
        rng: for delays.
        on_request: called for each request that is carried out, with its sender.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        cluster: servers.Cluster,
        rng: random.Random,
        on_request: Callable[[Sender, servers.Request], None],
    ) -> None:
        self.is_given_up = False
        self.latency = LATENCY
        self.loop = loop
        self.rng = rng
        self._cluster = cluster
        self._on_request = on_request
        self._context = contextvars.Context()  # of no process: it goes on when one stands still
        self._watches: dict[WatchAnswer, Sender] = {}
        self._gone: set[str] = set()

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Call a function some seconds later, in the context of no process."""
        self.loop.call_at(self.loop.time() + seconds, call, *args, context=self._context)

    def draw_latency(self) -> float:
        """Return the seconds of one way."""
        return self.rng.uniform(*self.latency)

    def choose(self, sender: Sender, sent: servers.Request) -> Fault | None:
        """Return what goes wrong with a request; here, nothing."""
        del sender, sent
        return None

    def spoil_watches(self, fault: Fault) -> None:
        """Let a fault hit the watches that there are."""
        for watch, sender in list(self._watches.items()):
            is_hit = fault.concerns(sender.number, "WATCH", watch.path)
            if is_hit and self.rng.random() < fault.share:
                if fault.kind == "cut":
                    watch.fail("the connection was reset")
                elif fault.kind == "mute":
                    watch.is_mute = True

    def cut_off(self, sender: Sender) -> None:
        """Drop the connections of a process that has ended; nothing new comes from it."""
        self._gone.add(sender.identity)
        for watch, owner in list(self._watches.items()):
            if owner is sender:
                watch.fail("the process is gone")

    def send(self, sender: Sender, request: Request, waiter: asyncio.Future[Any]) -> None:
        """Let a request arrive, or what goes wrong with it; the future gets the answer, or this."""
        if sender.identity in self._gone:
            fail(waiter, "the process is gone")
            return
        sent = parse_request(request, sender.identity)
        delay, fault = self.draw_latency(), self.choose(sender, sent)
        if fault is None or fault.kind in {"slow", "late"}:
            extra = fault.seconds * self.rng.random() if fault else 0.0
            late, slow = (extra, 0.0) if fault and fault.kind == "late" else (0.0, extra)
            carry = self._watch if sent.is_watch else self.carry
            self.later(delay + slow, carry, sender, sent, waiter, late)
        elif fault.kind == "refused":
            self.later(delay, fail, waiter, "connection refused")
        elif fault.kind == "status":
            self.later(delay, succeed, waiter, _refuse(fault))
        elif fault.kind in {"lost", "silent"} and not sent.is_watch:
            self.later(delay, self._lose, sender, sent, waiter, fault)

    def forget(self, watch: WatchAnswer) -> None:
        """Know a watch no more."""
        self._watches.pop(watch, None)

    def carry(
        self,
        sender: Sender,
        sent: servers.Request,
        waiter: asyncio.Future[Any] | None,
        extra: float,
    ) -> None:
        """Carry a request out, and let its answer come back if anybody waits for it."""
        self._on_request(sender, sent)
        self.is_given_up = waiter is not None and waiter.done()
        answer = self._cluster.handle(sent)
        self.is_given_up = False
        if waiter is not None:
            self.answer(waiter, answer, extra)

    def answer(
        self, waiter: asyncio.Future[Any], answer: servers.Response, extra: float = 0.0
    ) -> None:
        """Let an answer come back."""
        self.later(self.draw_latency() + extra, succeed, waiter, Answer(answer))

    def _lose(
        self, sender: Sender, sent: servers.Request, waiter: asyncio.Future[Any], fault: Fault
    ) -> None:
        self.carry(sender, sent, None, 0.0)
        if fault.kind == "lost":
            self.later(self.draw_latency() + fault.seconds, fail, waiter, "the answer was cut off")

    def _watch(
        self, sender: Sender, sent: servers.Request, waiter: asyncio.Future[Any], extra: float
    ) -> None:
        if sender.identity in self._gone or waiter.done():
            return
        self._on_request(sender, sent)
        watch = self._cluster.watch(sent)
        if isinstance(watch, servers.Response):
            self.answer(waiter, watch)
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
        self._network.send(self._sender, request, waiter)
        return await waiter

    async def aclose(self) -> None:
        """There is nothing to close."""


class WatchAnswer:
    """The answer to a watch: events, each some moments after it has happened."""

    is_complete = False

    def __init__(self, network: Network, path: str, watch: servers.Watch) -> None:
        self.status = 200
        self.headers: Mapping[bytes, bytes] = JSON
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


def succeed(waiter: asyncio.Future[Any], answer: Any) -> None:
    """Give an answer, if it is still awaited."""
    if not waiter.done():
        waiter.set_result(answer)


def fail(waiter: asyncio.Future[Any], problem: str) -> None:
    """Say that there is no answer, if it is still awaited."""
    if not waiter.done():
        waiter.set_exception(TransportError(problem))


_REASONS: Mapping[int, str] = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def _refuse(fault: Fault) -> Answer:
    # A policy denies the content of a patch; else permissions are missing.
    is_policy = fault.status == 403 and fault.content
    message = "denied the request" if is_policy else "as the simulation wants it"
    reason = _REASONS.get(fault.status, "")
    response = servers.Refusal(fault.status, reason, message).build_response()
    if fault.seconds:
        response.headers["retry-after"] = str(int(max(1, fault.seconds)))
    return Answer(response)
