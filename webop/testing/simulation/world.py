"""One run of a test: an API server in memory, a network, replicas, and the clock of all of them.

Flow: :class:`SimulatedCluster` (what the test calls) → :class:`World` takes steps of the loop until
the wish is fulfilled; the replicas, their requests and their webhooks go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime as dt
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.kinds import Kind, Kinds
from webop.client.objects import AsyncClient
from webop.client.standalone import Networking
from webop.errors import ConfigurationError
from webop.testing.apiserver import Request
from webop.testing.given import add_given
from webop.testing.simulation.api_server import ReviewedNetwork, ReviewedServer, User
from webop.testing.simulation.clocks import Clocks
from webop.testing.simulation.fate import SPARED, Fate
from webop.testing.simulation.network import Fault, Sender, SimulatedTransport
from webop.testing.simulation.replica import Replica
from webop.testing.simulation.virtual_loop import LivelockError, VirtualLoop
from webop.testing.simulation.virtual_threads import SimulationError, VirtualThreads

if TYPE_CHECKING:
    from webop.controlplane.cluster_client import Manifest
    from webop.objects.resources import Resource
    from webop.testing.simulation.sources import Sources

R = TypeVar("R")

_START = 300.0  # seconds for the operator to be ready
_EXIT = 120.0  # seconds for a replica to end when it is asked to
_LOOK = 0.5  # seconds between looks while it waits for something
_QUIET = 5.0  # seconds without a change, after which all is settled
_RESTART = 1.0, 10.0  # seconds until a replica that has ended is started again
_SOON = 60.0  # seconds in which a replica that ends has done nothing
_FAST_ENDS = 5  # of such replicas, one after another: it is hopeless
_STORY = 40  # lines that a failure shows


@dataclass(frozen=True)
class Setup:
    """The setup of all runs of a test.

    Attributes:
        given: what exists at the start.
        now: the time at the start.
        replicas: how many.
        faults: whether seeds bring failures.
        is_replayed: whether the whole story is kept.
    """

    given: Sequence[Manifest]
    now: dt.datetime
    replicas: int
    faults: bool
    is_replayed: bool = False


class World:
    """Everything that lives in one run; see the module.

    Args:
        seed: of the run.
        sources: the handlers.
        setup: of the test.

    Attributes:
        story: what has happened, in lines; the last ones.
        blows: the failures and the ends of replicas among them, also earlier ones.
    """

    def __init__(self, seed: int, sources: Sources, setup: Setup) -> None:
        self.seed = seed
        self.sources = sources
        self.replica_count = setup.replicas
        self.start_time = setup.now
        self.loop = VirtualLoop()
        self.threads = VirtualThreads(self.loop)
        self.loop.set_default_executor(self.threads)
        self.clocks = Clocks(self.loop, self.threads, setup.now.timestamp(), seed)
        self.story: deque[str] = deque(maxlen=None if setup.is_replayed else _STORY)
        self.blows: deque[str] = deque(maxlen=_STORY)
        self.replicas: list[Replica | None] = [None] * setup.replicas
        self.fate = Fate(seed, is_faulty=setup.faults)
        self.ended_at: dt.datetime | None = None
        self._given = setup.given
        self._rng = random.Random(f"world {seed}")
        self._serials = 0
        self._fast_ends = 0
        self._past: list[Replica] = []
        self._absent = set[int]()  # the replicas that the test has ended
        self.server = ReviewedServer(self)
        self.network = ReviewedNetwork(self)
        self.network.latency = self.fate.latency
        self.user = self._build_client()

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """Let the world live for a block: its operator is ready at the begin."""
        self.loop.set_exception_handler(lambda _, context: self._note_error(context))
        with self.sources.kept(), self.clocks.installed():
            try:
                add_given(self.server, self._given, "default")
                self.server.store.observers.append(self.server.note_change)
                self.start()
                self.run_until(lambda: all(one and one.is_ready for one in self.replicas), _START)
                yield
            finally:
                self._close()

    def read_clock(self) -> dt.datetime:
        """Return the time on the wall."""
        return self.start_time + dt.timedelta(seconds=self.loop.time())

    def find_kind(self, kind: Kind) -> Resource:
        """Return a kind of the cluster.

        Raises:
            APINotFoundError: there is none.
        """
        return self.run(self._kinds.find(kind))

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run something of the test, as time goes on."""
        task = self.loop.create_task(coroutine, context=contextvars.Context())
        self._take_steps(task.done)
        return task.result()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        is_over: list[bool] = []
        self.network.later(seconds, is_over.append, True)  # noqa: FBT003 - an item
        self._take_steps(lambda: bool(is_over))

    def run_until(self, is_done: Callable[[], bool], limit: float) -> None:
        """Let time pass until something is so.

        Raises:
            SimulationError: it does not come; the text says what the operator waits for.
        """
        end = self.loop.time() + limit
        while not is_done():
            if self.loop.time() > end:
                raise SimulationError(f"Not within {limit:g} s: {self._describe_obstacles()}")
            self.advance(_LOOK)

    def settle(self, within: float) -> None:
        """Let time pass until nothing is left to do.

        Raises:
            SimulationError: that never comes.
        """
        if len(self._absent) == self.replica_count:
            raise SimulationError("No operator runs, so nothing is done: call start() before.")
        end = self.loop.time() + within
        calm_since = self.loop.time()
        while self.loop.time() < (since := max(calm_since, self.server.changed_at)) + _QUIET:
            if since > end:
                last = f"the last changes: {'; '.join(self.server.changes)}"
                what = self._describe_work() or last
                raise SimulationError(
                    f"The operator has not settled within {within:g} s: {what}. "
                    "If it must go on for ever, use advance()."
                )
            self.advance(_LOOK)
            if self._describe_work():
                calm_since = self.loop.time()

    def check(self) -> None:
        """Check what the test can have missed.

        Raises:
            Exception: what has gone wrong in the last step.
            SimulationError: a failure that the test has ordered has not come, and not by chance.
        """
        if self.loop.interruption is not None:
            raise self.loop.interruption
        for order in self.fate.orders if self.seed == 0 else ():
            if not order.is_used:
                what = f"{order.method or 'request'} of {order.resource or 'any kind'}"
                raise SimulationError(f"fail() has had no effect: the operator sent no {what}.")

    def start(self) -> None:
        """Start all replicas that do not run, and keep them running."""
        self._absent.clear()
        for number in range(self.replica_count):
            self._start(number)

    def kill(self, number: int | None = None) -> None:
        """Let replicas end at once; only :meth:`start` starts them again."""
        chosen = self._choose(number)
        self._dismiss(number)
        for replica in chosen:
            self._kill(replica)

    def stop(self, number: int | None = None) -> None:
        """Ask replicas to end, and wait for it."""
        chosen = self._choose(number)
        self._dismiss(number)
        for replica in chosen:
            self._tell(f"{replica} is asked to stop")
            self.loop.create_task(replica.retire(), context=replica.context.copy())
        self.run_until(lambda: all(replica.task.done() for replica in chosen), _EXIT)

    def _dismiss(self, number: int | None) -> None:
        self._absent.update(range(self.replica_count) if number is None else [number])

    def _choose(self, number: int | None) -> list[Replica]:
        if number is not None and not 0 <= number < self.replica_count:
            raise ValueError(f"There is no replica {number}: they have the numbers from 0.")
        chosen = self.replicas if number is None else [self.replicas[number]]
        return [one for one in chosen if one is not None and one.is_running]

    def _start(self, number: int) -> None:
        present = self.replicas[number]
        if present is not None and present.is_running:
            return
        self._serials += 1
        try:
            with self.loop.entered():  # its modules are imported in the time of the loop
                replica = Replica(self, number, self._serials)
        except Exception as exc:  # noqa: BLE001  the test gets it
            self.loop.interrupt(exc)
            return
        self.replicas[number] = replica
        self._past.append(replica)
        replica.task.add_done_callback(lambda _: self.network.later(0, self._note_end, replica))
        self._tell(f"{replica} starts")

    def _kill(self, replica: Replica) -> None:
        replica.is_dead = True
        self._cut_off(replica)
        self._tell(f"{replica} is killed", is_blow=True)

    def _cut_off(self, replica: Replica) -> None:
        """Let nothing that a process has left behind do anything more: steps, requests, reviews."""
        replica.is_paused = True
        replica.review = None
        if not replica.lost.done():
            replica.lost.set_result(None)
        self.network.cut_off(replica)

    def _note_end(self, replica: Replica) -> None:
        if replica.is_dead:
            return
        self._cut_off(replica)
        error = None if replica.task.cancelled() else replica.task.exception()
        self._tell(f"{replica} has ended{f': {error!r}' if error else ''}", is_blow=bool(error))
        is_fast = error is not None and self.loop.time() < replica.started_at + _SOON
        self._fast_ends = self._fast_ends + 1 if is_fast else 0
        if error is not None and (
            isinstance(error, ConfigurationError) or self._fast_ends > _FAST_ENDS
        ):
            self.loop.interrupt(error)
        elif replica.number not in self._absent:
            self._start_later(replica.number)

    def strike(self, sender: Replica, what: str) -> bool:
        """Let something happen that a seed has drawn; return whether it has."""
        if what == "cut":
            self._tell("all watches are cut", is_blow=True)
            self.network.spoil_watches(Fault("cut", replicas=(*range(self.replica_count),)))
            return True
        if sender.number in self._absent or not sender.is_running:
            return False
        self._kill(sender)
        self._start_later(sender.number)
        return True

    def _start_later(self, number: int) -> None:
        def start() -> None:
            if number not in self._absent:
                self._start(number)

        self.network.later(self._rng.uniform(*_RESTART), start)

    def tell_fault(self, sender: Sender, request: Request, fault: Fault) -> None:
        """Note what goes wrong with a request."""
        what = f"{fault.status}" if fault.kind == "status" else fault.kind
        text = f"{sender.identity}: {request.method} {request.path} fails: {what}"
        self._tell(text, is_blow=True)

    def note_request(self, sender: Sender, request: Request) -> None:
        """Note a request that is carried out."""
        if request.method != "GET" and not any(part in request.path for part in SPARED):
            body = (request.body or b"").decode(errors="replace")
            self._tell(f"{sender.identity}: {request.method} {request.path} {body:.200}")

    @property
    def serving(self) -> list[Replica]:
        """The replicas that serve webhooks."""
        return [one for one in self._choose(None) if one.review is not None]

    @property
    def is_anybody_coming(self) -> bool:
        """Whether a replica starts."""
        wanted = (one for number, one in enumerate(self.replicas) if number not in self._absent)
        return any(one is None or not one.is_ready for one in wanted)

    def _build_client(self) -> AsyncClient:
        vault = Vault({"test": ConnectionInfo(server="https://simulated")})
        transport = SimulatedTransport(self.network, User())
        client = Client(vault, Networking(), transport_factory=lambda _: transport)
        self._kinds = Kinds(client)
        return AsyncClient(client, loop=self.loop)

    def _take_steps(self, is_done: Callable[[], bool]) -> None:
        try:
            self.loop.run_until(is_done)
        except LivelockError as exc:
            raise SimulationError(
                f"Time does not go on, as something is done again and again: {exc}"
            ) from exc
        if self.loop.interruption is not None:
            raise self.loop.interruption

    def _note_error(self, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        if isinstance(exc, SimulationError):
            self.loop.interrupt(exc)
        elif exc is not None:
            self._tell(f"an error that nobody has caught: {exc!r}")

    def _tell(self, what: str, *, is_blow: bool = False) -> None:
        if self.ended_at is not None:
            return
        line = f"{self.read_clock():%Y-%m-%d %H:%M:%S.%f} {what}"
        self.story.append(line)
        if is_blow:
            self.blows.append(line)

    def _describe_work(self) -> str:
        """Say what is left to do now; nothing if nothing is."""
        wanted = [one for one in self.replicas if one is None or one.number not in self._absent]
        running = [one for one in wanted if one is not None and one.is_ready]
        busy = [text for one in running for text in one.list_busy()]
        if len(running) < len(wanted):
            return self._describe_obstacles()
        if not any(one.is_active for one in running):
            return "no replica has the Lease"
        shards = running[0].operator.coordinator.members
        if shards is not None and shards.unowned:
            return "shards have no owner"
        return "; ".join(busy[:3]) or ("a controller acts soon" if self.server.coming else "")

    def _describe_obstacles(self) -> str:
        texts = [
            f"{one}: {'; '.join(one.operator.list_obstacles()) or 'ready'}"
            if one.is_running
            else f"{one} has ended"
            for one in self.replicas
            if one is not None
        ]
        return ", ".join(texts) or "no replica runs"

    def _close(self) -> None:
        """End everything, without effect on anything outside."""
        self.ended_at = self.read_clock()
        former = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # this end is not a part of the test
        try:
            self._end_all()
        finally:
            logging.disable(former)

    def _end_all(self) -> None:
        self._dismiss(None)
        for replica in self._past:
            self.network.cut_off(replica)
        self.threads.close()
        for replica in self._past:  # those that were killed end now, without anybody hearing of it
            replica.is_paused = False
        self.loop.resume()
        self.loop.interruption = None
        left = sorted(asyncio.all_tasks(self.loop), key=hash)
        for task in left:
            task.cancel()
        end = self.loop.time() + _EXIT
        self.network.later(_EXIT, int)  # there is something to wait for
        with contextlib.suppress(Exception, LivelockError):
            self.loop.run_until(lambda: all(t.done() for t in left) or self.loop.time() > end)
        self.loop.set_exception_handler(lambda *_: None)
        for task in asyncio.all_tasks(self.loop):  # somebody catches cancellations
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()
