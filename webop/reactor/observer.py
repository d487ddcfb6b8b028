"""What there is to watch: the kinds and the namespaces of the cluster, as they come and go.

The observer discovers the resources that handlers are declared for, and keeps one stream running
for each of them in each served namespace (chapters "Resource specification" and "Scopes").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from webop.client.api import Client
from webop.client.discovery import discover
from webop.client.watch import ListingStarted, WatchStatus, watch
from webop.errors import APIError
from webop.handling.cancellation import TaskGroup
from webop.handling.context import OperatorContext
from webop.objects.resources import Resource, Selector
from webop.reactor.dispatcher import Dispatcher
from webop.reactor.gate import Gate
from webop.reactor.planning import ResourceContext
from webop.reactor.process import Processor
from webop.reactor.scopes import NamespacePattern, is_exact, select_namespaces
from webop.reactor.supervision import keep_running
from webop.reactor.surroundings import (
    DEFINITIONS,
    NAMESPACES,
    may_watch,
    watch_definitions,
    watch_namespaces,
)

logger = logging.getLogger(__name__)

_SHOWN = 5  # names in one line of the log
_SETTLING = 0.2  # seconds; definitions often come in groups, and are served a moment later
_RESCAN = 5.0  # seconds; after a failed discovery
_PATIENCE = 10.0  # seconds; then it is told what handlers wait for
_RESCAN_BROKEN = 10.0  # seconds; while an API group does not answer
_SECOND_LOOK = 2.0  # seconds; after a change: the API server serves it when it gets to it

StreamKey = tuple[Resource, str | None]


@dataclass(frozen=True, slots=True)
class Scope:
    """Where to look: the whole cluster at once, or namespaces by patterns."""

    clusterwide: bool
    patterns: tuple[NamespacePattern, ...] = ()


class Observer:
    """Keeps the streams equal to what is declared and to what there is.

    Args:
        operator: the context of the operator.
        client: the client of the API server.
        scope: which namespaces are served.
        group: the task group for the streams and for the work on objects.
    """

    def __init__(
        self, operator: OperatorContext, client: Client, scope: Scope, group: asyncio.TaskGroup
    ) -> None:
        self._operator = operator
        self._client = client
        self._scope = scope
        self._group = group
        self._changed = asyncio.Event()
        self._streams: dict[StreamKey, asyncio.Task[None]] = {}
        self._running: dict[StreamKey, Resource] = {}
        self._listed: set[StreamKey] = set()
        self._indexing: set[StreamKey] = set()
        self._gate: Gate[StreamKey] = Gate()
        self._broken: frozenset[tuple[str, str]] = frozenset()
        self._reported: set[tuple[Selector, str]] = set()
        self._was_synced = False
        self.statuses: dict[StreamKey, WatchStatus] = {}
        self.scanned = asyncio.Event()

    async def run(self) -> None:
        """Observe for ever: discover, adjust the streams, wait for changes of either."""
        if not self._operator.settings.scanning.disabled:
            self._spawn(self._watch_definitions, "watch of definitions")
        await self._begin_with_namespaces()
        self._spawn(self._tell_of_waiting, "gate")
        while True:
            pause = _SECOND_LOOK if self._changed.is_set() else None
            self._changed.clear()
            if not await self._rescan():
                pause = _RESCAN
            elif self._broken:
                pause = _RESCAN_BROKEN
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
                await asyncio.sleep(_SETTLING)
            except TimeoutError:
                continue

    def list_unindexed(self) -> list[str]:
        """Return what handlers wait for: the streams that fill the indexes, while they do."""
        return [] if self._gate.is_open else [_describe(key) for key in self._gate.pending]

    def list_troubles(self) -> list[str]:
        """Return the watches that are not up, and why; those that begin a new turn are fine."""
        is_active = self._operator.duty.is_active
        waiting = {
            key: status
            for key, status in self.statuses.items()
            if not status.version and (is_active or key in self._indexing)
        }
        self._was_synced = self._was_synced or (self.scanned.is_set() and not waiting)
        return [
            f"the watch of {resource.name} is not up: {status.error or 'listing'}"
            for (resource, _), status in waiting.items()
            if status.error or not self._was_synced
        ]

    async def _rescan(self) -> bool:
        """Discover and adjust; tell whether it has worked."""
        try:
            found = await discover(self._client, self._collect_groups())
        except APIError as exc:
            logger.warning("The resources of the cluster cannot be discovered: %s", exc)
            return False
        known = self._operator.insights.resources
        kept = {
            resource for resource in known if (resource.group, resource.version) in found.broken
        }
        self._operator.insights.update(found.resources | kept)
        self._tell_of_broken(found.broken)
        self._adjust()
        if not self.scanned.is_set():
            self._tell_of_start()
        self.scanned.set()
        return True

    def _tell_of_start(self) -> None:
        """Say once what is served: an operator without a word looks as if it hung."""
        kinds = _enumerate({resource.name for resource, _ in self._streams})
        if self._scope.clusterwide:
            logger.info("The operator is running. It serves %s in all namespaces.", kinds)
        else:
            places = _enumerate(self._operator.insights.namespaces or ())
            logger.info("The operator is running. It serves %s in namespaces: %s.", kinds, places)

    def _tell_of_broken(self, broken: dict[tuple[str, str], str]) -> None:
        """Say which API groups do not answer, and when they do again."""
        for version in sorted(broken.keys() - self._broken):
            name, reason = "/".join(version), broken[version]
            logger.warning(
                "The API group %s does not answer; resources of it that are not known yet are "
                "not served until it does: %s",
                name,
                reason,
            )
        for version in sorted(self._broken - broken.keys()):
            logger.info("The API group %s is not broken any more.", "/".join(version))
        self._broken = frozenset(broken)

    def _collect_groups(self) -> frozenset[str] | None:
        """Return the API groups to be scanned; None for all (RES-19)."""
        groups = {selector.group for selector in self._operator.registry.collect_selectors()}
        if None in groups:
            return None
        return self._operator.insights.groups.union(group for group in groups if group is not None)

    def _adjust(self) -> None:
        """Start and stop streams."""
        served = self._serve_selectors()
        wanted: dict[StreamKey, frozenset[Selector]] = {}
        for resource, found in served.items():
            for namespace in self._list_namespaces(resource):
                wanted[resource, namespace] = frozenset(found)
        for key in self._streams.keys() - wanted.keys():
            logger.info("%s is not served any more.", _describe(key))
            self._stop(key)
        for key, selectors in wanted.items():
            running = self._running.get(key)
            if running is not None and running.subresources != key[0].subresources:
                self._stop(key)
            if key not in self._streams:
                self._start(key, selectors)
        self._gate.expect(self._indexing)

    def _serve_selectors(self) -> dict[Resource, list[Selector]]:
        """Match what is declared with what there is; report what is ambiguous or absent."""
        served: dict[Resource, list[Selector]] = {}
        resources = self._operator.insights.resources
        for handler in self._operator.registry.select_resource_handlers():
            selector = handler.selector
            if selector is None:
                continue
            found = selector.select(resources)
            if selector.is_ambiguous(resources):
                names = ", ".join(sorted(r.name for r in selector.find_candidates(resources)))
                self._report(selector, f"{selector} is ambiguous and is not served: {names}.")
            elif not found and selector.is_specific:
                text = f"{selector} is not in the cluster yet; it is served as soon as it is."
                self._report(selector, text)
            for resource in found:
                if _is_watchable(resource):
                    served.setdefault(resource, []).append(selector)
        return served

    def _report(self, selector: Selector, text: str) -> None:
        if (selector, text) not in self._reported:
            self._reported.add((selector, text))
            logger.warning(text)

    def _list_namespaces(self, resource: Resource) -> Iterable[str | None]:
        if self._scope.clusterwide or not resource.namespaced:
            return (None,)
        return self._operator.insights.namespaces or ()

    def _stop(self, key: StreamKey) -> None:
        self._streams.pop(key).cancel()
        self._running.pop(key)
        self.statuses.pop(key)
        self._gate.arrive(key)

    def _start(self, key: StreamKey, selectors: Collection[Selector]) -> None:
        resource, namespace = key
        handlers = self._operator.registry.handlers_of(selectors)
        if not handlers:
            return
        logger.debug("%s is served now.", _describe(key))
        ctx = ResourceContext(
            self._operator, self._client, resource, handlers, is_late=self.scanned.is_set()
        )
        if handlers.indexers:
            self._indexing.add(key)
        self.statuses[key] = status = WatchStatus()
        self._running[key] = resource
        self._streams[key] = self._spawn(
            partial(self._stream, ctx, namespace, status), f"watch of {_describe(key)}"
        )

    def _spawn(self, fn: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        return self._group.create_task(keep_running(fn, name=name), name=name)

    async def _stream(
        self, ctx: ResourceContext, namespace: str | None, status: WatchStatus
    ) -> None:
        """Feed the objects of one resource in one namespace to their workers."""
        settings, duty = ctx.operator.settings, ctx.operator.duty
        if not ctx.handlers.indexers:
            await self._gate.wait()  # rather than hold all of its objects in memory
        async with TaskGroup() as group:
            spawn = partial(duty.spawn, group)
            dispatcher = Dispatcher(
                Processor(ctx, self._gate, spawn=spawn),
                spawn=spawn,
                gate=self._gate,
                limit=settings.batching.worker_limit,
                is_resuming=(ctx.resource, namespace) not in self._listed,
                is_standing_by=not duty.is_active,
            )
            try:
                with duty.subscribed(dispatcher.switch):
                    await self._feed_in_turns(dispatcher, ctx, namespace, status)
            except Exception:
                dispatcher.withdraw()  # all is listed anew
                raise
            finally:
                await dispatcher.drain(settings.batching.exit_timeout)
                if (ctx.resource, namespace) not in self._streams:
                    dispatcher.withdraw()

    async def _feed_in_turns(
        self,
        dispatcher: Dispatcher,
        ctx: ResourceContext,
        namespace: str | None,
        status: WatchStatus,
    ) -> None:
        """List and watch anew in each turn; while others act, only for the indexes."""
        duty = ctx.operator.duty
        while True:
            if not ctx.handlers.indexers:
                await duty.wait_until_active()
            async with duty.turn_of(duty.turn):
                await self._feed(dispatcher, ctx, namespace, status)

    async def _feed(
        self,
        dispatcher: Dispatcher,
        ctx: ResourceContext,
        namespace: str | None,
        status: WatchStatus,
    ) -> None:
        options = ctx.operator.settings.watching
        items = watch(ctx.client, ctx.resource, namespace, options, status)
        async with contextlib.aclosing(items):
            async for item in items:
                if isinstance(item, tuple):
                    await dispatcher.take(*item)
                elif isinstance(item, ListingStarted):
                    dispatcher.begin_listing()
                else:
                    dispatcher.finish_listing()
                    self._listed.add((ctx.resource, namespace))
                    self._gate.arrive((ctx.resource, namespace))

    async def _tell_of_waiting(self) -> None:
        """Say what handlers wait for, if they wait for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._gate.wait()
        if self._gate.is_open or not self.scanned.is_set():
            return
        listed = ", ".join(self.list_unindexed())
        logger.warning("Handlers wait until the indexes are filled with all objects of %s.", listed)

    async def _watch_definitions(self) -> None:
        """Discover again whenever a custom resource definition changes."""
        if await may_watch(self._client, DEFINITIONS):
            options = self._operator.settings.watching
            await watch_definitions(self._client, options, self._changed.set)

    async def _begin_with_namespaces(self) -> None:
        """Know the namespaces before the first streams start."""
        patterns = self._scope.patterns
        if self._scope.clusterwide:
            return
        if self._operator.settings.scanning.disabled or not await may_watch(
            self._client, NAMESPACES
        ):
            exact = (p for p in patterns if isinstance(p, str) and is_exact(p))
            self._operator.insights.serve(frozenset(exact))
            return
        options = self._operator.settings.watching
        watching = partial(watch_namespaces, self._client, options, self._select_namespaces)
        self._spawn(watching, "watch of namespaces")
        await self._operator.insights.wait_for_namespaces()

    def _select_namespaces(self, names: Iterable[str]) -> None:
        selected = select_namespaces(names, self._scope.patterns)
        if selected != self._operator.insights.namespaces:
            self._operator.insights.serve(selected)
            self._changed.set()


def _is_watchable(resource: Resource) -> bool:
    return not resource.verbs or {"list", "watch"} <= resource.verbs


def _enumerate(names: Collection[str]) -> str:
    """Return the names for a line of the log; not all of them if there are many."""
    shown = sorted(names)[:_SHOWN]
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*shown, *more]) or "nothing yet"


def _describe(key: StreamKey) -> str:
    resource, namespace = key
    return f"{resource.name} in {namespace}" if namespace else resource.name
