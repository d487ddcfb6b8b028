"""The controller of one stream: what it knows of the objects, and the work on them.

Events and lists come in through :meth:`Controller.apply_event`, and put objects into the work queue
of their kind. When the turn of an object comes, one task processes it; its result says when the
next turn is. Otherwise, events, responses to own patches, and the ends of daemons, holds, writes
and indexing queue it.

An object without work has neither a worker nor a body in memory. An object that waits has no
worker, and a text instead of its body, unless the body is that of its daemons. A writer or an
indexer can run at any time.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, KeysView
from functools import partial
from typing import Any, Literal

from webop.client.watch_events import get_uid, parse_version
from webop.errors import APIError
from webop.handlers.stopping import DAEMONS_TIMEOUT, DaemonStoppingReason
from webop.objects.body import RawEventType
from webop.objects.names import join_names
from webop.reactor.daemons import Daemons
from webop.reactor.decision import Decision
from webop.reactor.failures import Pause
from webop.reactor.queue import Lane, WorkQueue
from webop.reactor.reconciler import Reconciler
from webop.reactor.store import NOTHING, State, WatchedObject

logger = logging.getLogger(__name__)

_STATES_INDEXED = 3  # at most; if states arrive faster, handlers see a newer one than the indexes
_NAMED = 3  # daemons in one log line
_SLICE = 0.02  # seconds; after that, other tasks of the event loop run


class Hold(enum.Enum):
    """Why the handlers of all objects of a stream must wait."""

    __hash__ = object.__hash__  # that of Enum is slow, and this is looked up at each event

    PAUSED = enum.auto()
    """Another operator is active: work is left to it."""
    INDEXES = enum.auto()
    """The indexes are not filled."""
    STOPPING = enum.auto()
    """The stream ends."""


class Controller:
    """The objects of one stream, and the work on them.

    Guarantees:
        At most one task calls handlers of an object; a writer and an indexer can run beside it. A
        state that arrives while it runs is processed next; states in between can be skipped, but
        never the last one.
        While the indexes are not filled, and during a pause, objects are only indexed. It begins
        with a pause.

    Lists are numbered. From the start of list 7, ``listing`` is 7, and an object that the list or
    its watch shows gets 7 as ``confirmed``. The response to a patch sets 6.5: the object was there
    after the start, and a list without it can be older than the response. An object that still has
    6 or less at the end of the list is gone. After a pause, ``needed_listing`` is 8.

    Args:
        reconciler: how objects are processed.
        spawn: starts a task that works on an object, in the task group of the stream.
        spawn_indexing: the same for a task that only indexes, also while another operator is
            active.
        queue: of the kind.
        on_indexed: called when all listed objects are in the indexes.

    Attributes:
        listing: the number of the current list.
        holds: why handlers must wait, or may not start any more; empty if they may.
        needed_listing: the list that an object must have been in since a pause, or since the kind
            has changed; before, it awaits that list.
        is_indexed: whether the indexes have all objects.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        *,
        spawn: Callable[..., asyncio.Task[Any]],
        spawn_indexing: Callable[..., asyncio.Task[Any]],
        queue: WorkQueue,
        on_indexed: Callable[[], None],
    ) -> None:
        self.listing = 0
        self.holds = {Hold.PAUSED}
        self.needed_listing = 0
        self.is_indexed = False
        self._reconciler = reconciler
        self._spawn = spawn
        self._spawn_indexing = spawn_indexing
        self._queue = queue
        self._on_indexed = on_indexed
        self._objects: dict[str, WatchedObject] = {}
        self._workers: dict[asyncio.Task[Any], WatchedObject] = {}
        self._held = OrderedDict[WatchedObject, None]()  # quick at its front
        self._awaited: set[WatchedObject] | None = None  # of the list, and not indexed yet
        self._indexing: set[WatchedObject] = set()
        self._vanished: set[str] = set()  # uids of objects that are gone, but no event has said so
        self._is_resuming = True

    @property
    def uids(self) -> KeysView[str]:
        """The uids of the known objects."""
        return self._objects.keys()

    @property
    def has_indexes(self) -> bool:
        """Whether the objects are indexed."""
        return bool(self._reconciler.ctx.handlers.indexers)

    @property
    def is_stopped(self) -> bool:
        """Whether no new work may start, because of a pause or of the end."""
        return Hold.PAUSED in self.holds or Hold.STOPPING in self.holds

    # What is known of the cluster

    def begin_listing(self) -> None:
        """Begin a list of all existing objects."""
        self.listing += 1
        self._awaited = None

    def finish_listing(self, version: int = 0) -> None:
        """End a list of a resource version: objects that were not in it are gone.

        Except for those with a newer answer to a patch: the list came from a cache that is behind.
        If versions are no numbers, each answer since the list began counts as newer.
        """
        unlisted = [obj for obj in self._objects.values() if obj.confirmed < self.listing]
        for obj in unlisted:
            is_newer = not (self._is_unseen(obj) or 0 < obj.version <= version)
            if not (obj.is_gone or is_newer):
                self.apply_event("DELETED", obj.get_freshest() or obj.build_tombstone())
        known = map(self._objects.get, self._vanished)  # no event of the others will come
        self._vanished = {obj.uid for obj in known if obj and obj.confirmed >= self.listing}
        self._is_resuming = Hold.PAUSED in self.holds
        self._awaited = {obj for obj in self._objects.values() if self.holds and obj.is_unindexed}
        self._awaited |= self._indexing
        self._note_indexed(None)

    def _note_indexed(self, obj: WatchedObject | None) -> None:
        """Tell when all objects of the list are in the indexes."""
        if self._awaited is not None:
            if obj is not None:
                self._awaited.discard(obj)
            if not self._awaited:
                self._awaited = None
                self.is_indexed = True
                self._on_indexed()

    def apply_event(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Accept a listed object (type None) or an event of the watch."""
        uid, version = get_uid(raw), parse_version(raw)
        if self._reconciler.ctx.handlers.children:
            self._reconciler.note_child(event_type, raw)
        has_event_handlers = bool(self._reconciler.ctx.handlers.events)
        obj = self._objects.get(uid)
        is_leaving = event_type == "DELETED" and uid not in self._vanished
        is_leaving = is_leaving and self._reconciler.may_have_left(obj, raw)
        if obj is None:
            is_unused = uid in self._vanished or not (has_event_handlers or is_leaving)
            if event_type == "DELETED" and is_unused:
                self._vanished.discard(uid)
                return
            # Objects that change during the list arrive as MODIFIED.
            is_old = event_type in {None, "MODIFIED"} and self._is_resuming
            needs_resume = Hold.PAUSED in self.holds or is_old
            obj = self._objects[uid] = WatchedObject(self, uid, raw, needs_resume=needs_resume)
        is_news = self._is_news(obj, event_type, version)
        has_waited, obj.confirmed = obj.awaits_list, self.listing
        is_unshown_echo = has_event_handlers and version == obj.version != obj.shown
        if not is_news and (obj.is_gone or not is_unshown_echo):
            if has_waited:  # what waits for the list can go on with the known state
                self.enqueue(obj)
            return
        # Handlers that have got an object get its deletion, also after a pause.
        is_wanted = not self.is_stopped or (event_type == "DELETED" and obj.shown is not None)
        if event_type == "DELETED" and uid in self._vanished:  # they have got it, or will get it
            self._vanished.discard(uid)
            obj.is_unshown, is_wanted = obj.shown is not None, False
        obj.is_unshown |= has_event_handlers and is_wanted
        obj.may_have_left = is_leaving
        if is_news:
            self._accept(obj, event_type, raw)
        else:  # our own patch comes back as an event
            obj.event_type = event_type
            if obj.raw is None and obj.text is None:
                obj.raw = obj.complete(raw)
        is_child = self._reconciler.ctx.handlers.has_only_children
        if is_child and obj.state is State.IDLE:  # its owner has been called
            obj.needs_resume = False
            self._let_go(obj)
        else:
            self.enqueue(obj)

    def _accept(self, obj: WatchedObject, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Accept a newer state of an object."""
        obj.accept(event_type, raw)
        obj.is_unindexed = self.has_indexes and not obj.is_gone
        if obj.is_gone:
            self.note_deletion(obj)
        elif obj.uid in self._vanished:  # the state can be late: the object is read first
            self._queue.bodies.drop(obj.text)
            obj.raw, obj.text = None, b""

    def add_left(self, raw: dict[str, Any]) -> None:
        """Remove the finalizer from an object that left while no operator ran."""
        uid = get_uid(raw)
        if uid not in self._objects:
            obj = self._objects[uid] = WatchedObject(self, uid, raw, needs_resume=False)
            obj.accept("DELETED", raw)
            obj.may_have_left = True
            self.enqueue(obj)

    def _is_news(self, obj: WatchedObject, event_type: RawEventType, version: int) -> bool:
        """Return whether a state is newer than the known one; own patches come back as events.

        A listed state is accepted even if it is older, as after a restored backup, unless webop
        has patched the object since the list began. One that seemed to be gone is there again.
        """
        if event_type == "DELETED" or not version or version > obj.version:
            return True
        if event_type is None and (obj.is_gone or (version == obj.version and obj.awaits_list)):
            return True  # or the response to an own patch was of another version of the kind
        return event_type is None and version < obj.version and self._is_unseen(obj)

    def _is_unseen(self, obj: WatchedObject) -> bool:
        """Return whether nothing has shown an object since the list began."""
        return obj.confirmed <= self.listing - 1

    def mark_gone(self, obj: WatchedObject) -> None:
        """Forget an object: the API server has answered that it is gone.

        Event handlers get its deletion. If an event shows it again, it is read; its memo and its
        daemons are new then.
        """
        if not obj.is_gone:
            obj.event_type, obj.is_dirty = "DELETED", True
            self._vanished.add(obj.uid)
            obj.is_unshown = obj.shown is not None
            self.note_deletion(obj)
            self.enqueue(obj)

    def note_deletion(self, obj: WatchedObject) -> None:
        """Stop what an object has: it is gone."""
        obj.is_unindexed = False
        self._reconciler.withdraw(obj)
        if obj.daemons is not None:
            obj.daemons.stop(DaemonStoppingReason.RESOURCE_DELETED)
        self._note_indexed(obj)

    # When an object is processed

    def hold(self, reason: Hold) -> None:
        """Let handlers wait."""
        self.holds.add(reason)

    def unhold(self, reason: Hold) -> None:
        """Remove a reason to wait; if it was the last one, process the objects that wait."""
        self.holds.discard(reason)
        self._enqueue_held()

    def _enqueue_held(self) -> None:
        """Queue the objects that were held, with breaks for other tasks."""
        end = time.monotonic() + _SLICE
        while self._held and not self.holds and time.monotonic() < end:
            obj, _ = self._held.popitem(last=False)
            self.enqueue(obj)
        if self._held and not self.holds:
            asyncio.get_running_loop().call_soon(self._enqueue_held)

    def set_paused(self, reason: DaemonStoppingReason | None) -> None:
        """Pause for a reason, which daemons get; resume if it is None.

        Running handlers finish during a pause. After it, all objects must be listed again to find
        what other operators have done.
        """
        if reason is not None:
            self.hold(Hold.PAUSED)
            self.stop_daemons(reason)
            for obj in list(self._objects.values()):
                obj.is_unshown &= obj.is_gone and obj.shown is not None
                if not self._write_last(obj):
                    self.enqueue(obj)
            return
        self._is_resuming = True
        for obj in self._objects.values():
            if obj.state is not State.RUNNING:
                obj.leave_work()  # a patch from before is outdated
            if obj.reconciling is not None:
                obj.reconciling.resume()
        self.list_again(is_holding=self.has_indexes)  # the watch can have been behind
        self.unhold(Hold.PAUSED)

    def list_again(self, *, is_holding: bool) -> None:
        """Process all objects of the next list; hold their handlers until then, if necessary."""
        self.needed_listing = self.listing + 1
        self._awaited = None
        if is_holding:
            self.is_indexed = False
            self.hold(Hold.INDEXES)

    def enqueue(
        self, obj: WatchedObject, *, after: float | None = None, is_continued: bool = False
    ) -> None:
        """Process an object soon, or after a delay; unless it runs, which is followed by this."""
        if Hold.STOPPING in self.holds:
            return
        if obj.state is State.RUNNING:
            if self.holds and obj.is_unindexed and obj not in self._indexing:
                self._indexing.add(obj)  # the indexes do not wait for its handlers
                work = self._spawn_indexing(self._index(obj), name=f"indexing of {obj}")
                self._follow(obj, work, self._finish_beside)
            return
        if obj in self._indexing:  # its handlers have ended meanwhile; the end of this enqueues it
            return
        if obj.raw is not None and obj.text is not None:  # the text is of an older state
            self._queue.bodies.drop(obj.text)
            obj.text = None
        if obj.is_gone and not (obj.is_unshown or obj.may_have_left):
            self._let_go(obj)
            return
        if Hold.PAUSED in self.holds and not (obj.is_unshown or obj.is_unindexed):
            self._leave(obj)
            return
        # Event handlers and indexers do not wait for the end of a pause, except to read the body.
        if after is None and (obj.text == b"" or not (obj.is_unindexed or obj.is_unshown)):
            after = obj.backoff_left()
        obj.state = State.QUEUED
        obj.since = 0.0 if after else obj.since or time.monotonic()
        self._held.pop(obj, None)
        if after or obj.is_unindexed or not self.holds:
            lane = Lane.LISTED if obj.event_type is None else Lane.CHANGED
            if obj.work is not None and obj.work.cycle is not None:
                lane = Lane.BEGUN
            is_continued &= lane is Lane.BEGUN
            self._queue.add(obj, lane, after=after or 0.0, is_continued=is_continued)
        else:
            self._queue.remove(obj)
            self._held[obj] = None
        if obj.state is State.QUEUED:
            self._park_body(obj)

    def _leave(self, obj: WatchedObject) -> None:
        """Leave an object to the active operator, which also releases it."""
        obj.may_have_left = False
        if not obj.is_writing:  # else the end of that leads here again
            obj.leave_work()
            self._let_go(obj)

    def begin(self, obj: WatchedObject) -> None:
        """Start the work on an object, if there is any: its turn has come.

        While handlers must wait, it is only indexed.
        """
        is_held = bool(self.holds)
        if is_held and not obj.is_unindexed:
            self.enqueue(obj)
            return
        if obj.text:
            self._restore_body(obj)
        decision = None
        if not (obj.is_unindexed or obj.is_unshown or obj.may_have_left):
            decision = self._decide(obj)
            if decision is None:
                return
        obj.is_dirty = False
        if self.has_indexes:
            self._indexing.add(obj)
        self._queue.acquire()
        obj.state, obj.since = State.RUNNING, time.monotonic()
        spawn = self._spawn_indexing if is_held else self._spawn
        task = spawn(self._work(obj, decision or None, is_held=is_held), name=str(obj))
        self._follow(obj, task, self._requeue)

    def _decide(self, obj: WatchedObject) -> Decision | Literal[False] | None:
        """Return the decision about an object; False for work without one.

        If there is no work, return None, and free its memory.
        """
        if obj.text is not None:  # its body must be read first
            return False
        try:
            decision = self._reconciler.decide(obj)
        except Exception:  # noqa: BLE001  a filter has failed: the worker finds out, and logs it
            return False
        if decision is not None:
            return decision
        if obj.work is not None and obj.work.pause.has_failed:
            obj.work.pause = Pause()
        self._let_go(obj)
        return None

    def write(self, obj: WatchedObject, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task that writes for an object, beside other work on it."""
        self._follow(obj, self._spawn(work, name=f"writer of {obj}"), self._finish_beside)

    def _write_last(self, obj: WatchedObject) -> bool:
        """Write what handlers have left, in spite of the pause after a failure: then work ends.

        Return whether there is anything, and no worker that writes it.
        """
        writer = (obj.work or NOTHING).writer
        if writer is None or not writer.has_unwritten or obj.state is State.RUNNING:
            return False
        self.write(obj, writer.write())
        return True

    def _finish_beside(self, obj: WatchedObject, task: asyncio.Task[Any]) -> None:
        del self._workers[task]
        self.enqueue(obj)

    def _follow(
        self,
        obj: WatchedObject,
        task: asyncio.Task[float | None],
        on_end: Callable[[WatchedObject, asyncio.Task[Any]], None],
    ) -> None:
        self._workers[task] = obj
        task.add_done_callback(partial(on_end, obj))  # even if it never ran

    async def _work(
        self, obj: WatchedObject, decision: Decision | None, *, is_held: bool
    ) -> float | None:
        """Process the newest state of an object; only index it if handlers must wait.

        Returns:
            The seconds until the next time even if nothing changes; None for none.
        """
        try:
            try:
                await self._queue.yield_to_loop()
                await self._read_body(obj)
                if obj in self._indexing:
                    await self._index(obj)
            finally:
                self._indexing.discard(obj)
            if is_held:
                return 0.0
            if obj.is_unshown and not self.holds:
                obj.is_unshown, obj.shown = False, None if obj.is_gone else obj.version
                await self._reconciler.show_event(obj)
                await self._read_body(obj)  # a later state can have come
            if obj.may_have_left and not self.holds:
                return await self._reconciler.clean_left(obj)
            if obj.is_gone or self.holds - {Hold.STOPPING}:
                return 0.0
            if obj.is_dirty:  # a newer state has come, or a daemon has ended
                decision, obj.is_dirty = None, False
            return await self._reconciler.reconcile(obj, decision)
        except Exception as exc:  # noqa: BLE001  one object must not stop the others
            if isinstance(exc, APIError):
                self._queue.keep_closed()
            delay = self._reconciler.on_error(obj, exc)
            obj.may_have_left &= delay is not None  # there is no later change
            return delay

    async def _index(self, obj: WatchedObject) -> None:
        """Update the indexes with the newest state of an object."""
        try:
            with self._queue.running_handlers():
                for _ in range(_STATES_INDEXED):
                    if obj.is_unindexed:
                        obj.is_unindexed = False
                        await self._reconciler.index(obj)
        finally:  # after an error, too: handlers must not wait for ever
            self._indexing.discard(obj)
            self._note_indexed(obj)

    def _requeue(self, obj: WatchedObject, task: asyncio.Task[float | None]) -> None:
        """Decide by the result of the work when an object is processed again."""
        del self._workers[task]
        self._queue.release()
        obj.state, obj.since = State.IDLE, 0.0
        if task.cancelled() or task.exception() is not None:
            self._indexing.discard(obj)
            if task.cancelled():
                obj.leave_work()  # others can have continued
            if obj.is_dirty or obj.is_unshown or obj.is_unindexed:
                self.enqueue(obj)
            else:  # a new task would end in the same way; if a pause begins, a list follows
                self._let_go(obj)
        elif obj.is_unindexed or obj.is_unshown or self.holds:
            self.enqueue(obj, is_continued=True)
        elif obj.may_have_left and not obj.has_daemons:  # whose end enqueues it
            self.enqueue(obj, after=None if obj.is_dirty else task.result())
        elif obj.is_dirty:
            if not self._queue.has_waiting or self._decide(obj) is not None:
                self.enqueue(obj, is_continued=True)
        elif task.result() is None or obj.is_gone:
            self._let_go(obj)
        else:
            self.enqueue(obj, after=task.result(), is_continued=True)

    # Bodies

    async def _read_body(self, obj: WatchedObject) -> None:
        """Get the body of an object, if only its text is in memory, or not even that."""
        if obj.text:
            self._restore_body(obj)
        elif obj.text is not None:
            raw = await self._reconciler.read(obj)
            obj.text = None
            if raw is None:
                self.mark_gone(obj)
                return
            self._vanished.discard(obj.uid)
            if obj.raw is None:  # else a newer state has arrived
                is_newer = parse_version(raw) != obj.version
                obj.accept(obj.event_type, raw)
                obj.is_unindexed |= is_newer and self.has_indexes

    def _restore_body(self, obj: WatchedObject) -> None:
        text, obj.text = obj.text, None
        if text and obj.raw is None:
            obj.raw = obj.complete(self._queue.bodies.restore(text))
        else:
            self._queue.bodies.drop(text)

    def _park_body(self, obj: WatchedObject) -> None:
        """Keep a text instead of the body."""
        if obj.raw is not None and not obj.is_view:
            self._queue.bodies.drop(obj.text)
            obj.text = self._queue.bodies.park(obj.raw, is_needed=obj.is_gone)
            obj.raw = None

    def _let_go(self, obj: WatchedObject) -> None:
        """Free the memory of an object without work; forget it if it is gone."""
        self._queue.remove(obj)
        self._held.pop(obj, None)
        obj.state, obj.since = State.IDLE, 0.0
        if obj.reconciling is not None and not obj.is_gone:  # a child can need it at any time
            self._park_body(obj)
            obj.text = b"" if obj.text is None else obj.text
        else:
            self._queue.bodies.drop(obj.text)
            obj.text = None
        obj.raw = None
        obj.is_dirty = False
        if obj.work is not None and obj.work.is_over:
            obj.work = None
        if obj.daemons is not None and not obj.daemons.running:
            obj.daemons = obj.daemons.without_body()
        if obj.is_gone and not obj.has_daemons:
            self._objects.pop(obj.uid, None)
            self._reconciler.forget(obj.uid)

    # The end

    async def drain(
        self, timeout: float, reason: DaemonStoppingReason = DaemonStoppingReason.OPERATOR_EXITING
    ) -> float:
        """Start no new work; wait for running handlers, cancel those that exceed the timeout.

        Daemons have five seconds to stop (chapter "Daemons", "Timeouts"). Writes of outcomes have
        the timeout and five more seconds.

        Returns:
            The seconds that remain for cancelled tasks.
        """
        self.hold(Hold.STOPPING)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DAEMONS_TIMEOUT
        for obj in self._objects.values():
            if obj.state is not State.RUNNING:  # other streams use the same queue
                self._queue.remove(obj)
                self._queue.bodies.drop(obj.text)
                obj.text = None
                if Hold.PAUSED not in self.holds:  # else the pause has done so
                    self._write_last(obj)
        self.stop_daemons(reason)
        if self._workers:
            await asyncio.wait(set(self._workers), timeout=timeout)
        stopping = self.stop_daemons(reason)  # also those that workers have just started
        late, since = dict(self._workers), loop.time()
        for worker, obj in late.items():  # most of those that write have finished their handlers
            if worker.cancelling() or not obj.is_writing:
                worker.cancel()
        if ending := {*stopping, *late}:
            rest = max(deadline - since, DAEMONS_TIMEOUT / 2 if late else 0)
            await asyncio.wait(ending, timeout=rest)
        if hung := [name for each in self._list_daemons() for name in each.cancel()]:
            logger.warning(
                "%d daemons or timers did not end within %g s and are cancelled: %s. Threads "
                "cannot be cancelled: the process ends when they end.",
                len(hung),
                DAEMONS_TIMEOUT,
                join_names(hung, _NAMED),
            )
        return max(1.0, since + DAEMONS_TIMEOUT - loop.time()) if late else DAEMONS_TIMEOUT

    def _list_daemons(self) -> list[Daemons]:
        return [obj.daemons for obj in self._objects.values() if obj.daemons is not None]

    def stop_daemons(self, reason: DaemonStoppingReason) -> list[asyncio.Task[None]]:
        """Ask all daemons and timers to stop; return those that have not ended yet."""
        return [task for each in self._list_daemons() for task in each.stop(reason)]

    # What people see

    def list_busy(self) -> list[WatchedObject]:
        """Return the objects that wait or are processed, or whose handlers have failed."""
        return [
            obj
            for obj in self._objects.values()
            if obj.state is not State.IDLE
            or ((obj.work or obj.daemons) and any(each.failures for each in obj.call_statuses))
        ]

    def describe_state(self, obj: WatchedObject) -> str:
        """Return the state of an object in the words of the metrics."""
        if obj.state is not State.QUEUED:
            return "idle" if obj.state is State.IDLE else "working"
        if obj.timer is not None:
            return "resting"
        return "held" if self.holds else "waiting"

    def measure(self) -> dict[str, tuple[int, float]]:
        """Return the number of objects in each state, and the longest time of one there."""
        busy: dict[str, list[float]] = {"held": [], "resting": [], "waiting": [], "working": []}
        for obj in [obj for obj in self._objects.values() if obj.state is not State.IDLE]:  # quick
            busy[self.describe_state(obj)].append(obj.since)
        moment = time.monotonic()
        measured = {
            state: (len(times), moment - min(filter(None, times), default=moment))
            for state, times in busy.items()
        }
        idle = len(self._objects) - sum(map(len, busy.values()))
        return {**measured, "idle": (idle, 0.0)}
