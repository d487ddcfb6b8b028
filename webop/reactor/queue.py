"""The work queue of one kind: in which order its objects are processed, and how many at once.

:meth:`WorkQueue.add` queues an object, now or after a delay. When its turn comes, the queue calls
``begin`` of its controller, which takes a slot (:meth:`WorkQueue.acquire`) if there is work, and
releases it when the work ends.

Handlers must not run far ahead of the writes: outcomes that are not written stay in memory, and a
crash repeats their handlers. So a worker has a slot until its patch is written. Handlers that take
long release their slot while they run, whatever they wait for, at the pace at which the API server
accepts patches. So the number of slow handlers is not limited, and none delays the handlers of
other objects. While no write succeeds, work starts for one object after each of some pauses.

All methods are sync. Use them in one event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from webop.aio.backoff import Backoff, Once
from webop.calls.threads import Pool, is_crowded
from webop.errors import APIError, APIStatusError
from webop.reactor.parked_bodies import ParkedBodies
from webop.reactor.store import WatchedObject

logger = logging.getLogger(__name__)

_SLOTS: Final = 32  # per kind; twice the number of its concurrent requests
_SLOTS_WHEN_BUSY: Final = 8  # per kind, if other kinds are busy, too
_BUSY: Final = 64  # taken slots of all kinds
_MIN_HOLD: Final = 0.05  # seconds; faster handlers keep their slot
_HOLD_IN_WRITES: Final = 2  # the same as a multiple of an average write
_TOLERATED: Final = 8  # failed writes in a row; then all writes are assumed to fail
_PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds between attempts while writes fail
_BATCH: Final = 20  # objects to start before other tasks of the event loop run
_INTERNAL_ERROR: Final = 500
_SLICE: Final = 0.02  # seconds; the same limit for huge objects
_CROWD_POLLING: Final = 0.1  # seconds


class Lane(enum.IntEnum):
    """Why an object waits."""

    BEGUN = 0
    """Its handlers have been called, and must be called again."""
    CHANGED = 1
    """An event has come."""
    LISTED = 2
    """It was listed."""


# Which lane comes first: objects in progress mostly do, but none waits for ever.
_TURNS: Final = (*((0, 1, 2),) * 4, (0, 2, 1)) * 4 + ((1, 2, 0), (2, 1, 0))


class SharedSlots:
    """State shared by the queues of all kinds.

    Attributes:
        taken: number of taken slots of all kinds.
        slice_end: when other tasks of the event loop must run, by the monotonic clock; None if
            they have just run.
    """

    __slots__ = ("slice_end", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self.slice_end: float | None = None


class WorkQueue:
    """The objects of one kind that wait, and the slots for those that are processed.

    Args:
        name: of the kind, for the log.
        shared: what all kinds of an operator share.
        limit: maximal number of objects in work, including long handlers; None for no limit.

    Attributes:
        pool: the threads of sync handlers, if the kind has any: while many calls wait for a
            thread, no work starts.
        bodies: of the objects that wait.
        forbidden: since when, and last when permissions to write were missing, by namespace and
            subresource.
    """

    def __init__(self, name: str, shared: SharedSlots, *, limit: int | None = None) -> None:
        self.pool: Pool | None = None
        self.bodies = ParkedBodies()
        self.forbidden: dict[tuple[str | None, str | None], tuple[float, float]] = {}
        self._name = name
        self._shared = shared
        self._limit = limit
        self._lanes = tuple(OrderedDict[WatchedObject, None]() for _ in Lane)
        self._turns = itertools.cycle(_TURNS)
        self._taken = self._running = 0
        self._scheduled: asyncio.Handle | None = None
        self._write_seconds = 0.1  # the average; a guess before the first one
        self._failures = 0  # of writes, in a row
        self._written_in: str | None = None  # the namespace of the last answered write
        self._pauses = Backoff(_PAUSES)
        self._pause = self._closed_until = 0.0
        self._is_testing = False  # whether the write of one object tests whether writes work again
        self._logged = Once()

    @property
    def has_waiting(self) -> bool:
        """Whether objects wait for a slot."""
        return any(self._lanes)

    @property
    def is_open(self) -> bool:
        """Whether work on one more object may start."""
        if self._limit is not None and self._running >= self._limit:
            return False
        if self._is_failing:
            return asyncio.get_running_loop().time() >= self._closed_until
        limit = _SLOTS if self._shared.taken < _BUSY else _SLOTS_WHEN_BUSY
        return self._taken < limit and not self._is_crowded

    @property
    def _is_failing(self) -> bool:
        return self._failures >= _TOLERATED

    @property
    def _is_crowded(self) -> bool:
        return self.pool is not None and is_crowded(self.pool)

    def add(
        self, obj: WatchedObject, lane: Lane, *, after: float = 0.0, is_continued: bool = False
    ) -> None:
        """Queue an object, at most once; one that waits in the same lane keeps its place.

        Args:
            obj: the object.
            lane: where it waits.
            after: seconds until its controller queues it again.
            is_continued: whether its work has only been interrupted: then it comes first.
        """
        if after > 0 or obj not in self._lanes[lane]:
            self.remove(obj)
        if after > 0:
            loop = asyncio.get_running_loop()
            obj.timer = loop.call_later(after, obj.controller.enqueue, obj)
        elif not self.has_waiting and self.is_open:
            obj.controller.begin(obj)
        else:
            self._lanes[lane][obj] = None
            if is_continued:
                self._lanes[lane].move_to_end(obj, last=False)
            self._schedule()

    def remove(self, obj: WatchedObject) -> None:
        """Remove an object, if it waits."""
        for lane in self._lanes:
            lane.pop(obj, None)
        if obj.timer is not None:
            obj.timer.cancel()
            obj.timer = None

    def acquire(self) -> None:
        """Take a slot. While writes fail, this tests whether they work again."""
        self._running += 1
        self._take(1)
        if self._is_failing:
            self._is_testing = True
            self._close()

    def release(self) -> None:
        """Release a slot. Work without a write tells nothing about writes: the next can begin."""
        self._running -= 1
        if self._is_testing:
            self._is_testing = False
            self._closed_until = 0.0
        self._take(-1)
        self._schedule()

    @contextlib.contextmanager
    def running_handlers(self, writing: int = 0) -> Iterator[None]:
        """Release the slot while handlers run, if they take long.

        They keep it longer the more of them are ``writing``: otherwise, all objects would be in
        work at once when the API server is slow.
        """
        loop, is_released = asyncio.get_running_loop(), False
        hold = max(_MIN_HOLD, _HOLD_IN_WRITES * self._write_seconds) * (1 + writing / _SLOTS)

        def release() -> None:
            nonlocal is_released
            is_released = True
            self._take(-1)
            self._schedule()

        timer = loop.call_later(hold, release)
        try:
            yield
        finally:
            timer.cancel()
            if is_released:
                self._take(1)

    def note_write(self, seconds: float, namespace: str | None) -> None:
        """Record a write in a namespace that the API server has answered, with any answer."""
        self._write_seconds += 0.2 * (seconds - self._write_seconds)
        self._is_testing = False
        self._written_in = namespace
        if self._is_failing:
            logger.info("Can write %s again.", self._name)
        if self._failures:
            self._failures = 0
            self._pauses.reset()
            self._schedule()

    def note_failure(self, exc: APIError, namespace: str | None) -> None:
        """Record a write in a namespace that the API server could not answer.

        A status 500 says nothing about other namespaces, if the last write to another one was
        answered: the webhooks of a namespace can be the reason.
        """
        is_internal = isinstance(exc, APIStatusError) and exc.status == _INTERNAL_ERROR
        if not is_internal or self._written_in in (None, namespace):
            self._failures += 1
        if self._failures == _TOLERATED:
            text = "Cannot write %s. Their handlers wait until a write succeeds. The last error: %s"
            logger.warning(text, self._name, exc)
        if self._failures == _TOLERATED or self._is_testing:
            self._is_testing = False
            self._pause = self._pauses.next() or 0.0
            self._close()

    def keep_closed(self) -> None:
        """Record that another request has failed: the end of the work lets no other begin."""
        self._is_testing = False

    def choose_level(self, topic: str) -> int:
        """Return the level of a message that many objects can cause: WARNING once a minute."""
        return logging.DEBUG if self._is_failing else self._logged.choose_level(topic)

    async def yield_to_loop(self) -> None:
        """Let other tasks run first if work on objects has blocked the event loop for long.

        Many workers can become ready at once, and each of them can process a huge object.
        """
        shared = self._shared
        while True:
            if shared.slice_end is None:
                shared.slice_end = time.monotonic() + _SLICE
                asyncio.get_running_loop().call_soon(setattr, shared, "slice_end", None)
            if time.monotonic() < shared.slice_end:
                return
            await asyncio.sleep(0)

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        self._closed_until = loop.time() + self._pause
        loop.call_later(self._pause, self._schedule)

    def _take(self, count: int) -> None:
        self._taken += count
        self._shared.taken += count

    def _schedule(self) -> None:
        if self._scheduled is None and self.has_waiting:
            self._scheduled = asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Start work on objects that wait, while it may start, with breaks for other tasks."""
        self._scheduled = None
        end = time.monotonic() + _SLICE
        for _ in range(_BATCH):
            if time.monotonic() >= end:
                break
            if not self.has_waiting:
                return
            if self.is_open:
                lane = next(self._lanes[each] for each in next(self._turns) if self._lanes[each])
                obj, _ = lane.popitem(last=False)
                obj.controller.begin(obj)
            else:
                if self._is_crowded:  # other kinds can end the crowd, and do not notify this one
                    loop = asyncio.get_running_loop()
                    self._scheduled = loop.call_later(_CROWD_POLLING, self._advance)
                return
        self._schedule()
