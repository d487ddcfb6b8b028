"""A stream serves the objects of one kind in one namespace: it lists, watches and processes them.

The observer (:mod:`webop.reactor.observer`) starts, adapts and stops the streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from dataclasses import replace
from functools import partial
from itertools import chain

from webop.aio.cancellation import WorkerGroup
from webop.client.http.requests import Selection
from webop.client.watch import ListingStarted, WatchStatus, watch
from webop.client.watch_events import parse_number
from webop.context.indexes import Feed
from webop.handlers.stopping import DaemonStoppingReason
from webop.objects.names import join_names
from webop.objects.resources import Resource, Selector
from webop.reactor.controller import Controller, Hold
from webop.reactor.index_gate import IndexGate
from webop.reactor.reconciler import Reconciler
from webop.reactor.resource_context import ResourceContext
from webop.reactor.supervision import keep_running
from webop.reactor.unselected_objects import find_left

logger = logging.getLogger(__name__)

_HUNG_TIMEOUT = 5.0  # seconds; for cancelled tasks
_NAMED = 3  # tasks in one log line


class Stream:
    """Serves the objects of one kind in one namespace as long as they are in the scope.

    Its objects outlive its watches. A watch ends at the begin and at the end of a pause, and when
    the kind gets other handlers or another version. The list of the next one is compared with the
    known objects; work on them goes on.

    Attributes:
        namespace: None for the whole cluster.
        selectors: those that match the kind.
        feeds: the functions that index the objects.
        status: the state of the watch.
        controller: has the objects.
        is_dropped: whether the observer has ended it, while the operator continues.
        task: where it runs.
    """

    task: asyncio.Task[None]

    def __init__(self, ctx: ResourceContext, namespace: str | None, gate: IndexGate) -> None:
        self.namespace = namespace
        self.selectors: frozenset[Selector] = frozenset()
        self.feeds: set[Feed] = set()
        self.status = WatchStatus()
        self.is_dropped = False
        self._gate = gate
        self._has_searched = False
        self._group = WorkerGroup()
        self._watching: asyncio.Task[None] | None = None
        context = contextvars.copy_context()
        spawn = partial(ctx.operator.pausing.spawn, self._group, context)
        self._reconciler = Reconciler(ctx, spawn=spawn)
        self.controller = Controller(
            self._reconciler,
            spawn=spawn,
            spawn_indexing=lambda work, name: self._group.create_task(
                work, name=name, context=context.copy()
            ),
            queue=ctx.queue,
            on_indexed=self._note_indexed,
        )
        if not gate.is_open:
            gate.subscribe(self._unhold)

    def __str__(self) -> str:
        name = self.ctx.resource.name
        return f"{name} in {self.namespace}" if self.namespace else name

    @property
    def ctx(self) -> ResourceContext:
        """The kind as it is now, with its handlers; running handlers have their own."""
        return self._reconciler.ctx

    @property
    def is_filling(self) -> bool:
        """Whether handlers wait for its list: it fills indexes, or shows children."""
        return bool(self.feeds or self.ctx.handlers.children)

    def is_about(self, resource: Resource, namespace: str | None) -> bool:
        """Return whether its objects are those of a resource, of any version, in a namespace."""
        own = self.ctx.resource
        is_kind = (resource.group, resource.plural) == (own.group, own.plural)
        return is_kind and namespace == self.namespace

    def adapt(self, resource: Resource, selectors: frozenset[Selector]) -> bool:
        """Follow a change of the kind; return whether its objects must be listed again."""
        ctx, operator = self.ctx, self.ctx.operator
        self._reconciler.ctx = replace(ctx, resource=resource)
        if resource == ctx.resource and selectors == self.selectors:
            return False
        is_known, self.selectors = bool(self.selectors), selectors
        handlers = operator.registry.handlers_of(selectors)
        self._reconciler.ctx = replace(ctx, resource=resource, handlers=handlers)
        if resource != ctx.resource:  # their bodies and patches are of the other version
            self.controller.stop_daemons(DaemonStoppingReason.OPERATOR_PAUSING)
        former, self.feeds = self.feeds, {operator.indices.feed_of(h) for h in handlers.indexers}
        for uid in self.controller.uids:
            operator.indices.discard(uid, former - self.feeds)
        in_turns = handlers.indexers, handlers.events, handlers.changes, handlers.reconcilers
        has_sync = any(not one.is_async for one in chain(*in_turns))
        ctx.queue.pool = operator.settings.execution if has_sync else None
        is_holding = resource != ctx.resource or not self.feeds <= former
        if is_known and self.ctx.is_partial != ctx.is_partial:  # the known bodies are of no use
            is_holding = True
        self.controller.list_again(is_holding=is_holding)
        self._restart()
        return True

    async def run(self) -> None:
        """Serve the objects until cancelled; then stop the work on them."""
        operator = self.ctx.operator
        if operator.pausing.is_active:
            self.controller.set_paused(None)
        try:
            with operator.pausing.subscribed(self._switch):
                async with asyncio.TaskGroup() as watches:
                    while True:
                        watching = keep_running(self._watch, name=f"watch of {self}")
                        self._watching = watches.create_task(watching, name=f"watch of {self}")
                        await asyncio.wait({self._watching})
        finally:
            why = DaemonStoppingReason.OPERATOR_EXITING
            if self.is_dropped:
                why = DaemonStoppingReason.OPERATOR_PAUSING
            rest = _HUNG_TIMEOUT
            try:
                rest = await self.controller.drain(operator.settings.batching.exit_timeout, why)
            finally:
                if hung := [task.get_name() for task in await self._group.end(rest)]:
                    logger.error(
                        "%d cancelled handlers or daemons still run, for %s. Do not catch "
                        "asyncio.CancelledError.",
                        len(hung),
                        join_names(hung, _NAMED),
                    )

    def _switch(self, reason: DaemonStoppingReason | None) -> None:
        """Pause for a reason; resume if it is None. A watch can be behind what others have done."""
        self._has_searched = False  # another one can have been active, and have crashed
        self.ctx.operator.children.forget_left()
        self.controller.set_paused(reason)
        self._restart()

    def _restart(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        """List and watch; during a pause, only for the indexes and for children."""
        ctx, options = self.ctx, self.ctx.operator.settings.watching
        if not self.is_filling:
            await self._gate.wait()  # so that its objects need not wait in memory
            await ctx.operator.pausing.wait_until_active()
        self.status = WatchStatus()
        if ctx.handlers.children:  # they say who has changed which fields
            options = options.model_copy(update={"managed_fields": True})
        selection = Selection(ctx.build_selectors(), is_partial=ctx.is_partial)
        items = watch(ctx.client, ctx.resource, self.namespace, options, self.status, selection)
        async with contextlib.aclosing(items):
            async for item in items:
                await ctx.queue.yield_to_loop()
                if isinstance(item, tuple):
                    self.controller.apply_event(*item)
                elif isinstance(item, ListingStarted):
                    self.controller.begin_listing()
                else:
                    version = parse_number(item.resource_version)
                    self.controller.finish_listing(version)
                    if ctx.handlers.children:
                        kind, uids = ctx.resource.plural_name, self.controller.uids
                        ctx.operator.children.note_list(kind, self.namespace, uids, version)
                        self._report_former(kind)
                    if not self._has_searched and ctx.operator.pausing.is_active:
                        self._has_searched = True
                        self._group.create_task(self._add_left(), name=f"search for {self}")

    def _report_former(self, kind: str) -> None:
        """Log how many children are left of a kind that was in ``owns=`` before."""
        former = [one.parent for one in self.ctx.handlers.children if one.was_owned]
        if former:
            left = self.ctx.operator.children.count(kind, self.namespace, former)
            advice = "The next prune() deletes them." if left else "Remove it from formerly_owns=."
            text = "%d children of the former kind %s are left (reconciler: %s). %s"
            logger.info(text, left, self, join_names(former), advice)

    async def _add_left(self) -> None:
        """Add the objects that left the selectors while no operator ran."""
        async with contextlib.aclosing(find_left(self.ctx, self.namespace)) as found:
            async for raw in found:
                self.controller.add_left(raw)

    def _note_indexed(self) -> None:
        """React to the end of a list, and of the indexing of its objects."""
        self._gate.arrive(self)
        self._unhold()

    def _unhold(self) -> None:
        """Let handlers run when the indexes have all objects."""
        if self._gate.is_open and self.controller.is_indexed:
            self.controller.unhold(Hold.INDEXES)
