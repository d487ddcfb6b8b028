"""Candidates in a loop of virtual time, and a Lease in memory whose answers can be late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import webop
from tests.kit.waiting import eventually
from webop.aio.cancellation import WorkerGroup
from webop.client.watch import ListingFinished, ListingStarted, WatchItem, WatchOptions
from webop.context.memos import Memos
from webop.context.operator_context import OperatorContext
from webop.coordination.coordinator import finish_work
from webop.coordination.election import Elector
from webop.coordination.lease_content import LeaseTimes, build_times
from webop.errors import APIConnectionError, APIForbiddenError
from webop.events.loggers import Poster
from webop.handlers.registry import OperatorRegistry

Json = dict[str, Any]

TERMS = {"lease_duration": 3, "renew_deadline": 2, "retry_period": 0.5}
NAME = "election"


@dataclass
class Ledger:
    """The Lease as the API server has it (none at first), with optimistic locking."""

    raw: Json | None = None
    version: int = 0
    feeds: list[asyncio.Queue[WatchItem]] = field(default_factory=list)

    def write(self, raw: Json) -> Json | None:
        """Create or replace; None for a conflict."""
        wanted = raw["metadata"].get("resourceVersion")
        current = None if self.raw is None else self.raw["metadata"]["resourceVersion"]
        if wanted != current:
            return None
        self.version += 1
        metadata = {**raw["metadata"], "resourceVersion": str(self.version)}
        self._publish("MODIFIED" if self.raw else "ADDED", {**raw, "metadata": metadata})
        return self.raw

    def _publish(self, event_type: Any, raw: Json) -> None:
        self.raw = raw
        for feed in self.feeds:
            feed.put_nowait((event_type, raw))

    @property
    def holder(self) -> str:
        """Who holds it; nobody if there is none."""
        return "" if self.raw is None else self.raw["spec"]["holderIdentity"]


class Access:
    """The way of one candidate to the ledger.

    Attributes:
        is_watched: whether the watch is up.
        is_mute: whether it seems to be up, but shows nothing.
        is_cut: whether nothing comes through.
        is_forbidden: whether everything is refused.
        delay: how long answers are on the way, in seconds.
    """

    namespace, name, patience = "default", NAME, 1.0

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.is_watched = True
        self.is_mute = self.is_cut = self.is_forbidden = False
        self.delay = 0.0

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    async def read(self) -> Json | None:
        """Return the object."""
        return await self._pass(lambda: self._ledger.raw)

    async def write(self, raw: Json) -> Json | None:
        """Write the object."""
        return await self._pass(lambda: self._ledger.write(raw))

    async def watch(self, _: WatchOptions) -> AsyncGenerator[WatchItem, None]:
        """Yield the object as it changes, some time later; or, if it is cut, not."""
        if self.is_mute or not self.is_watched:
            await asyncio.Event().wait()
        feed: asyncio.Queue[WatchItem] = asyncio.Queue()
        yield ListingStarted()
        if self._ledger.raw is not None:
            yield None, self._ledger.raw
        yield ListingFinished(str(self._ledger.version))
        self._ledger.feeds.append(feed)
        while True:
            item = await feed.get()
            if not self.is_cut:
                yield item

    async def _pass(self, do: Callable[[], Json | None]) -> Json | None:
        """Have something done, whether anybody still waits for the answer or not."""
        self._meet_fault()
        result = do()
        if self.delay >= self.patience:
            raise APIConnectionError("no answer in time")
        await asyncio.sleep(self.delay)
        self._meet_fault()
        return result

    def _meet_fault(self) -> None:
        if self.is_forbidden:
            raise APIForbiddenError("Cannot update leases", status=403)
        if self.is_cut:
            raise APIConnectionError("the connection is cut")


class Candidate:
    """An elector with its way to the Lease, and one task that it does when it is its turn.

    Attributes:
        steps: when its task took a step, by the loop's clock.
    """

    def __init__(self, ledger: Ledger, identity: str) -> None:
        settings = webop.OperatorSettings()
        settings.leadership.lease_name = NAME
        settings.leadership.exits_when_stuck = False
        for key, value in TERMS.items():
            setattr(settings.leadership, key, value)
        registry = OperatorRegistry()
        self.context = OperatorContext(
            settings=settings,
            registry=registry,
            memos=Memos(webop.Memo()),
            lifecycle=webop.lifecycles.all_at_once,
            identity=identity,
            poster=Poster(settings),
        )
        self.clock = asyncio.get_running_loop().time
        self.elector = Elector(self.context, clock=self.clock)
        self.access = Access(ledger)
        self.times: LeaseTimes = build_times(settings.leadership)
        self.steps: list[float] = []
        self.is_stubborn = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_acting(self) -> bool:
        """Whether it begins things at this moment."""
        return self.context.pausing.is_active and self.may_act

    @property
    def may_act(self) -> bool:
        """Whether a step that it tries at this moment would be taken."""
        fence = self.context.pausing.fence
        return fence is not None and fence.rest > 0

    def start(self) -> None:
        """Stand as a candidate."""
        self.context.pausing.resume("exit")
        self.elector.begin()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End gracefully."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            task, self._task = self._task, None
            if not task.cancelled() and (failure := task.exception()) is not None:
                while isinstance(failure, BaseExceptionGroup):
                    failure = failure.exceptions[0]
                raise failure

    async def _run(self) -> None:
        pausing = self.context.pausing
        async with asyncio.TaskGroup() as group:
            working = group.create_task(self._work())
            access: Any = self.access
            group.create_task(self.elector.campaign(access, self.times))
            try:
                await asyncio.Event().wait()
            finally:
                await finish_work(self.context)
                working.cancel()
                pausing.cancel()

    async def _work(self) -> None:
        """Do something while the candidate is active, as daemons do."""
        pausing, group = self.context.pausing, WorkerGroup()
        while True:
            await pausing.wait_until_active()
            over = asyncio.Event()
            with pausing.subscribed(lambda _, over=over: over.set()):  # type: ignore[misc]
                pausing.spawn(group, self._act(over), name="work")
                await over.wait()

    async def _act(self, over: asyncio.Event) -> None:
        while self.is_stubborn or not over.is_set():
            self.steps.append(self.clock())
            await asyncio.sleep(0.1)


async def until(condition: Callable[[], bool]) -> float:
    """Wait for a condition; return how long it took, in virtual seconds."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    await eventually(condition)
    return loop.time() - started


@contextlib.asynccontextmanager
async def standing(*candidates: Candidate) -> AsyncGenerator[None]:
    """Have candidates stand in the block."""
    for candidate in candidates:
        candidate.start()
    try:
        yield
    finally:
        for candidate in candidates:
            candidate.access.is_cut = candidate.access.is_forbidden = False
            await candidate.stop()
