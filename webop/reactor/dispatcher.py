"""From events of one stream to work on objects: keyed, newest state wins, one worker per object.

All changes of state happen in sync methods; the workers do the I/O. An object without work has
no task, and no body in memory.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from webop.handling.stopping import DaemonStoppingReason
from webop.objects.body import RawEventType
from webop.reactor.gate import Gate
from webop.reactor.tracking import Tracked, get_uid, parse_version

logger = logging.getLogger(__name__)

_HUNG_TIMEOUT = 5.0  # seconds; for daemons on the way out
_NAMED = 3  # of the daemons that hang
_RELEASED_AT_ONCE = 100


class ObjectProcessor(Protocol):
    """What is done about objects; see :mod:`webop.reactor.process`."""

    wants_every_event: bool
    has_indexes: bool

    async def index(self, raw: dict[str, Any]) -> None:
        """Bring the indexes up to a state of an object."""

    def has_work(self, obj: Tracked) -> bool:
        """Tell cheaply whether there is anything to be done about the newest state."""

    async def process(self, obj: Tracked) -> float | None:
        """Do it; return the seconds after which to come back even if nothing changes."""

    def withdraw(self, obj: Tracked) -> None:
        """Take an object that is gone, or is not watched any more, out of the indexes."""

    def forget(self, obj: Tracked) -> None:
        """Drop what else is remembered of an object that is gone."""


class Dispatcher:
    """The objects of one stream, and the workers on them.

    Guarantees:
        One object is never worked on twice at once. A state that comes while its object is being
        worked on is worked on next; states in between may be skipped, the last one never is.
        While it stands by, nothing is begun, and only the indexes are kept up.

    Args:
        processor: what is done about objects.
        spawn: starts a task in the task group of the stream.
        gate: opens when handlers may run; until then, objects are held.
        limit: how many objects are worked on at once; None for no limit.
        is_resuming: whether the objects of the first listing are older than the operator; they
            are not if the stream was restarted.
        is_standing_by: whether others act on the objects until :meth:`switch` is called.
    """

    def __init__(
        self,
        processor: ObjectProcessor,
        *,
        spawn: Callable[..., asyncio.Task[None]],
        gate: Gate[Any],
        limit: int | None = None,
        is_resuming: bool = True,
        is_standing_by: bool = False,
    ) -> None:
        self._processor = processor
        self._spawn = spawn
        self._gate = gate
        self._held: dict[str, Tracked] = {}
        self._limit = limit
        self._objects: dict[str, Tracked] = {}
        self._ready: deque[Tracked] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._is_complete = not is_resuming
        self._is_resuming = is_resuming
        self._is_standing_by = is_standing_by
        self.epoch = 0
        self.has_indexes = processor.has_indexes
        if not gate.is_open:
            gate.subscribe(self._release)

    def __len__(self) -> int:
        return len(self._objects)

    def begin_listing(self) -> None:
        """Note that all objects that exist are about to be seen."""
        self.epoch += 1

    def finish_listing(self) -> None:
        """Find those that were not seen: they were deleted while nobody watched."""
        unseen = [obj for obj in self._objects.values() if obj.seen < self.epoch]
        for obj in unseen:
            if obj.event_type != "DELETED":
                self.feed("DELETED", obj.get_freshest() or _build_tombstone(obj))
        self._is_complete = True
        self._is_resuming = self._is_standing_by
        self._release()

    def switch(self, reason: DaemonStoppingReason | None) -> None:
        """Stand by, for a reason that daemons are told; or, with None, begin to act.

        All is to be listed anew then: what others have done about the objects is to be seen.
        """
        if reason is None:
            self._resume()
        else:
            self._pause(reason)

    async def take(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Take in a listed object or an event; a listing fills the indexes on the way."""
        if self._is_indexing and event_type != "DELETED":
            await self._processor.index(raw)
        self.feed(event_type, raw)

    def feed(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Take in a listed object (type None) or an event of the watch."""
        uid = get_uid(raw)
        obj = self._objects.get(uid)
        if obj is None:
            if event_type == "DELETED" and not self._processor.wants_every_event:
                return
            initial = self._is_standing_by or (event_type is None and self._is_resuming)
            obj = Tracked(self, uid, raw, initial=initial)
            self._objects[uid] = obj
        obj.seen = self.epoch
        if self._processor.wants_every_event and not self._is_standing_by:
            obj.events = [*(obj.events or ()), (event_type, raw)]
        if event_type == "DELETED" or self._is_news(obj, event_type, parse_version(raw)):
            obj.accept(event_type, raw)
            obj.is_unindexed = self.has_indexes and not self._is_indexing
            if event_type == "DELETED":
                self._processor.withdraw(obj)
                if obj.background is not None:
                    obj.background.stop(DaemonStoppingReason.RESOURCE_DELETED)
            self.check(obj)
        elif obj.events:
            self.check(obj)

    def check(self, obj: Tracked) -> None:
        """Start a worker if there is work and nobody is at it."""
        if obj.is_busy or self._is_closing:
            return
        if self._is_standing_by:
            self._lay_down(obj)
            return
        if self._is_holding and not obj.is_unindexed:
            self._held[obj.uid] = obj
            return
        if obj.timer is not None:
            obj.timer.cancel()
            obj.timer = None
        if not self._processor.has_work(obj):
            self._settle(obj)
            return
        obj.is_busy = True
        if self._limit is not None and len(self._workers) >= self._limit:
            self._ready.append(obj)
        else:
            self._workers.add(self._spawn(self._work(obj), name=obj.uid))

    async def drain(self, timeout: float) -> None:
        """Let the handlers under way finish, and record it; nothing new is begun.

        Daemons are asked to stop, and get five seconds for it (chapter "Daemons", "Timeouts").
        """
        self._is_closing = True
        deadline = asyncio.get_running_loop().time() + _HUNG_TIMEOUT
        for obj in self._objects.values():
            if obj.timer is not None:
                obj.timer.cancel()
        self._stop_daemons()
        if self._workers:
            await asyncio.wait(set(self._workers), timeout=timeout)
        stopping = self._stop_daemons()  # also those that workers have started meanwhile
        if stopping:
            rest = deadline - asyncio.get_running_loop().time()
            await asyncio.wait(stopping, timeout=max(0, rest))
        hung: list[str] = []
        for obj in self._objects.values():
            hung += [] if obj.background is None else obj.background.cancel()
        if hung:
            logger.warning(
                "%d daemons or timers have not ended in %g seconds, and are cancelled: %s. Those "
                "in threads cannot be: the process ends when they do.",
                len(hung),
                _HUNG_TIMEOUT,
                ", ".join(hung[:_NAMED]) + (", …" if len(hung) > _NAMED else ""),
            )

    def _stop_daemons(self) -> list[asyncio.Task[None]]:
        """Ask all daemons and timers to stop; return those that are yet to end."""
        stopping: list[asyncio.Task[None]] = []
        for obj in self._objects.values():
            if obj.background is not None:
                stopping += obj.background.stop(DaemonStoppingReason.OPERATOR_EXITING)
        return stopping

    def _pause(self, reason: DaemonStoppingReason) -> None:
        """Begin nothing any more; let the handlers under way finish, ask daemons to stop."""
        self._is_standing_by = True
        self._held.clear()
        for obj in self._ready:
            obj.is_busy = False
        self._ready.clear()
        for obj in list(self._objects.values()):
            if obj.timer is not None:
                obj.timer.cancel()
                obj.timer = None
            if obj.background is not None:
                obj.background.stop(reason)
            if not obj.is_busy:
                self._lay_down(obj)

    def _resume(self) -> None:
        """Begin to act: every object counts as changed when it is listed next."""
        self._is_standing_by = False
        self._is_resuming = True
        for obj in self._objects.values():
            obj.version = 0

    def _lay_down(self, obj: Tracked) -> None:
        """Leave an object to others."""
        obj.abandon()
        self._settle(obj)

    def withdraw(self) -> None:
        """Take all objects out of the indexes: nobody watches them any more."""
        for obj in self._objects.values():
            self._processor.withdraw(obj)

    @property
    def _is_indexing(self) -> bool:
        """Whether the indexes are filled as objects come in, and not by workers."""
        return self.has_indexes and (
            not self._is_complete or self._is_resuming or self._is_standing_by
        )

    @property
    def _is_holding(self) -> bool:
        """Whether it is too early for handlers."""
        return not self._gate.is_open or (self.has_indexes and not self._is_complete)

    def _release(self) -> None:
        """Begin with the objects that were held, with breaks for others."""
        if self._is_holding or self._is_closing:
            return
        for uid in [*itertools.islice(self._held, _RELEASED_AT_ONCE)]:
            self.check(self._held.pop(uid))
        if self._held:
            asyncio.get_running_loop().call_soon(self._release)

    def _is_news(self, obj: Tracked, event_type: RawEventType, version: int) -> bool:
        """Tell whether a state is newer than what is known; own patches come back as events.

        A listing is believed even if it goes back in time, as after a restored backup, unless
        the object was patched since the listing began.
        """
        if not version or version > obj.version:
            return True
        return event_type is None and version < obj.version and obj.epoch < self.epoch

    async def _work(self, obj: Tracked) -> None:
        """Work on an object until nothing is left, then on those that wait for a free worker."""
        try:
            await self._work_on(obj)
            while self._ready and not self._is_stopped:
                await self._work_on(self._ready.popleft())
        finally:
            # At once: an object that comes now must not count on a worker that has left.
            worker: Any = asyncio.current_task()
            self._workers.discard(worker)

    @property
    def _is_stopped(self) -> bool:
        """Whether nothing new is to be begun."""
        return self._is_closing or self._is_standing_by

    async def _work_on(self, obj: Tracked) -> None:
        delay: float | None = 0
        try:
            while (obj.is_dirty or obj.events or delay == 0) and not self._is_stopped:
                obj.is_dirty = False
                delay = await self._processor.process(obj)
        finally:
            obj.is_busy = False  # also if it is cancelled, as at the end of a lease
            if self._is_standing_by:
                self._lay_down(obj)
        if self._is_standing_by:
            return
        if delay is None or obj.event_type == "DELETED":
            self._settle(obj)
        else:
            loop = asyncio.get_running_loop()
            obj.timer = loop.call_later(delay, self._wake, obj)

    def _wake(self, obj: Tracked) -> None:
        obj.timer = None
        obj.is_dirty = True
        self.check(obj)

    def _settle(self, obj: Tracked) -> None:
        """Free what an object holds when there is nothing to do; forget it if all of it is gone."""
        obj.relax()
        if obj.event_type == "DELETED" and not obj.has_background:
            self._objects.pop(obj.uid, None)
            self._processor.forget(obj)


def _build_tombstone(obj: Tracked) -> dict[str, Any]:
    """Return what is known of an object whose deletion was not watched."""
    metadata = {"name": obj.name, "uid": obj.uid}
    if obj.namespace:
        metadata["namespace"] = obj.namespace
    return {"metadata": metadata}
