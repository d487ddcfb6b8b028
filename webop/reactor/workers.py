"""The workers of one kind: tasks that take objects from its queue and give them their turns.

There are 32 at most, and one more for each whose object has been in a function of the user for
0.1 s. So none of these functions delays other objects, and handlers do not run ahead of what is
written: a worker that writes counts.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from webop.aio.backoff import Once
from webop.aio.cancellation import WorkerGroup
from webop.calls.threads import is_crowded
from webop.context.operator_context import OperatorContext
from webop.reactor.bodies import Bodies
from webop.reactor.entry import Entry, State
from webop.reactor.outages import Outages
from webop.reactor.queue import REST, Result, WorkQueue

_WORKERS: Final = 32
_SLICE: Final = 0.02  # seconds; then other tasks of the event loop run
_CROWDED: Final = 100  # objects; if more wait, their states are kept as text


class Pace:
    """Lets other tasks run if work on objects has blocked the event loop for long.

    Many workers can become ready at once, and each of them can process a huge object.
    """

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end: float | None = None  # None: other tasks have just run

    async def give_way(self) -> None:
        """Return at once, or after other tasks have run."""
        while True:
            if self._end is None:
                self._end = time.monotonic() + _SLICE
                asyncio.get_running_loop().call_soon(setattr, self, "_end", None)
            if time.monotonic() < self._end:
                return
            await asyncio.sleep(0)


class Workers:
    """The workers of one kind, in all of its namespaces and versions.

    Args:
        name: of the kind, for the log.
        operator: has the settings.
        bodies: of all kinds.
        pace: of all kinds.

    Attributes:
        queue: the objects that wait.
        outages: where no handlers begin.
        reports: what is logged once a minute, though many objects cause it.
    """

    def __init__(self, name: str, operator: OperatorContext, bodies: Bodies, pace: Pace) -> None:
        self.queue = WorkQueue(asyncio.get_running_loop().time)
        self.outages = Outages(name, self.queue, self.start)
        self.reports = Once()
        self.bodies = bodies
        self.pace = pace
        self._name = name
        self._settings = operator.settings
        self._group = WorkerGroup()
        self._count = 0
        self._late: set[Entry] = set()  # in functions of the user for 0.1 s
        self._alarm: asyncio.TimerHandle | None = None

    def add(self, obj: Entry, *, after: float = 0.0) -> None:
        """Queue an object; a worker takes it."""
        self.queue.add(obj, after=after)
        if self.queue.count > _CROWDED and obj.state is not State.RUNNING:
            self.bodies.park(obj)
        self.start()

    def start(self) -> None:
        """Start as many workers as there is work for, and may be."""
        while self._may_start and (obj := self.queue.get()) is not None:
            self._count += 1
            self._group.create_task(self._work(obj), name=f"worker of {self._name}")
        self._set_alarm()

    def note_late(self, obj: Entry, *, is_async: bool) -> None:
        """Let one worker more start: this object has been in a function of the user for 0.1 s.

        Unless it is one of very many that wait for a thread.
        """
        if is_async or not is_crowded(self._settings.execution):
            self._late.add(obj)
            self.start()

    def note_end(self, obj: Entry) -> None:
        """Record that functions of the user have ended."""
        self._late.discard(obj)

    @property
    def _may_start(self) -> bool:
        limit = self._settings.batching.worker_limit
        is_allowed = limit is None or self._count < limit
        return is_allowed and self._count - len(self._late) < _WORKERS

    async def _work(self, first: Entry) -> None:
        """Give turns to one object after the other, while there are any."""
        obj: Entry | None = first
        try:
            while obj is not None:
                await self.pace.give_way()
                result = await obj.stream.take_turn(obj)
                self._end_turn(obj, result)
                self._count -= 1  # as if it started again
                obj = self.queue.get() if self._may_start else None
                self._count += 1
        finally:
            if obj is not None:  # it was cancelled
                self._end_turn(obj, REST)
            self._count -= 1
            self.start()

    def _end_turn(self, obj: Entry, result: Result) -> None:
        self._late.discard(obj)
        self.queue.done(obj, result)
        if self.queue.count > _CROWDED and obj.state is not State.RUNNING:
            self.bodies.park(obj)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Wake up when the next object is due."""
        due = self.queue.next_due
        if due is None or (self._alarm is not None and self._alarm.when() <= due):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        # For a moment that is now, uvloop returns no timer, but a handle without a time.
        self._alarm = loop.call_later(max(0.001, due - loop.time()), self._ripen)

    def _ripen(self) -> None:
        self._alarm = None
        self.queue.ripen()
        self.start()
