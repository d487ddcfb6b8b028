"""Slots for work: how many objects of one kind are worked on at once, and which come next.

Handlers must not run far ahead of the writes: what has finished but is not written stays in
memory, and is repeated after a crash. So an object takes a place when work on it begins and gives
it back when its patch is written. Slow handlers give their place back while they run, as fast as
the API server accepts patches, so that their number is not limited.

Objects that wait keep no body: only its JSON, compressed if it is long, and not even that if many
wait. Sync and used in one event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import orjson

from webop.backoff import Backoff, Once
from webop.handling.threads import Pool, is_crowded

logger = logging.getLogger(__name__)

_PLACES = 32  # of one kind: for twice as many objects as requests of it are sent at once
_PLACES_WHEN_BUSY = 8  # of one kind, if other kinds are busy, too
_BUSY = 64  # places of all kinds
_SHORTEST_STAY = 0.05  # seconds; handlers that are faster keep their place
_STAY_IN_WRITES = 2  # the same as a multiple of an average write
_TOLERATED = 8  # failed writes in a row; after more, it is assumed that all fail
_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds; between attempts then
_BEGUN_AT_ONCE = 20  # objects, before other tasks of the event loop run
_TURN = 0.02  # seconds; the same for huge objects
_CROWD_POLLING = 0.1  # seconds
_COMPRESSED = 1000  # bytes; shorter texts stay as they are
_SHELF = 24_000_000  # bytes of texts of one kind; other bodies are read again when needed

Beginning = Callable[[Any], None]
Call = Future[Any] | asyncio.Task[Any]


class SharedSlots:
    """What the rooms of all kinds share, also with later rooms after credentials were lost.

    Attributes:
        taken: the places that are taken.
        turn_end: when other tasks of the event loop must run, by the monotonic clock; None if they
            have just run.
        blocked: the calls that nobody waits for any more, in threads or as tasks that cannot be
            cancelled, by the uids of objects.
    """

    __slots__ = ("blocked", "taken", "turn_end")

    def __init__(self) -> None:
        self.taken = 0
        self.turn_end: float | None = None
        self.blocked: dict[str, set[Call]] = {}


class Slots:
    """The places of one kind, and the queue for them.

    Args:
        name: of the kind, for the log.
        total: shared by all kinds of an operator.
        limit: of the objects in work, long handlers included; None for no limit.
        pool: the threads of sync handlers, if there are some: while many calls wait for a thread,
            no work starts.
    """

    def __init__(
        self, name: str, total: SharedSlots, *, limit: int | None = None, pool: Pool | None = None
    ) -> None:
        self._name = name
        self._total = total
        self._limit = limit
        self.pool = pool
        self._taken = 0
        self._begun = 0
        self._queues: tuple[deque[tuple[Beginning, Any]], ...] = (deque(), deque())
        self._alarm: asyncio.Handle | None = None
        self._shelved = 0
        self._write_seconds = 0.1  # the average; a guess before the first one
        self._pauses = Backoff(_PAUSES)
        self._failures = 0
        self._closed_until = 0.0
        self._logged = Once()

    @property
    def is_open(self) -> bool:
        """Whether work on one more object may start."""
        if self.is_limited:
            return False
        if self._is_failing:
            return asyncio.get_running_loop().time() >= self._closed_until
        places = _PLACES if self._total.taken < _BUSY else _PLACES_WHEN_BUSY
        return self._taken < places and not self._is_crowded

    @property
    def _is_failing(self) -> bool:
        return self._failures >= _TOLERATED

    @property
    def _is_crowded(self) -> bool:
        return self.pool is not None and is_crowded(self.pool)

    @property
    def is_limited(self) -> bool:
        """Whether there is so much work that not even failed writes may be retried."""
        return self._limit is not None and self._begun >= self._limit

    @property
    def is_free(self) -> bool:
        """Whether work on one more object may start, and none waits."""
        return not (self._queues[0] or self._queues[1]) and self.is_open

    async def take_turn(self) -> None:
        """Let other tasks run first if work on objects has kept them waiting for long.

        Many workers can become ready at once, and with huge objects each of them takes its time.
        """
        total = self._total
        while True:
            if total.turn_end is None:
                total.turn_end = time.monotonic() + _TURN
                asyncio.get_running_loop().call_soon(setattr, total, "turn_end", None)
            if time.monotonic() < total.turn_end:
                return
            await asyncio.sleep(0)

    def choose_level(self, topic: str) -> int:
        """Return the level of a message that many objects can cause: a warning once a minute."""
        return logging.DEBUG if self._is_failing else self._logged.choose_level(topic)

    def wait(self, begin: Beginning, item: Any, *, is_urgent: bool) -> None:
        """Call a function with the item when there is a place for it.

        The function calls :meth:`enter` if there is anything to do. Urgent items come before all
        others, such as those of a listing.
        """
        self._queues[not is_urgent].append((begin, item))
        self._schedule()

    def enter(self, *, is_retry: bool = False) -> None:
        """Take a place.

        Args:
            is_retry: whether it is for what could not be written before. Only other objects test
                whether writing works again: one after each pause.
        """
        self._begun += 1
        self._take(1)
        if self._is_failing and not is_retry:
            self._close()

    def leave(self) -> None:
        """Give a place back."""
        self._begun -= 1
        self._give_back()

    @contextlib.contextmanager
    def running_handlers(self) -> Iterator[None]:
        """Give the place back while handlers run, if they take long."""
        is_out = False

        def go_out() -> None:
            nonlocal is_out
            is_out = True
            self._give_back()

        stay = max(_SHORTEST_STAY, _STAY_IN_WRITES * self._write_seconds)
        alarm = asyncio.get_running_loop().call_later(stay, go_out)
        try:
            yield
        finally:
            alarm.cancel()
            if is_out:
                self._take(1)

    def note_write(self, seconds: float) -> None:
        """Record a write that the API server has answered, successful or not."""
        self._write_seconds += 0.2 * (seconds - self._write_seconds)
        if self._is_failing:
            logger.info("Writing %s works again.", self._name)
        if self._failures:
            self._failures = 0
            self._pauses.reset()
            self._schedule()

    def note_failure(self, reason: str) -> None:
        """Record a write that the API server could not answer."""
        self._failures += 1
        if self._failures == _TOLERATED:
            said = "Writing %s fails; no more handlers are called until it works again: %s"
            logger.warning(said, self._name, reason)
            self._close()

    def _close(self) -> None:
        pause, loop = self._pauses.next() or 0, asyncio.get_running_loop()
        self._closed_until = loop.time() + pause
        loop.call_later(pause, self._schedule)

    def block(self, uid: str, call: Call) -> None:
        """Block an object until a call ends that could not be cancelled."""
        self._total.blocked.setdefault(uid, set()).add(call)

    def is_blocked(self, uid: str) -> bool:
        """Tell whether such a call still runs."""
        if not self._total.blocked:
            return False
        calls = {call for call in self._total.blocked.pop(uid, ()) if not call.done()}
        if calls:
            self._total.blocked[uid] = calls
        return bool(calls)

    def pack(self, raw: Any, *, is_needed: bool = False) -> bytes:
        """Return a text to keep instead of a body; an empty one if too much is kept already.

        What is needed cannot be read again, and always has a text.
        """
        if self._shelved >= _SHELF and not is_needed:
            return b""
        dumped = orjson.dumps(raw)
        # Its buffer is larger than the text; a copy is not.
        is_long = len(dumped) > _COMPRESSED
        text = zlib.compress(dumped, 1) if is_long else bytes(memoryview(dumped))
        self._shelved += len(text)
        return text

    def drop(self, text: bytes | None) -> None:
        """Record that a text is no longer kept."""
        self._shelved -= len(text or b"")

    def unpack(self, text: bytes) -> dict[str, Any]:
        """Return the body of a text, which must not be empty."""
        self.drop(text)
        raw: dict[str, Any] = orjson.loads(text if text[0] == 0x7B else zlib.decompress(text))
        return raw

    def _take(self, places: int) -> None:
        self._taken += places
        self._total.taken += places

    def _give_back(self) -> None:
        self._take(-1)
        self._schedule()

    def _schedule(self) -> None:
        if self._alarm is None and (self._queues[0] or self._queues[1]):
            self._alarm = asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Start as many of the waiting items as there are places, with breaks for other tasks."""
        self._alarm = None
        urgent, others = self._queues
        end = time.monotonic() + _TURN
        for _ in range(_BEGUN_AT_ONCE):
            if not (urgent or others):
                return
            if time.monotonic() >= end:
                break
            if not self.is_open:
                if self._is_crowded:  # maybe by other kinds, which do not notify this room
                    loop = asyncio.get_running_loop()
                    self._alarm = loop.call_later(_CROWD_POLLING, self._advance)
                return
            queue = urgent or others
            # While writes fail, those of the newest object may still succeed.
            begin, item = queue.pop() if self._is_failing else queue.popleft()
            begin(item)
        self._schedule()
