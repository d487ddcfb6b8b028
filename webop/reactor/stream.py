"""A stream serves the objects of one kind in one namespace: it lists, watches and processes them.

Flow: the watch → :meth:`Stream.accept` → the queue → a worker → :meth:`Stream.take_turn`. The
observer (:mod:`webop.reactor.observer`) starts, adapts and stops the streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from webop.aio.cancellation import WorkerGroup
from webop.aio.supervision import keep_running
from webop.client.http.requests import Selection
from webop.client.watch import ListingStarted, WatchStatus, watch
from webop.client.watch import State as WatchState
from webop.client.watch_events import get_uid, parse_number, parse_version
from webop.context.indexes import Feed
from webop.handlers.model import MappingHandler
from webop.handlers.registry import ResourceHandlers
from webop.handlers.stopping import DAEMONS_TIMEOUT, DaemonStoppingReason
from webop.objects.body import RawEventType
from webop.objects.fields import clone
from webop.objects.names import join_names
from webop.objects.resources import Resource, Selector
from webop.reactor.entry import BackgroundTask, Entry, State, Unwritten
from webop.reactor.failures import recover
from webop.reactor.queue import REST, Held, Result
from webop.reactor.resource_context import ResourceContext
from webop.reactor.turn import take_turn
from webop.reactor.writer import write

logger = logging.getLogger(__name__)

_HUNG_TIMEOUT: Final = 5.0  # seconds; for cancelled tasks
_NAMED: Final = 3  # tasks in one log line


class Stream:
    """Serves the objects of one kind in one namespace as long as they are in the scope.

    Guarantees:
        An object has one turn at a time. A state that arrives meanwhile is processed next; states
        in between can be skipped, but never the last one.
        While the indexes are not filled, and during a pause, objects are only indexed. It begins
        with a pause.

    Its objects outlive its watches. A watch ends at the begin and at the end of a pause, and when
    the kind gets other handlers or another version. The list of the next one is compared with the
    known objects; turns go on.

    Lists are numbered. From the start of list 7, ``listing`` is 7, and an object that the list or
    its watch shows gets 7 as ``listed``. The response to a write sets 6.5: the object was there
    after the start, and a list without it can be older than the response. An object that still has
    6 or less at the end of the list is gone. After a pause, or if the kind has changed, ``needed``
    is 8: what is known can be outdated, so objects have no turns until list 8 has shown them.

    Args:
        indexed: set when the indexes have all objects that existed at the start.
        on_indexed: called when they have all objects of this stream.

    Attributes:
        namespace: None for the whole cluster.
        ctx: the kind as it is now, with its handlers; turns have their own.
        selectors: those that match the kind.
        feeds: the functions that index the objects.
        status: the state of the watch.
        is_dropped: whether the observer has ended it, while the operator continues.
        task: where it runs.
    """

    task: asyncio.Task[None]

    def __init__(
        self,
        ctx: ResourceContext,
        namespace: str | None,
        indexed: asyncio.Event,
        on_indexed: Callable[[], None],
    ) -> None:
        self.ctx = ctx
        self.namespace = namespace
        self.selectors: frozenset[Selector] = frozenset()
        self.feeds: set[Feed] = set()
        self.status = WatchStatus()
        self._kept: WatchStatus | None = None  # where the next watch goes on, without a list
        self.listing = self.needed = 0
        self.is_dropped = False
        self._paused_for: DaemonStoppingReason | None = DaemonStoppingReason.OPERATOR_PAUSING
        self._writers = set[asyncio.Task[None]]()
        self._end: asyncio.Event | None = None  # of the last turn, when no new ones begin
        self._is_resuming = True
        self._indexed = indexed
        self._on_indexed = on_indexed
        self._objects: dict[str, Entry] = {}
        self._unindexed: set[Entry] | None = None  # what indexes lack; None before they are listed
        self._turns: dict[Entry, asyncio.Task[Any]] = {}
        self._beyond_indexes: set[Entry] = set()  # objects whose turns have done that
        self._group = WorkerGroup()
        self._watching: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        name = self.ctx.resource.name
        return f"{name} in {self.namespace}" if self.namespace else name

    @property
    def handlers(self) -> ResourceHandlers:
        """The handlers of the kind as it is now."""
        return self.ctx.handlers

    @property
    def objects(self) -> Mapping[str, Entry]:
        """The known objects, by their uids."""
        return self._objects

    @property
    def is_filling(self) -> bool:
        """Whether handlers wait for its list: it fills indexes, or shows children."""
        return bool(self.feeds or self.handlers.children)

    @property
    def _is_whole(self) -> bool:
        """Whether it needs the objects of all shards, not only to handle them."""
        return self.is_filling or any(isinstance(h, MappingHandler) for h in self.handlers.events)

    @property
    def is_paused(self) -> bool:
        """Whether no new work begins: it is left to another operator, or the stream ends."""
        return self._paused_for is not None

    @property
    def is_ending(self) -> bool:
        """Whether the operator stops, and no other one has its work yet."""
        return self._paused_for is DaemonStoppingReason.OPERATOR_EXITING

    @property
    def is_indexed(self) -> bool:
        """Whether the indexes have all objects."""
        return self._unindexed is not None and not self._unindexed

    def is_about(self, resource: Resource, namespace: str | None) -> bool:
        """Return whether its objects are those of a resource, of any version, in a namespace."""
        own = self.ctx.resource
        is_kind = (resource.group, resource.plural) == (own.group, own.plural)
        return is_kind and namespace == self.namespace

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start a task that works on an object."""
        return self.ctx.operator.pausing.spawn(self._group, work, name=name)

    # Its life

    async def run(self) -> None:
        """Serve the objects until cancelled; then stop the work on them."""
        with self.ctx.operator.ownership.followed(self):  # shards stay while their work ends
            try:
                await self._serve()
            finally:
                await self._end_work()

    async def _serve(self) -> None:
        """List and watch, again and again."""
        pausing = self.ctx.operator.pausing
        if pausing.is_active:
            self._resume()
        with pausing.subscribed(self._switch):
            async with asyncio.TaskGroup() as watches:
                while True:
                    watching = keep_running(self._watch, name=f"watch of {self}")
                    self._watching = watches.create_task(watching, name=f"watch of {self}")
                    await asyncio.wait({self._watching})

    async def _end_work(self) -> None:
        """Stop the work on all objects; log what does not end."""
        why = DaemonStoppingReason.OPERATOR_EXITING
        if self.is_dropped:
            why = DaemonStoppingReason.OPERATOR_PAUSING
        rest = _HUNG_TIMEOUT
        try:
            rest = await self._drain(self.ctx.operator.settings.batching.exit_timeout, why)
        finally:
            if hung := [task.get_name() for task in await self._group.end(rest)]:
                logger.error(
                    "%d cancelled handlers or daemons still run, for %s. Do not catch "
                    "asyncio.CancelledError.",
                    len(hung),
                    join_names(hung, _NAMED),
                )

    def adapt(self, resource: Resource, selectors: frozenset[Selector]) -> bool:
        """Follow a change of the kind; return whether its objects must be listed again."""
        ctx, operator = self.ctx, self.ctx.operator
        self.ctx = replace(ctx, resource=resource)
        if resource == ctx.resource and selectors == self.selectors:
            return False
        is_known, self.selectors = bool(self.selectors), selectors
        handlers = operator.registry.handlers_of(selectors)
        self.ctx = replace(ctx, resource=resource, handlers=handlers)
        if resource != ctx.resource:  # their bodies and patches are of the other version
            self._stop_daemons(DaemonStoppingReason.OPERATOR_PAUSING)
        former, self.feeds = self.feeds, {operator.indices.feed_of(h) for h in handlers.indexers}
        for uid in self._objects:
            operator.indices.discard(uid, former - self.feeds)
        is_holding = resource != ctx.resource or not self.feeds <= former
        if is_known and self.ctx.is_partial != ctx.is_partial:  # the known bodies are of no use
            is_holding = True
        self._list_again(is_holding=is_holding)
        self._restart()
        return True

    def _switch(self, reason: DaemonStoppingReason | None) -> None:
        """Pause for a reason, which daemons get; resume if it is None."""
        self.ctx.operator.children.forget_left()
        if reason is None:
            self._resume()
        else:
            self._pause(reason)
        self._restart()  # the watch can be behind what others have done

    def _pause(self, reason: DaemonStoppingReason) -> None:
        """Leave work to another operator; running turns finish, and write once."""
        self._paused_for = reason
        self.ctx.workers.queue.hold((self, "pause"))
        self._stop_daemons(reason)
        for obj in list(self._objects.values()):
            if obj.state is State.RUNNING:
                continue
            obj.must_show &= obj.is_gone and obj.shown is not None
            self._write_rest(obj)
            self.ctx.workers.queue.remove(obj)
            if obj.must_index or obj.must_show:
                self.wake(obj)
            else:
                self._let_go(obj)

    def _resume(self) -> None:
        """Process all objects of the next list: others can have changed them."""
        self._paused_for, self._is_resuming = None, True
        for obj in self._objects.values():
            self._forget_unwritten(obj)
            if obj.state is not State.RUNNING:
                recover(obj)
            for known in obj.reconcilers.values():
                known.because.add("resumed")
        self._list_again(is_holding=bool(self.handlers.indexers))
        self.ctx.workers.queue.unhold((self, "pause"))
        self.ctx.workers.start()

    def gain(self, shards: frozenset[int]) -> None:
        """Handle the objects of these shards, too, when the next list has shown them."""
        self.ctx.operator.children.forget_left()
        for obj in self._objects.values():
            if obj.shard in shards:
                obj.listed, obj.must_resume = -1.0, True
        self._is_resuming = True
        self._restart()

    def leave(self, shards: frozenset[int]) -> None:
        """Begin no new work on the objects of these shards; running turns finish, and write."""
        for obj in self._list_of(shards):
            for daemon in obj.daemons.values():
                daemon.stop(DaemonStoppingReason.OPERATOR_PAUSING)
            if obj.state is not State.RUNNING:
                self._write_rest(obj)
                if not (obj.must_index or obj.must_show):
                    self.ctx.workers.queue.remove(obj)

    def stay(self, shards: frozenset[int]) -> None:
        """Go on with the objects of shards that were left."""
        for obj in self._list_of(shards):
            obj.must_show |= bool(self.handlers.events) and obj.shown != obj.version
            self.wake(obj)

    def lose(self, shards: frozenset[int]) -> None:
        """Forget the work on the objects of these shards: other replicas handle them."""
        operator, queue = self.ctx.operator, self.ctx.workers.queue
        for obj in self._list_of(shards):
            self._forget_unwritten(obj)
            obj.forget_work()
            operator.forget(obj.uid)
            is_needed = self._is_whole and (obj.must_index or obj.must_show)
            if obj.state is not State.RUNNING and not is_needed:
                queue.remove(obj)
                self._let_go(obj)
        # An API server that selects shards would go on sending these objects. The watch needs no
        # list for that; one that lists already can keep its selector, and drops them.
        if not self._is_whole and self.status.state is WatchState.WATCHING:
            self._restart(self.status)

    def list_busy(self, shards: frozenset[int]) -> set[int]:
        """Return those of these shards that have work which runs, or is not written."""
        found = set[int]()
        for obj in self._list_of(shards):
            unwritten = obj.unwritten
            has_rest = unwritten is not None and (unwritten.is_due or unwritten.lock.locked())
            if obj.state is State.RUNNING or obj.daemons or has_rest:
                found.add(obj.shard)
        return found

    def _list_of(self, shards: frozenset[int]) -> list[Entry]:
        return [obj for obj in self._objects.values() if obj.shard in shards]

    def _list_again(self, *, is_holding: bool) -> None:
        """Process all objects of the next list; hold their handlers until then, if necessary."""
        self.needed = self.listing + 1
        if is_holding:
            self._unindexed = None
            self.ctx.workers.queue.hold(self)

    def _restart(self, kept: WatchStatus | None = None) -> None:
        """Start the watch again: from a list, or from where the status says."""
        self._kept, self.status = kept, kept or WatchStatus()
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        """List and watch; during a pause, only for the indexes and for children."""
        ctx, options = self.ctx, self.ctx.operator.settings.watching
        if not self.is_filling:
            await self._indexed.wait()  # so that its objects need not wait in memory
            await ctx.operator.pausing.wait_until_active()
            if not ctx.operator.ownership.wants(ctx.resource):
                await asyncio.Event().wait()  # until the watch starts again
        self.status, self._kept = self._kept or WatchStatus(), None
        if ctx.handlers.children:  # they say who has changed which fields
            options = options.copy(managed_fields=True)
        selectors = ctx.build_selectors()
        if not self._is_whole and (shards := ctx.operator.ownership.build_selector(ctx.resource)):
            selectors["shardSelector"] = shards
        selection = Selection(selectors, is_partial=ctx.is_partial)
        items = watch(ctx.client, ctx.resource, self.namespace, options, self.status, selection)
        async with contextlib.aclosing(items):
            async for item in items:
                if isinstance(item, tuple):
                    self.accept(*item)
                elif isinstance(item, ListingStarted):
                    self.listing += 1
                    if not self.is_indexed:
                        self._unindexed = None
                else:
                    version = parse_number(item.resource_version)
                    self._finish_listing(version)
                    if ctx.handlers.children:
                        kind = ctx.resource.plural_name
                        ctx.operator.children.note_list(
                            kind, self.namespace, self._objects, version
                        )
                        self._report_former(kind)
                # Not before: if it is cancelled here, the status is as far as the objects.
                await ctx.workers.pace.give_way()

    def _report_former(self, kind: str) -> None:
        """Log how many children are left of a kind that was in ``owns=`` before."""
        former = [one.parent for one in self.handlers.children if one.was_owned]
        if former:
            left = self.ctx.operator.children.count(kind, self.namespace, former)
            advice = "The next prune() deletes them." if left else "Remove it from formerly_owns=."
            text = "%d children of the former kind %s are left (reconciler: %s). %s"
            logger.info(text, left, self, join_names(former), advice)

    # What is known of the cluster

    def accept(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Accept a listed object (type None) or an event of the watch."""
        uid, version, handlers = get_uid(raw), parse_version(raw), self.handlers
        if handlers.children:
            self._note_child(event_type, raw)
        obj = self._objects.get(uid) or self._meet(event_type, raw)
        if obj is None:
            return
        is_needed, is_news = obj.listed < self.needed, self._is_news(obj, event_type, version)
        obj.listed = self.listing
        if handlers.events and (is_needed or is_news or version == obj.version != obj.shown):
            # Handlers that have got an object get its deletion, also after a pause.
            obj.must_show |= not self.is_paused or (
                event_type == "DELETED" and obj.shown is not None
            )
        if is_news or (is_needed and version == obj.version):
            self._take(obj, event_type, raw, version)
        elif is_needed:  # the list is behind an own write: its turn reads it
            self._take(obj, event_type, None, obj.version)
        elif obj.must_show and not obj.is_gone:  # an own write comes back as an event
            obj.event_type = event_type
            if obj.body is None:
                self.ctx.workers.bodies.keep(obj, raw)
        else:
            return
        if handlers.has_only_children:
            obj.must_resume = False
            self._let_go(obj)
        elif is_needed:
            self.wake(obj)
        else:
            self._look_at(obj, raw)

    def _meet(self, event_type: RawEventType, raw: dict[str, Any]) -> Entry | None:
        """Return an entry for an object that is not known; None if it does not matter here."""
        handlers, ownership = self.handlers, self.ctx.operator.ownership
        if event_type == "DELETED" and not (handlers.events or self.ctx.build_selectors()):
            return None
        shard = ownership.find(self.ctx.resource, raw) if ownership.is_divided else 0
        is_own = ownership.handles(shard)
        if not is_own and shard not in ownership.leaving and not self._is_whole:
            return None
        meta = raw["metadata"]
        obj = Entry(self, get_uid(raw), meta["name"], meta.get("namespace"), shard)
        # Objects that change during the list arrive as MODIFIED.
        is_old = event_type in {None, "MODIFIED"} and self._is_resuming
        obj.must_resume = self.is_paused or is_old or not is_own
        self._objects[obj.uid] = obj
        return obj

    def accept_response(self, obj: Entry, raw: dict[str, Any]) -> None:
        """Accept the state in the response to a request, unless a newer one is known."""
        version = parse_version(raw)
        if obj.is_gone or not (version > obj.version or (not version and raw != obj.body)):
            return
        obj.listed = max(obj.listed, self.listing - 0.5)
        self._take(obj, "MODIFIED", raw, version)
        self._look_at(obj, raw)

    def _look_at(self, obj: Entry, raw: dict[str, Any]) -> None:
        """Give an object a turn for a state, unless that is as webop has just written it."""
        is_own = obj.unwritten is not None and obj.unwritten.expects(raw)
        if not is_own or obj.is_gone or obj.must_index or obj.must_show:
            self.wake(obj)

    def _is_news(self, obj: Entry, event_type: RawEventType, version: int) -> bool:
        """Return whether a state is newer than the known one; own patches come back as events.

        A listed state is accepted even if it is older, as after a restored backup, unless webop
        has written the object since the list began.
        """
        if event_type == "DELETED" or not version or version > obj.version:
            return True
        is_unseen = obj.listed <= self.listing - 1
        return event_type is None and (obj.is_gone or (version < obj.version and is_unseen))

    def _take(
        self, obj: Entry, event_type: RawEventType, raw: dict[str, Any] | None, version: int
    ) -> None:
        """Take over a newer state of an object; None if it must be read."""
        obj.event_type, obj.version = event_type, version
        self.ctx.workers.bodies.keep(obj, raw)
        if obj.is_gone:
            self._stop(obj)
            return
        obj.must_index = bool(self.handlers.indexers)
        if obj.daemons and raw is not None:
            obj.show(clone(raw))  # a copy that they may modify

    def _stop(self, obj: Entry) -> None:
        """Stop what an object has: it is gone."""
        obj.must_index = False
        if self.handlers.indexers:
            self.ctx.operator.indices.discard(obj.uid)
        for daemon in obj.daemons.values():
            daemon.stop(DaemonStoppingReason.RESOURCE_DELETED)
        self._leave_unindexed(obj)

    def _finish_listing(self, version: int) -> None:
        """End a list of a resource version: objects that were not in it are gone.

        Except for those with a newer response to a write: the list came from a cache that is
        behind. If versions are no numbers, each response since the list began counts as newer.
        """
        for obj in [obj for obj in self._objects.values() if obj.listed < self.listing]:
            is_unseen = obj.listed <= self.listing - 1
            if not obj.is_gone and (is_unseen or 0 < obj.version <= version):
                last = self.ctx.workers.bodies.load(obj) or _build_tombstone(obj)
                self.accept("DELETED", last)
        self._is_resuming = self.is_paused
        if not self.is_indexed:  # an object whose handlers run is indexed at its next turn
            waiting = (
                obj
                for obj in self._objects.values()
                if obj.must_index or obj.state is State.RUNNING
            )
            self._unindexed = {*waiting} - self._beyond_indexes
        self.open()

    def _note_child(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Accept a state of a child of a reconciler, and drop what only this needs."""
        ctx, operator = self.ctx, self.ctx.operator
        is_read, kind = ctx.handlers.reads_children, ctx.resource.plural_name
        operator.children.note(kind, event_type, raw, operator.child_names, is_read=is_read)
        if not operator.settings.watching.managed_fields:
            raw["metadata"].pop("managedFields", None)

    # Turns

    def wake(self, obj: Entry, *, after: float = 0.0) -> None:
        """Give an object a turn soon, or after some seconds."""
        if self._end is not None or self._objects.get(obj.uid) is not obj:
            return
        if after and obj.state is State.RUNNING:  # its function can take long
            asyncio.get_running_loop().call_later(after, self._write_again, obj)
        else:
            self.ctx.workers.add(obj, after=after)

    def _write_again(self, obj: Entry) -> None:
        if not self.is_paused:
            self._write_rest(obj)

    async def take_turn(self, obj: Entry) -> Result:
        """Do what must be done about an object; return when its next turn is."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  for the type checker
        self._turns[obj] = task
        ownership, shard = self.ctx.operator.ownership, obj.shard
        began = time.monotonic() if ownership.is_divided else 0.0
        try:
            result = await take_turn(self.ctx, obj)
        except asyncio.CancelledError:
            if obj.unwritten is not None and not obj.unwritten.lock.locked():
                self._forget_unwritten(obj)
            raise
        finally:
            del self._turns[obj]
            self._beyond_indexes.discard(obj)
            if ownership.is_divided and shard in ownership.owned:
                ownership.seconds[shard] += time.monotonic() - began
            if self._end is not None:
                obj.is_dirty = False
                if not self._turns:
                    self._end.set()
        if self.is_paused:  # nothing of it goes on after a pause, or after the end
            result = self.find_gate(obj) or REST
        elif not (self.owns(obj) or obj.must_index or obj.must_show):
            result = REST
        if result == REST and not obj.is_dirty:
            self._let_go(obj)
        return result

    def find_gate(self, obj: Entry) -> Result | None:
        """Return the result of a turn that must end before handlers are called; None if not."""
        if self._end is not None:
            return REST
        if self.is_paused:  # its deletion is shown afterwards
            return Held((self, "pause")) if obj.must_show and obj.is_gone else REST
        if not obj.is_gone and obj.listed < self.needed:  # the list shows it, or that it is gone
            return REST
        if self in self.ctx.workers.queue.holds:
            return Held(self)
        return None if self.owns(obj) else REST

    def shows_stranger(self, obj: Entry) -> bool:
        """Return whether functions of ``watches=`` get an object that is not handled here."""
        is_open = self._end is None and not self.is_paused
        is_open = is_open and (obj.is_gone or obj.listed >= self.needed)
        return is_open and self.find_gate(obj) == REST

    def owns(self, obj: Entry) -> bool:
        """Return whether this replica handles the object."""
        return self.ctx.operator.ownership.handles(obj.shard)

    def note_indexed(self, obj: Entry, handlers: ResourceHandlers) -> None:
        """Note that the turn of an object has done what the indexes of these handlers need."""
        self._beyond_indexes.add(obj)
        if handlers is self.handlers:
            self._leave_unindexed(obj)

    def _leave_unindexed(self, obj: Entry) -> None:
        if self._unindexed and obj in self._unindexed:
            self._unindexed.discard(obj)
            self.open()

    def open(self) -> None:
        """Let handlers run when the indexes have all objects."""
        if not self.is_indexed:
            return
        self._on_indexed()
        if self._indexed.is_set():
            self.ctx.workers.queue.unhold(self)
            self.ctx.workers.start()

    def _let_go(self, obj: Entry) -> None:
        """Free the memory of an object without work; forget it if it is gone."""
        bodies, operator = self.ctx.workers.bodies, self.ctx.operator
        if obj.daemons or (obj.reconcilers and not obj.is_gone):  # it can be needed at any time
            bodies.park(obj)
        else:
            bodies.keep(obj, None)
            obj.view = None
        if not obj.unwritten:
            obj.unwritten = None
        if obj.status is not None and not obj.status.failures and not obj.status.running:
            obj.status = None
        is_strange = not self.owns(obj) and obj.shard not in operator.ownership.owned
        if (obj.is_gone or (is_strange and not self._is_whole)) and not obj.daemons:
            self.ctx.workers.outages.leave(obj)
            self._objects.pop(obj.uid, None)
            operator.forget(obj.uid)

    # The end

    def _forget_unwritten(self, obj: Entry) -> None:
        """Forget what is unwritten, also what is on its way: others can have continued."""
        if obj.unwritten is not None:
            obj.unwritten = Unwritten(lock=obj.unwritten.lock)
        self.ctx.workers.outages.leave(obj)

    def _write_rest(self, obj: Entry) -> None:
        """Write what is left of an object without a turn."""
        if obj.unwritten is not None and obj.unwritten.is_due:
            task = self.spawn(write(self.ctx, obj), name=f"writer of {obj}")
            self._writers.add(task)
            task.add_done_callback(self._writers.discard)

    async def _drain(self, timeout: float, reason: DaemonStoppingReason) -> float:
        """Start no new turns; wait for running ones, cancel those that exceed the timeout.

        Daemons have five seconds to stop (chapter "Daemons", "Timeouts"). Writes of outcomes have
        the timeout and five more seconds.

        Returns:
            The seconds that remain for cancelled tasks.
        """
        if not self.is_paused:
            self._pause(reason)
        self._end, loop = asyncio.Event(), asyncio.get_running_loop()
        deadline, queue = loop.time() + DAEMONS_TIMEOUT, self.ctx.workers.queue
        for obj in self._objects.values():
            if obj.state is not State.RUNNING:  # other streams use the same queue
                queue.remove(obj)
        for key in (self, (self, "pause")):
            queue.unhold(key)
        self._stop_daemons(reason)
        writers = set[asyncio.Task[Any]](self._writers)
        if self._turns:
            writers.add(self._group.create_task(self._end.wait(), name=f"end of {self}"))
        if writers:
            await asyncio.wait(writers, timeout=timeout)
        stopping = self._stop_daemons(reason)  # also those that turns have just started
        late, since = dict(self._turns), loop.time()
        for obj, task in late.items():  # most of those that write have finished their handlers
            task.set_name(str(obj))
            self._group.add(task)
            if task.cancelling() or obj.unwritten is None or not obj.unwritten.lock.locked():
                task.cancel()
        if ending := {*stopping, *late.values(), *writers}:
            rest = max(deadline - since, DAEMONS_TIMEOUT / 2 if late else 0)
            await asyncio.wait(ending, timeout=rest)
        self._cancel_daemons()
        for obj in self._objects.values():  # others share these limits
            self.ctx.workers.bodies.keep(obj, None)
            self.ctx.workers.outages.leave(obj)
        return max(1.0, since + DAEMONS_TIMEOUT - loop.time()) if late else DAEMONS_TIMEOUT

    def _cancel_daemons(self) -> None:
        if hung := self._list_daemons():
            for daemon in hung:
                daemon.cancel()
            logger.warning(
                "%d daemons or timers did not end within %g s and are cancelled: %s. Threads "
                "cannot be cancelled: the process ends when they end.",
                len(hung),
                DAEMONS_TIMEOUT,
                join_names([*map(str, hung)], _NAMED),
            )

    def _stop_daemons(self, reason: DaemonStoppingReason) -> list[asyncio.Task[None]]:
        """Ask all daemons and timers to stop; return those that have not ended yet."""
        chosen = self._list_daemons()
        for daemon in chosen:
            daemon.stop(reason)
        return [daemon.task for daemon in chosen]

    def _list_daemons(self) -> list[BackgroundTask]:
        return [one for obj in self._objects.values() for one in obj.daemons.values()]


def _build_tombstone(obj: Entry) -> dict[str, Any]:
    """Return a minimal body, for a deletion that no event showed."""
    metadata = {"name": obj.name, "uid": obj.uid}
    if obj.namespace:
        metadata["namespace"] = obj.namespace
    return {"metadata": metadata}
