"""Slots limit how many objects of one kind are processed at once, and order those that wait.

Handlers must not run far ahead of the writes: outcomes that are not written stay in memory, and a
crash repeats their handlers. So a worker takes a slot when it begins, and releases it when the
patch is written. Handlers that take long release their slot while they run, at the pace at which
the API server accepts patches. So the number of slow handlers is not limited.

Objects that wait keep only the JSON of their body, compressed if it is long; if many wait, not even
that. All methods are sync. Use them in one event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from webop.backoff import Backoff, Once
from webop.handling.threads import Pool, is_crowded
from webop.objects.json_text import load

logger = logging.getLogger(__name__)

_SLOTS = 32  # per kind; twice the number of its concurrent requests
_SLOTS_WHEN_BUSY = 8  # per kind, if other kinds are busy, too
_BUSY = 64  # taken slots of all kinds
_MIN_HOLD = 0.05  # seconds; faster handlers keep their slot
_HOLD_IN_WRITES = 2  # the same as a multiple of an average write
_TOLERATED = 8  # failed writes in a row; then all writes are assumed to fail
_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds between attempts while writes fail
_SHARE = 4  # urgent items for each other one while both wait
_BATCH = 20  # objects to start before other tasks of the event loop run
_TURN = 0.02  # seconds; the same limit for huge objects
_CROWD_POLLING = 0.1  # seconds
_COMPRESSED = 1000  # bytes; shorter texts are not compressed
_TEXT_LIMIT = 24_000_000  # bytes per kind; beyond, bodies are read again when needed

Beginning = Callable[[Any], None]


class SharedSlots:
    """State shared by the slots of all kinds.

    Attributes:
        taken: number of taken slots of all kinds.
        turn_end: when other tasks of the event loop must run, by the monotonic clock; None if they
            have just run.
    """

    __slots__ = ("taken", "turn_end")

    def __init__(self) -> None:
        self.taken = 0
        self.turn_end: float | None = None


class Slots:
    """The slots of one kind, and the queue of objects that wait for one.

    Args:
        name: of the kind, for the log.
        shared: what all kinds of an operator share.
        limit: maximal number of objects in work, including long handlers; None for no limit.
        pool: the threads of sync handlers, if the kind has any: while many calls wait for a
            thread, no work starts.

    Attributes:
        forbidden: since when permissions to write are missing, by namespace and subresource.
    """

    def __init__(
        self, name: str, shared: SharedSlots, *, limit: int | None = None, pool: Pool | None = None
    ) -> None:
        self._name = name
        self._shared = shared
        self._limit = limit
        self.pool = pool
        self.forbidden: dict[tuple[str | None, str | None], float] = {}
        self._begun = 0
        self._taken = 0
        self._in_work = 0
        self._queues: tuple[OrderedDict[Any, Beginning], ...] = (OrderedDict(), OrderedDict())
        self._scheduled: asyncio.Handle | None = None
        self._text_bytes = 0
        self._write_seconds = 0.1  # the average; a guess before the first one
        self._pauses = Backoff(_PAUSES)
        self._pause = 0.0
        self._failures = 0
        self._closed_until = 0.0
        self._is_testing = False
        self._logged = Once()

    @property
    def is_open(self) -> bool:
        """Whether work on one more object may start."""
        if self._limit is not None and self._in_work >= self._limit:
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

    @property
    def is_free(self) -> bool:
        """Whether work on one more object may start, and no other object waits."""
        return not self.has_waiting and self.is_open

    @property
    def has_waiting(self) -> bool:
        """Whether objects wait for a slot."""
        return bool(self._queues[0] or self._queues[1])

    async def yield_to_loop(self) -> None:
        """Let other tasks run first if work on objects has blocked the event loop for long.

        Many workers can become ready at once, and each of them can process a huge object.
        """
        shared = self._shared
        while True:
            if shared.turn_end is None:
                shared.turn_end = time.monotonic() + _TURN
                asyncio.get_running_loop().call_soon(setattr, shared, "turn_end", None)
            if time.monotonic() < shared.turn_end:
                return
            await asyncio.sleep(0)

    def choose_level(self, topic: str) -> int:
        """Return the level of a message that many objects can cause: WARNING once a minute."""
        return logging.DEBUG if self._is_failing else self._logged.choose_level(topic)

    def wait(self, begin: Beginning, item: Any, *, is_urgent: bool) -> None:
        """Queue an item, at most once; call a function with it when a slot is free.

        The function calls :meth:`enter` if there is anything to do. Most slots go to urgent items,
        some to others, such as those of a listing.
        """
        self._queues[is_urgent].pop(item, None)
        self._queues[not is_urgent][item] = begin
        self._schedule()

    def remove(self, item: Any) -> None:
        """Remove an item from the queue, if it is there."""
        for queue in self._queues:
            queue.pop(item, None)

    def enter(self) -> None:
        """Take a slot. While writes fail, this tests whether they work again."""
        self._in_work += 1
        self._take(1)
        if self._is_failing:
            self._is_testing = True
            self._close()

    def leave(self) -> None:
        """Release a slot. Work without a write tells nothing about writes: the next can begin."""
        self._in_work -= 1
        if self._is_testing:
            self._is_testing = False
            self._closed_until = 0.0
        self._release()

    @contextlib.contextmanager
    def running_handlers(self) -> Iterator[None]:
        """Release the slot while handlers run, if they take long."""
        is_released = False

        def release() -> None:
            nonlocal is_released
            is_released = True
            self._release()

        hold = max(_MIN_HOLD, _HOLD_IN_WRITES * self._write_seconds)
        timer = asyncio.get_running_loop().call_later(hold, release)
        try:
            yield
        finally:
            timer.cancel()
            if is_released:
                self._take(1)

    def note_write(self, seconds: float) -> None:
        """Record a write that the API server has answered, with success or an error."""
        self._write_seconds += 0.2 * (seconds - self._write_seconds)
        self._is_testing = False
        if self._is_failing:
            logger.info("Can write %s again.", self._name)
        if self._failures:
            self._failures = 0
            self._pauses.reset()
            self._schedule()

    def note_failure(self, reason: str) -> None:
        """Record a write that the API server could not answer."""
        self._failures += 1
        if self._failures == _TOLERATED:
            text = "Cannot write %s. Their handlers wait until a write succeeds. The last error: %s"
            logger.warning(text, self._name, reason)
        if self._failures == _TOLERATED or self._is_testing:
            self._is_testing = False
            self._pause = self._pauses.next() or 0.0
            self._close()

    def keep_closed(self) -> None:
        """Record that work has failed at the API server: its end does not open the slots."""
        self._is_testing = False

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        self._closed_until = loop.time() + self._pause
        loop.call_later(self._pause, self._schedule)

    def pack(self, raw: Any, *, is_needed: bool = False) -> bytes:
        """Return a text to keep instead of a body; empty if too much is kept already.

        A body that is needed cannot be read again: its text is never empty.
        """
        if self._text_bytes >= _TEXT_LIMIT and not is_needed:
            return b""
        dumped = orjson.dumps(raw)
        # A copy, as the buffer of the original is larger than the text.
        is_long = len(dumped) > _COMPRESSED
        text = zlib.compress(dumped, 1) if is_long else bytes(memoryview(dumped))
        self._text_bytes += len(text)
        return text

    def drop(self, text: bytes | None) -> None:
        """Record that a text is no longer kept."""
        self._text_bytes -= len(text or b"")

    def unpack(self, text: bytes) -> dict[str, Any]:
        """Return the body that a text was made of; it must not be empty."""
        self.drop(text)
        raw: dict[str, Any] = load(text if text[0] == 0x7B else zlib.decompress(text))
        return raw

    def _take(self, count: int) -> None:
        self._taken += count
        self._shared.taken += count

    def _release(self) -> None:
        self._take(-1)
        self._schedule()

    def _schedule(self) -> None:
        if self._scheduled is None and self.has_waiting:
            self._scheduled = asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Start waiting items while there are free slots, with breaks for other tasks."""
        self._scheduled = None
        urgent, others = self._queues
        end = time.monotonic() + _TURN
        for _ in range(_BATCH):
            if not (urgent or others):
                return
            if time.monotonic() >= end:
                break
            if not self.is_open:
                if self._is_crowded:  # other kinds can end the crowd, and do not notify this one
                    loop = asyncio.get_running_loop()
                    self._scheduled = loop.call_later(_CROWD_POLLING, self._advance)
                return
            self._begun += 1
            is_for_others = not urgent or (others and self._begun % (_SHARE + 1) == 0)
            queue = others if is_for_others else urgent
            # While writes fail, the newest object has the best chance.
            item, begin = queue.popitem(last=self._is_failing)
            begin(item)
        self._schedule()
