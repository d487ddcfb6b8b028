"""A stream lists, watches and processes the objects of one resource in one namespace.

The observer (:mod:`webop.reactor.observer`) starts, replaces and stops the streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from functools import partial

from webop.client.events import get_uid
from webop.client.watch import ListingStarted, WatchStatus, watch
from webop.handling.cancellation import WorkerGroup
from webop.handling.cluster_view import Indexed, Origin
from webop.handling.stopping import DaemonStoppingReason
from webop.objects.resources import Resource, Selector
from webop.reactor.dispatcher import Dispatcher
from webop.reactor.index_gate import IndexGate
from webop.reactor.planning import ResourceContext
from webop.reactor.process import Processor

_HUNG_TIMEOUT = 5.0  # seconds; for cancelled tasks

StreamKey = tuple[Resource, str | None]


class Stream:
    """Feeds the objects of one resource in one namespace to their workers.

    When a stream ends, its entries stay in the indexes. The next stream of the same objects
    replaces them one by one, and removes the rest at the end of its list. So an index never has
    gaps. Handlers wait for the gate.

    Attributes:
        origin: the kind and the namespace: streams of equal origin have the same objects.
        status: the state of the watch.
        is_resuming: whether the objects are older than the operator, until they are listed.
        is_stopped: whether the observer has stopped it while the operator continues.
        is_alone: whether no other version of its objects is served: then it continues the former
            stream, of any version.
        task: where it runs.
        dispatcher: has its objects; None before it begins.
    """

    task: asyncio.Task[None]
    dispatcher: Dispatcher | None = None

    def __init__(
        self,
        ctx: ResourceContext,
        namespace: str | None,
        selectors: frozenset[Selector],
        gate: IndexGate[StreamKey],
        *,
        is_resuming: bool,
    ) -> None:
        self.ctx = ctx
        self.namespace = namespace
        self.selectors = selectors
        self.key: StreamKey = (ctx.resource, namespace)
        self.origin: Origin = (ctx.resource.group, ctx.resource.plural, namespace)
        self.status = WatchStatus()
        self.is_resuming = is_resuming
        self.is_stopped = False
        self.is_alone = False
        self._gate = gate
        self.feeds = {ctx.operator.indices.feed_of(handler) for handler in ctx.handlers.indexers}

    def __str__(self) -> str:
        name = self.ctx.resource.name
        return f"{name} in {self.namespace}" if self.namespace else name

    def fits(self, resource: Resource, selectors: frozenset[Selector]) -> bool:
        """Return whether it still fits the resource and the matching selectors."""
        return (
            self.ctx.resource.subresources == resource.subresources and self.selectors == selectors
        )

    async def run(self) -> None:
        """List and watch while the operator is active; during a pause, only for the indexes."""
        settings, pausing = self.ctx.operator.settings, self.ctx.operator.pausing
        view = self.ctx.operator.cluster_view
        left = view.left.setdefault(self.origin, {})
        if not self.feeds:
            await self._gate.wait()  # so that its objects need not wait in memory
        group = WorkerGroup()
        spawn = partial(pausing.spawn, group, contextvars.copy_context())
        is_resuming = self.is_resuming or not self._is_ours()
        self.dispatcher = dispatcher = Dispatcher(
            Processor(self.ctx, spawn=spawn),
            spawn=spawn,
            gate=self._gate,
            slots=self.ctx.slots,
            is_resuming=is_resuming,
            is_paused=not pausing.is_active,
        )
        dispatcher.is_late = self.ctx.is_late
        version = self.ctx.resource.version
        other = next(iter(left), version) if self.is_alone else version
        if self.feeds:
            complete = view.indexed[self.origin].complete
            dispatcher.is_complete = not is_resuming and self.feeds <= complete
        dispatcher.former = left.pop(version if version in left else other, {})
        try:
            with pausing.subscribed(dispatcher.switch):
                while True:
                    if not self.feeds:
                        await pausing.wait_until_active()
                    turn = pausing.turn
                    async with pausing.turn_of(turn):
                        await self._feed(dispatcher, turn)
        finally:
            why = DaemonStoppingReason.OPERATOR_EXITING
            if self.is_stopped:
                why = DaemonStoppingReason.OPERATOR_PAUSING
            rest = _HUNG_TIMEOUT
            try:
                rest = await dispatcher.drain(settings.batching.exit_timeout, why)
            finally:
                try:
                    dispatcher.abandon(await group.end(rest))
                finally:  # now it is known which patches could not be written
                    if objects := dispatcher.list_objects(is_ours=self._is_ours()):
                        left[version] = objects

    def _is_ours(self) -> bool:
        """Return whether no other operator could act since the objects were last listed."""
        turn = self.ctx.operator.pausing.turn
        turns = self.ctx.operator.cluster_view.listed.get(self.origin, {})
        return turns.get(self.ctx.resource.version, max(turns.values(), default=turn)) == turn

    async def _feed(self, dispatcher: Dispatcher, turn: int) -> None:
        operator = self.ctx.operator
        unseen: set[str] = set()
        entry = operator.cluster_view.indexed[self.origin] if self.feeds else Indexed()
        indexed = entry.uids
        items = watch(
            self.ctx.client,
            self.ctx.resource,
            self.namespace,
            operator.settings.watching,
            self.status,
        )
        async with contextlib.aclosing(items):
            async for item in items:
                await self.ctx.slots.take_turn()
                if operator.pausing.turn != turn:
                    return  # what it shows can be older than the pause
                if isinstance(item, tuple):
                    event_type, raw = item
                    if self.feeds and event_type == "DELETED":
                        # The former stream can have added it.
                        operator.indices.discard(get_uid(raw))
                        indexed.discard(get_uid(raw))
                    elif self.feeds:
                        indexed.add(get_uid(raw))
                        unseen.discard(get_uid(raw))
                    await dispatcher.take(event_type, raw)
                elif isinstance(item, ListingStarted):
                    unseen = set(indexed)
                    dispatcher.begin_listing()
                else:
                    operator.indices.discard_all(unseen)
                    indexed -= unseen
                    dispatcher.finish_listing()
                    entry.complete |= self.feeds
                    operator.cluster_view.unlisted.discard(self.origin)
                    turns = operator.cluster_view.listed.setdefault(self.origin, {})
                    if self.is_alone:  # other versions continue this one
                        turns.clear()
                    turns[self.ctx.resource.version] = turn
                    self.is_resuming = False
                    self._gate.arrive(self.key)
