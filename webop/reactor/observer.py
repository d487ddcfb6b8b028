"""The observer: finds the kinds and namespaces to watch, as they appear and disappear.

It discovers the resources that handlers are declared for, and keeps one stream running for each of
them in each served namespace (chapters "Resource specification" and "Scopes").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import chain

from webop.backoff import Backoff, Once
from webop.client.api import Client
from webop.client.discovery import discover
from webop.errors import APIError
from webop.handling.cluster_view import Indexed, Origin
from webop.handling.context import OperatorContext
from webop.handling.indexes import Feed
from webop.handling.invocation import is_async
from webop.handling.registry import ResourceHandlers
from webop.objects.resources import Resource, Selector
from webop.reactor.cluster_changes import (
    DEFINITIONS,
    NAMESPACES,
    Definitions,
    may_watch,
    wait_for_permission,
    watch_namespaces,
)
from webop.reactor.index_gate import IndexGate
from webop.reactor.planning import ResourceContext
from webop.reactor.scopes import NamespacePattern, is_exact, select_namespaces
from webop.reactor.slots import SharedSlots, Slots
from webop.reactor.stream import Stream, StreamKey
from webop.reactor.supervision import keep_running

logger = logging.getLogger(__name__)

_SHOWN = 5  # names in one line of the log
_SETTLING = 0.2  # seconds; CRDs and namespaces often change in groups
_PATIENCE = 10.0  # seconds; then the log says what handlers wait for
_RESCANS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds; while something is missing
_RESCAN_BROKEN = 10.0  # seconds; at most, while the API server or an API group does not answer
_RESCAN_UNWATCHED = 60.0  # seconds; if no watch shows new kinds


@dataclass(frozen=True, slots=True)
class Scope:
    """The served part of the cluster: all of it, or namespaces by patterns."""

    clusterwide: bool
    patterns: tuple[NamespacePattern, ...] = ()


class Observer:
    """Keeps one stream for each resource and namespace that is declared and exists.

    Guarantees: one stream works on an object at a time. A stream that is replaced (its resource
    has another subresource or another preferred version now, or other selectors match it) ends
    before the next one begins: handlers finish within ``settings.batching.exit_timeout`` or are
    cancelled, daemons stop as when the operator stops.
    """

    def __init__(
        self,
        operator: OperatorContext,
        client: Client,
        scope: Scope,
        group: asyncio.TaskGroup,
        shared_slots: SharedSlots,
    ) -> None:
        self._operator = operator
        self._client = client
        self._scope = scope
        self._group = group
        self._changed = asyncio.Event()
        self._definitions = Definitions()
        self._is_outdated = False
        self._streams: dict[StreamKey, Stream] = {}
        self._ending: set[Stream] = set()
        self._resumed: set[StreamKey] = set()
        self._gate: IndexGate[StreamKey] = IndexGate()
        self._broken: frozenset[tuple[str, str]] = frozenset()
        self._missing: set[Selector] = set()
        self._reports = Once()
        self._was_synced = False
        self._shared_slots = shared_slots
        self._slots: dict[str, Slots] = {}
        self._is_following = not operator.settings.scanning.disabled and (
            operator.registry.follows_kinds
        )
        self.scanned = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled: discover, adjust the streams, wait for new kinds or namespaces."""
        is_scanning = not self._operator.settings.scanning.disabled
        if self._is_following:
            self._spawn(self._follow_definitions, "watch of definitions")
        await self._begin_with_namespaces()
        self._spawn(self._report_waiting, "gate")
        backoff = Backoff(_RESCANS, jitter=0.1)
        while True:
            has_answered = await self._rescan() and not self._broken
            is_complete = not is_scanning or (not self._missing and self._is_up_to_date())
            pause = None if has_answered and is_complete else backoff.next()
            if pause is not None and not has_answered:
                pause = min(pause, _RESCAN_BROKEN)
            if pause is None and is_scanning and not self._is_following:
                pause = _RESCAN_UNWATCHED
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wait_for_definitions()
                    backoff.reset()

    async def _wait_for_definitions(self) -> None:
        """Wait until kinds change; meanwhile, adjust to the namespaces as they change."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(_SETTLING)
            self._changed.clear()
            if self._is_outdated and not self._is_up_to_date():
                return
            if self.scanned.is_set():
                self._adjust()

    def _is_up_to_date(self) -> bool:
        """Return whether all known definitions are among the discovered resources."""
        resources = self._operator.cluster_view.resources
        return self._definitions.are_shown_by(resources, self._collect_groups())

    @property
    def streams(self) -> Collection[Stream]:
        """The streams that run."""
        return self._streams.values()

    def list_unindexed(self) -> list[str]:
        """Return the streams that still fill the indexes while handlers wait for them."""
        if self._gate.is_open:
            return []
        return [str(stream) for key, stream in self._streams.items() if key in self._gate.pending]

    def list_troubles(self) -> list[str]:
        """Return the watches that do not work, and why; watches that are starting do not count."""
        is_active = self._operator.pausing.is_active
        waiting = [
            stream
            for stream in self._streams.values()
            if not stream.status.version and (is_active or stream.feeds)
        ]
        self._was_synced = self._was_synced or (self.scanned.is_set() and not waiting)
        return [
            f"the watch of {stream.ctx.resource.name} is not up: {stream.status.error or 'listing'}"
            for stream in waiting
            if stream.status.error or not self._was_synced
        ]

    async def _rescan(self) -> bool:
        """Discover and adjust; return whether the API server has answered."""
        self._is_outdated = False
        try:
            found = await discover(self._client, self._collect_groups())
        except APIError as exc:
            level = logging.WARNING if self._reports.is_new("discovery") else logging.DEBUG
            logger.log(level, "Cannot discover the resources of the cluster: %s", exc)
            return False
        if self._reports.forget("discovery"):
            logger.info("Discovered the resources of the cluster.")
        known = self._operator.cluster_view.resources
        kept = {
            resource for resource in known if (resource.group, resource.version) in found.broken
        }
        self._operator.cluster_view.update(found.resources | kept, found.groups)
        self._report_broken(found.broken)
        self._adjust()
        if not self.scanned.is_set():
            self._report_start()
        self.scanned.set()
        self._operator.cluster_view.is_scanned = True
        return True

    def _report_start(self) -> None:
        """Log once what is served: a silent operator would seem to hang."""
        if not self._operator.registry.select_resource_handlers():
            return  # the webhooks were logged already
        places = _enumerate(self._operator.cluster_view.namespaces or ())
        kinds = _enumerate({resource.name for resource, _ in self._streams})
        if not self._scope.clusterwide and not places:
            logger.warning(
                "The operator is running, but no namespace matches %s. webop serves namespaces as "
                "soon as they match.",
                ", ".join(map(str, self._scope.patterns)),
            )
        elif not kinds:
            logger.info("The operator is running.")  # a warning names what it waits for
        elif self._scope.clusterwide:
            logger.info("The operator is running. It serves %s in all namespaces.", kinds)
        else:
            logger.info("The operator is running. It serves %s in namespaces: %s.", kinds, places)

    def _report_broken(self, broken: dict[tuple[str, str], str]) -> None:
        """Log which API groups do not respond, and when they respond again."""
        for version in sorted(broken.keys() - self._broken):
            name, reason = "/".join(version), broken[version]
            logger.warning(
                "The API group %s does not respond. Until it does, webop does not serve kinds of "
                "it that were not discovered before: %s",
                name,
                reason,
            )
        for version in sorted(self._broken - broken.keys()):
            logger.info("The API group %s responds again.", "/".join(version))
        self._broken = frozenset(broken)

    def _collect_groups(self) -> frozenset[str] | None:
        """Return the API groups to discover; None for all (RES-19)."""
        groups = {selector.group for selector in self._operator.registry.collect_selectors()}
        if None in groups:
            return None
        return self._operator.cluster_view.groups.union(
            group for group in groups if group is not None
        )

    def _adjust(self) -> None:
        """Start, replace and stop streams."""
        namespaces = (None,) if self._scope.clusterwide else self._operator.cluster_view.namespaces
        wanted = {
            (resource, namespace): (resource, frozenset(selectors))
            for resource, selectors in self._match_selectors().items()
            for namespace in (namespaces or () if resource.namespaced else (None,))
        }
        for key, stream in list(self._streams.items()):
            if key not in wanted:
                logger.info("Stopped serving %s.", stream)
            elif stream.fits(*wanted[key]):
                continue
            else:
                logger.info("%s has changed in the cluster. Listing it again.", stream)
            del self._streams[key]
            if not stream.is_resuming:
                self._resumed.add(key)
            stream.is_stopped = True
            stream.task.cancel()
            self._ending.add(stream)
        for key, (resource, selectors) in wanted.items():
            if key not in self._streams:
                self._start(resource, key[1], selectors)
        self._gate.expect(
            key for key, stream in self._streams.items() if stream.feeds and stream.is_resuming
        )
        self._clean_up()

    def _match_selectors(self) -> dict[Resource, list[Selector]]:
        """Match the selectors with the resources; log what is ambiguous or absent."""
        matched: dict[Resource, list[Selector]] = {}
        resources = self._operator.cluster_view.resources
        groups = self._operator.cluster_view.served_groups
        self._missing.clear()
        if not self._is_following:
            reviewed = self._operator.registry.collect_selectors()
            self._missing.update(one for one in reviewed if not one.select(resources))
        for handler in self._operator.registry.select_resource_handlers():
            selector = handler.selector
            if selector is None:
                continue
            found = selector.select(resources)
            if selector.is_ambiguous(resources):
                names = ", ".join(sorted(r.name for r in selector.find_candidates(resources)))
                text = f"{selector} is ambiguous: {names}. Write one of these in the decorator."
                self._report(selector, text)
            elif not found and selector.is_specific:
                self._missing.add(selector)
                text = f"{selector} is not in the cluster yet. Waiting for its definition (CRD)."
                self._report(selector, text + selector.suggest(resources, groups))
            elif self._reports.forget(selector) and found:
                logger.info(
                    "The cluster has %s now. Handling it.",
                    _enumerate({resource.name for resource in found}),
                )
            for resource in found:
                if not resource.verbs or {"list", "watch"} <= resource.verbs:
                    matched.setdefault(resource, []).append(selector)
        return matched

    def _report(self, selector: Selector, text: str) -> None:
        if self._reports.is_new(selector, text):
            logger.warning(text)

    def _start(
        self, resource: Resource, namespace: str | None, selectors: frozenset[Selector]
    ) -> None:
        """Start a stream; it waits until all former streams of the same objects have ended."""
        handlers = self._operator.registry.handlers_of(selectors)
        origin: Origin = (resource.group, resource.plural, namespace)
        former = [stream for stream in self._ending if stream.origin == origin]
        view = self._operator.cluster_view  # it is older than the last loss of credentials
        if former:
            is_late = all(stream.ctx.is_late for stream in former)
        else:
            is_late = view.is_scanned and origin not in view.unlisted
        is_resuming = (resource, namespace) not in self._resumed
        is_resuming = is_resuming and all(stream.is_resuming for stream in former)
        if is_resuming and not is_late:
            view.unlisted.add(origin)
        slots = self._get_slots(resource, handlers)
        stream = Stream(
            ResourceContext(
                self._operator, self._client, resource, handlers, slots, is_late=is_late
            ),
            namespace,
            selectors,
            self._gate,
            is_resuming=is_resuming,
        )
        logger.debug("Started serving %s.", stream)
        if stream.feeds:
            indexed = self._operator.cluster_view.indexed.setdefault(stream.origin, Indexed())
            indexed.feeds |= stream.feeds

        async def run_in_order() -> None:
            if former:
                await asyncio.wait([stream.task for stream in former])
            origins = [each.origin for each in self._streams.values()]
            stream.is_alone = origins.count(stream.origin) == 1
            await keep_running(stream.run, name=f"watch of {stream}")

        self._streams[stream.key] = stream
        stream.task = self._group.create_task(run_in_order(), name=f"watch of {stream}")
        stream.task.add_done_callback(lambda _: self._end(stream))

    def _get_slots(self, resource: Resource, handlers: ResourceHandlers) -> Slots:
        """Return the slots of a kind, for all of its namespaces and versions."""
        settings, name = self._operator.settings, resource.plural_name
        if name not in self._slots:
            limit = settings.batching.worker_limit
            self._slots[name] = Slots(name, self._shared_slots, limit=limit)
        has_sync = any(not is_async(handler.fn) for handler in handlers.changes)
        self._slots[name].pool = settings.execution if has_sync else None
        return self._slots[name]

    def _end(self, stream: Stream) -> None:
        if stream in self._ending:  # otherwise, the operator stops or has no credentials
            self._ending.remove(stream)
            self._clean_up()

    def _clean_up(self) -> None:
        """Remove objects that no stream updates any more from the indexes and from memory.

        They can be from streams of a former observer, before credentials were lost.
        """
        feeds: dict[Origin, set[Feed]] = {}
        for stream in (*self._streams.values(), *self._ending):
            feeds.setdefault(stream.origin, set()).update(stream.feeds)
        indexed = self._operator.cluster_view.indexed
        for origin, entry in list(indexed.items()):
            kept = feeds.get(origin, set())
            for feed in entry.feeds - kept:
                for uid in entry.uids:
                    feed.forget(uid)
            entry.feeds &= kept
            entry.complete &= kept
            if not kept:
                del indexed[origin]
        view = self._operator.cluster_view
        view.unlisted &= feeds.keys()
        view.listed = {origin: turns for origin, turns in view.listed.items() if origin in feeds}
        left = view.left
        for origin in left.keys() - feeds:
            for uid in chain.from_iterable(left.pop(origin).values()):
                self._operator.memos.forget(uid)

    def _spawn(self, fn: Callable[[], Awaitable[None]], name: str) -> None:
        self._group.create_task(keep_running(fn, name=name), name=name)

    async def _report_waiting(self) -> None:
        """Log what handlers wait for, if they wait for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._gate.wait()
        if self._gate.is_open or not self.scanned.is_set():
            return
        listed = ", ".join(self.list_unindexed())
        logger.warning("Handlers wait until the indexes are filled with all objects of %s.", listed)

    async def _follow_definitions(self) -> None:
        """Discover again whenever a custom resource definition changes."""
        if not await may_watch(self._client, DEFINITIONS):
            await wait_for_permission(self._client, DEFINITIONS)
        options = self._operator.settings.watching
        await self._definitions.follow(self._client, options, self._note_definition)

    def _note_definition(self) -> None:
        self._is_outdated = True
        self._changed.set()

    async def _begin_with_namespaces(self) -> None:
        """Find the namespaces before the first streams start."""
        patterns, settings = self._scope.patterns, self._operator.settings
        if self._scope.clusterwide:
            return
        is_permitted = self._is_following and await may_watch(self._client, NAMESPACES)
        if not is_permitted:
            exact = (p for p in patterns if isinstance(p, str) and is_exact(p))
            self._operator.cluster_view.serve(frozenset(exact))
        if not self._is_following:
            return

        async def follow() -> None:
            if not is_permitted:
                await wait_for_permission(self._client, NAMESPACES)
            await watch_namespaces(self._client, settings.watching, self._select_namespaces)

        self._spawn(follow, "watch of namespaces")
        await self._operator.cluster_view.wait_for_namespaces()

    def _select_namespaces(self, names: Iterable[str]) -> None:
        selected = select_namespaces(names, self._scope.patterns)
        if selected != self._operator.cluster_view.namespaces:
            self._operator.cluster_view.serve(selected)
            self._changed.set()


def _enumerate(names: Collection[str]) -> str:
    """Return names for a log line, shortened if there are many."""
    shown = sorted(names)[:_SHOWN]
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*shown, *more])
