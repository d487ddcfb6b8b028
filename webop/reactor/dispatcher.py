"""Dispatch the events of one stream to workers: one worker per object, the newest state wins.

All changes of state happen in sync methods; the workers do the I/O. An object without work has
neither a task nor a body in memory. An object that waits for a slot has no task, and a text
instead of its body.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, KeysView, Sequence
from functools import partial
from typing import Any

from webop.client.events import get_uid, parse_version
from webop.errors import APIError
from webop.handling.registry import ResourceHandlers
from webop.handling.stopping import DaemonStoppingReason
from webop.handling.threads import await_thread
from webop.objects.body import RawEventType
from webop.reactor.background import Background
from webop.reactor.decision import Decision
from webop.reactor.index_gate import IndexGate
from webop.reactor.process import Processor
from webop.reactor.raw_events import RawEvents
from webop.reactor.slots import Slots
from webop.reactor.tracking import (
    NOTHING,
    OnEnd,
    Phase,
    Tracked,
    Working,
    measure_phases,
)

logger = logging.getLogger(__name__)

_PRECISION = 0.001  # seconds; precision of the event loop's timers
_HUNG_TIMEOUT = 5.0  # seconds; for daemons when the operator stops
_NAMED = 3  # daemons in one log line
_TURN = 0.02  # seconds; after that, other tasks of the event loop run
_SHIFT = 1.0  # seconds of work on an object; after that, objects that wait for a slot come first
_CYCLE_SHIFT = 60.0  # the same within a handling cycle: timeouts of handlers count from its start


class Dispatcher:
    """The objects of one stream, and their workers.

    Guarantees:
        An object has at most one worker. A state that arrives while the worker runs is processed
        next; states in between can be skipped, but never the last one.
        Event handlers get raw events in order, in parallel to all other work on the object.
        During a pause, no work starts; only the indexes are updated. It begins with a pause.

    Args:
        processor: how objects are processed.
        spawn: starts a task in the task group of the stream.
        gate: opens when handlers may run; until then, objects wait.
        slots: limits how many objects of the kind are processed at once.

    Attributes:
        epoch: counts the listings.
        is_complete: whether the indexes have all objects, and all are of the present version.
    """

    def __init__(
        self,
        processor: Processor,
        *,
        spawn: Callable[..., asyncio.Task[Any]],
        gate: IndexGate,
        slots: Slots,
    ) -> None:
        self._processor = processor
        self._spawn = spawn
        self._gate = gate
        self._slots = slots
        self._raw_events = RawEvents(processor)
        self._held: OrderedDict[str, Tracked] = OrderedDict()  # quick at its front
        self._objects: dict[str, Tracked] = {}
        self._workers: dict[asyncio.Task[Any], Tracked] = {}
        self._indexed_waiting: set[str] = set()  # uids of objects indexed while they wait
        self._is_closing = False
        self.is_complete = True
        self._is_resuming = True
        self._is_paused = True
        self.epoch = 0
        if not gate.is_open:
            gate.subscribe(self._release)

    @property
    def uids(self) -> KeysView[str]:
        """The uids of the known objects."""
        return self._objects.keys()

    @property
    def _handlers(self) -> ResourceHandlers:
        return self._processor.ctx.handlers

    @property
    def has_indexes(self) -> bool:
        """Whether the objects are indexed."""
        return bool(self._handlers.indexers)

    def measure(self) -> dict[Phase, tuple[int, float]]:
        """See :func:`webop.reactor.tracking.measure_phases`."""
        return measure_phases(self._objects.values())

    def list_busy(self) -> list[Tracked]:
        """Return the objects that are being processed, or whose handlers have failed."""
        return [
            obj
            for obj in self._objects.values()
            if obj.phase is not Phase.IDLE
            or ((obj.work or obj.background) and any(each.failures for each in obj.call_statuses))
        ]

    def begin_listing(self) -> None:
        """Begin a list of all existing objects."""
        self.epoch += 1

    def finish_listing(self) -> None:
        """End a list: treat objects that were not in it as deleted."""
        unseen = [obj for obj in self._objects.values() if obj.seen < self.epoch]
        for obj in unseen:
            if not obj.is_gone:
                self.feed("DELETED", obj.get_freshest() or obj.build_tombstone())
        self.is_complete = True
        self._is_resuming = self._is_paused
        self._release()

    def set_paused(self, reason: DaemonStoppingReason | None) -> None:
        """Pause for a reason, which daemons get; resume if it is None.

        Running handlers finish during a pause. After it, all objects must be listed again to find
        what other operators have done.
        """
        self._is_paused = reason is not None
        if reason is not None:
            self._held.clear()
            self.stop_daemons(reason)
            for obj in list(self._objects.values()):
                self._raw_events.drop(obj)
                self.check(obj)
            return
        self._is_resuming = True
        self.adapt(is_holding=self.has_indexes)  # the watch can have been behind
        for obj in self._objects.values():
            if obj.events:  # a deletion
                self.show_events(obj)

    def adapt(self, *, is_holding: bool) -> None:
        """Check all objects with the next list; hold their handlers until then, if necessary."""
        self.is_complete &= not is_holding
        self._raw_events.slots.pool = self._processor.event_pool
        for obj in self._objects.values():
            obj.version = 0

    async def take(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Accept a listed object or an event; index it first if the indexes are being filled."""
        if self._is_indexing and event_type != "DELETED":
            uid, version = get_uid(raw), parse_version(raw)
            # An indexed object must be known, so that its deletion is noticed.
            obj = self._objects.get(uid) or self._add(uid, event_type, raw)
            # A list can be older than an own patch, whose state is indexed already.
            if version >= obj.version or self._is_news(obj, event_type, version):
                await self._processor.index(raw)
        self.feed(event_type, raw)

    def feed(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Accept a listed object (type None) or an event of the watch."""
        uid = get_uid(raw)
        obj = self._objects.get(uid)
        if obj is None:
            if event_type == "DELETED" and not self._handlers.events:
                return
            obj = self._add(uid, event_type, raw)
        obj.seen = self.epoch
        # Handlers that have got an object get its deletion, also after a pause.
        is_wanted = not self.is_stopped or (event_type == "DELETED" and obj.is_shown)
        if self._handlers.events and is_wanted:
            is_first = not obj.events
            self._raw_events.keep(obj, event_type, raw)
            if is_first or self.is_holding:
                self.show_events(obj)
        if self._is_news(obj, event_type, parse_version(raw)):
            if obj.phase is Phase.WAITING and obj.event_type is None and event_type is not None:
                obj.phase = Phase.IDLE  # it is urgent now: queue it again
            obj.accept(event_type, raw)
            obj.is_unindexed = self.has_indexes and not self._is_indexing
            if event_type == "DELETED":
                self._processor.withdraw(obj)
                if obj.background is not None:
                    obj.background.stop(DaemonStoppingReason.RESOURCE_DELETED)
            self.check(obj)

    def _add(self, uid: str, event_type: RawEventType, raw: dict[str, Any]) -> Tracked:
        """Begin to track an object."""
        # Objects that change during the list arrive as MODIFIED.
        is_old = event_type in {None, "MODIFIED"}
        needs_resume = self._is_paused or (is_old and self._is_resuming)
        obj = self._objects[uid] = Tracked(self, uid, raw, needs_resume=needs_resume)
        return obj

    def show_events(self, obj: Tracked) -> None:
        """Call the handlers of raw events, when they may run."""
        if self.is_holding:
            self._held[obj.uid] = obj
        else:
            self._raw_events.begin(obj)

    def check(self, obj: Tracked) -> None:
        """Decide what happens next to an object, unless a worker has it."""
        if obj.phase is Phase.WORKING or self._is_closing:
            return
        if obj.timer is not None:
            obj.timer.cancel()
            obj.timer = None
        if obj.raw is not None and obj.text is not None:  # the text is of an older state
            self._slots.drop(obj.text)
            obj.text = None
        if self._is_paused:
            self._hand_over(obj)
        elif obj.is_gone:
            self._drop_body(obj)
        elif obj.is_unindexed and (not obj.was_indexed or self.is_holding or obj.backoff_left()):
            self._start(obj, self._index(obj), lambda: None)
        elif self.is_holding:
            obj.phase = Phase.HELD
            obj.since = obj.since or time.monotonic()
            self._held[obj.uid] = obj
            self._pack(obj)
        elif rest := obj.backoff_left():
            self._requeue_after(obj, rest)
        elif self._slots.is_free or (obj.is_retrying and not self._slots.is_limited):
            self._begin(obj)
        else:
            if obj.phase is not Phase.WAITING:
                obj.phase = Phase.WAITING
                obj.since = obj.since or time.monotonic()
                is_urgent = obj.event_type is not None
                self._slots.wait(self._begin_waiting, obj, is_urgent=is_urgent)
            self._index_or_pack(obj)

    def _index_or_pack(self, obj: Tracked) -> None:
        """Index the state of an object that waits for a slot, and keeps its place; then pack it."""
        if not obj.is_unindexed:
            self._pack(obj)
        elif obj.uid not in self._indexed_waiting:
            self._indexed_waiting.add(obj.uid)
            self.run(obj, self._processor.index_newest(obj), self._finish_waiting_index)

    def _finish_waiting_index(self, obj: Tracked, task: asyncio.Task[None]) -> None:
        self._indexed_waiting.discard(obj.uid)
        if obj.phase is Phase.WAITING and not self.is_stopped and not task.cancelled():
            self._index_or_pack(obj)

    def run(self, obj: Tracked, work: Working, on_end: OnEnd) -> asyncio.Task[Any]:
        """Start a worker for an object; react to its end even if it never ran."""

        def finish(task: asyncio.Task[Any]) -> None:
            del self._workers[task]
            on_end(obj, task)

        task = self._spawn(work, name=str(obj))
        self._workers[task] = obj
        task.add_done_callback(finish)
        return task

    async def drain(
        self, timeout: float, reason: DaemonStoppingReason = DaemonStoppingReason.OPERATOR_EXITING
    ) -> float:
        """Start no new work; wait for running handlers, cancel those that exceed the timeout.

        Daemons have five seconds to stop (chapter "Daemons", "Timeouts"). Writes of outcomes have
        the timeout and five more seconds.

        Returns:
            The seconds that remain for cancelled tasks.
        """
        self._is_closing = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _HUNG_TIMEOUT
        for obj in self._objects.values():
            if obj.timer is not None:
                obj.timer.cancel()
            if obj.phase is not Phase.WORKING:  # other streams use the same slots
                self._slots.drop(obj.text)
                self._slots.remove(obj)
                obj.text = None
        self.stop_daemons(reason)
        if self._workers:
            await asyncio.wait(set(self._workers), timeout=timeout)
        stopping = self.stop_daemons(reason)  # also those that workers have just started
        late, since = dict(self._workers), loop.time()
        for worker, obj in late.items():  # most of those that write have finished their handlers
            if worker.cancelling() or not (obj.work or NOTHING).writing.locked():
                worker.cancel()
        if ending := {*stopping, *late}:
            rest = max(deadline - since, _HUNG_TIMEOUT / 2 if late else 0)
            await asyncio.wait(ending, timeout=rest)
        if hung := [name for found in self._list_backgrounds() for name in found.cancel()]:
            logger.warning(
                "%d daemons or timers did not end within %g s and are cancelled: %s. Threads "
                "cannot be cancelled: the process ends when they end.",
                len(hung),
                _HUNG_TIMEOUT,
                _join(hung),
            )
        return max(1.0, since + _HUNG_TIMEOUT - loop.time()) if late else _HUNG_TIMEOUT

    def _list_backgrounds(self) -> list[Background]:
        return [obj.background for obj in self._objects.values() if obj.background is not None]

    def stop_daemons(self, reason: DaemonStoppingReason) -> list[asyncio.Task[None]]:
        """Ask all daemons and timers to stop; return those that have not ended yet."""
        return [task for found in self._list_backgrounds() for task in found.stop(reason)]

    def _hand_over(self, obj: Tracked) -> None:
        """Forget an object; other operators continue from what is stored on it."""
        self._raw_events.drop(obj)
        obj.leave_work()
        self._drop_body(obj)

    @property
    def _is_indexing(self) -> bool:
        """Whether objects are indexed as soon as they arrive, not by workers."""
        return self.has_indexes and (not self.is_complete or self._is_resuming or self._is_paused)

    @property
    def is_holding(self) -> bool:
        """Whether handlers must wait for the indexes, or for a list."""
        return not (self._gate.is_open and self.is_complete)

    @property
    def is_stopped(self) -> bool:
        """Whether no new work may start."""
        return self._is_closing or self._is_paused

    def _release(self) -> None:
        """Start work on the objects that waited for the gate, with breaks for other tasks."""
        if self.is_holding or self._is_closing:
            return
        end = time.monotonic() + _TURN
        while self._held and time.monotonic() < end:
            _, obj = self._held.popitem(last=False)
            self._raw_events.begin(obj)
            self.check(obj)
        if self._held:
            asyncio.get_running_loop().call_soon(self._release)

    def _is_news(self, obj: Tracked, event_type: RawEventType, version: int) -> bool:
        """Return whether a state is newer than the known one; own patches come back as events.

        A listed state is accepted even if it is older, as after a restored backup, unless webop
        has patched the object since the list began. One that seemed to be gone is there again.
        """
        if event_type == "DELETED" or not version or version > obj.version:
            return True
        if event_type is None and (obj.suspected_deleted or obj.is_gone):
            return True
        if event_type is None and version == obj.version and not self.is_complete:
            return True  # the response to an own patch was of another version of the kind
        return event_type is None and version < obj.version and obj.epoch < self.epoch

    def _pack(self, obj: Tracked) -> None:
        """Keep a text instead of the body."""
        if obj.raw is not None and not obj.is_view:
            self._slots.drop(obj.text)
            obj.text, obj.raw = self._slots.pack(obj.raw), None

    def _begin_waiting(self, obj: Tracked) -> None:
        """Start work on an object that got a slot, unless it no longer waits."""
        if obj.phase is Phase.WAITING:
            if self.is_stopped:
                obj.phase = Phase.IDLE
            else:
                self._begin(obj)

    def _begin(self, obj: Tracked) -> None:
        """Start a worker if there is anything to do."""
        if obj.raw is None and obj.text:
            obj.raw = obj.complete(self._slots.unpack(obj.text))
            obj.text = None
        decision: Decision | None = None
        obj.is_dirty = False
        if obj.text is None:  # else it must be read first
            try:
                decision = self._processor.decide(obj)
            except Exception:  # noqa: BLE001  a filter has failed: the worker finds out, and logs it
                decision = None
            else:
                if decision is None and not obj.has_pending and not obj.is_unindexed:
                    if obj.work is not None:
                        obj.work.backoff = None  # others have written what was kept
                    self._drop_body(obj)
                    return
        self._slots.enter(is_retry=obj.is_retrying)
        self._start(obj, self._work(obj, decision), self._slots.leave)

    def _start(
        self, obj: Tracked, coroutine: Coroutine[Any, Any, float | None], leave: Callable[[], None]
    ) -> None:
        obj.phase = Phase.WORKING
        obj.since = time.monotonic()
        self.run(obj, coroutine, partial(self._finish, leave))

    async def _index(self, obj: Tracked) -> float:
        """Update the indexes with the newest state, before any other work on it."""
        await self._processor.index_newest(obj)
        obj.is_dirty = obj.was_indexed = True  # it is not handled yet
        return 0

    async def _work(self, obj: Tracked, decision: Decision | None) -> float | None:
        """Process an object until nothing is left to do, or others have waited for long.

        Returns:
            The seconds until the next work even if nothing changes; None for none.
        """
        began: float = asyncio.get_running_loop().time()
        delay: float | None = 0
        while (obj.is_dirty or delay == 0) and not (self.is_stopped or self.is_holding):
            try:
                if obj.text is not None:  # the state was dropped from memory
                    raw = await self._processor.read(obj)
                    obj.text = None
                    if raw is not None and obj.raw is None:  # else a newer state has arrived
                        is_newer = parse_version(raw) != obj.version
                        obj.accept(obj.event_type, raw)
                        obj.is_unindexed |= is_newer and self.has_indexes
                if obj.is_being_indexed:
                    await self._index(obj)
                obj.was_indexed = False
                await self._slots.yield_to_loop()
                if obj.is_dirty or obj.suspected_deleted:  # a daemon has ended, or it can be gone
                    decision = None
                obj.is_dirty = False
                is_missing = obj.suspected_deleted and await self._is_missing(obj)
                delay = None if is_missing else await self._processor.process(obj, decision)
                decision = None
                if self._slots.has_waiting and self._must_yield(obj, began, delay):
                    break
            except Exception as exc:  # noqa: BLE001  one object must not stop the others
                if isinstance(exc, APIError):
                    self._slots.keep_closed()
                return self._processor.on_error(obj, exc)
        return delay

    def _must_yield(self, obj: Tracked, began: float, delay: float | None) -> bool:
        """Return whether an object has been worked on for long, and there is more to do.

        Its own patches make it dirty, too.
        """
        has_cycle = obj.work is not None and obj.work.cycle is not None
        seconds = asyncio.get_running_loop().time() - began
        if seconds < (_CYCLE_SHIFT if has_cycle else _SHIFT):
            return False
        has_more = delay == 0 or obj.raw is None or obj.is_unindexed or obj.has_pending
        return has_more or self._processor.decide(obj) is not None

    async def _is_missing(self, obj: Tracked) -> bool:
        """Find out whether an object that seems to be gone is gone."""
        raw = None if obj.is_gone else await self._processor.read(obj)
        obj.suspected_deleted = raw is None and not obj.is_gone
        if raw is not None:
            obj.accept_own(raw)
        elif obj.suspected_deleted and obj.work is not None:
            obj.work.cycle = None
        return obj.suspected_deleted

    def _finish(
        self, leave: Callable[[], None], obj: Tracked, task: asyncio.Task[float | None]
    ) -> None:
        """Decide what happens after the work; after the end of a thread that outlives it."""
        leave()
        await_thread(task, lambda: self._decide(obj, task))

    def _decide(self, obj: Tracked, task: asyncio.Task[float | None]) -> None:
        obj.phase = Phase.IDLE
        obj.since = 0.0
        has_failed = not task.cancelled() and task.exception() is not None
        delay = None if task.cancelled() or has_failed else task.result()
        if task.cancelled():  # others can have continued
            obj.leave_work()
        if self._is_paused:
            self._hand_over(obj)
        elif (obj.is_dirty or obj.is_unindexed) and not self._is_closing and not has_failed:
            self.check(obj)
        elif delay is None or obj.is_gone or self._is_closing:
            self._drop_body(obj)
        else:
            self._requeue_after(obj, delay)

    def _requeue_after(self, obj: Tracked, delay: float) -> None:
        """Process the object again after a delay, even if it does not change."""
        obj.phase = Phase.RESTING
        obj.since = 0.0
        obj.timer = asyncio.get_running_loop().call_later(delay, self._wake, obj)
        self._pack(obj)

    def _wake(self, obj: Tracked) -> None:
        obj.timer = None
        obj.is_dirty = True
        if obj.work is not None and obj.backoff_left() < _PRECISION:  # else it has become longer
            obj.work.paused_until = 0.0
        self.check(obj)

    def _drop_body(self, obj: Tracked) -> None:
        """Free the memory of an object without work; forget it if it is deleted."""
        self._slots.remove(obj)
        obj.phase = Phase.IDLE
        obj.since = 0.0
        obj.raw = obj.indexing = None
        self._slots.drop(obj.text)
        obj.text = None
        obj.is_dirty = obj.was_indexed = False
        obj.daemons_started = True
        if obj.work is not None and obj.work.is_over:
            obj.work = None
        if obj.background is not None and not obj.background.tasks:
            obj.background = obj.background.without_body()
        if obj.is_gone and not obj.has_background and not obj.events and obj.event_task is None:
            self._objects.pop(obj.uid, None)
            self._held.pop(obj.uid, None)
            self._processor.forget(obj.uid)


def _join(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:_NAMED])) + (", …" if len(items) > _NAMED else "")
