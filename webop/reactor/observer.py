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

from webop.aio.backoff import Backoff, Once
from webop.client.api import Client
from webop.client.discovery import discover
from webop.client.http.requests import Selection
from webop.context.operator_context import OperatorContext
from webop.errors import APIError
from webop.handlers.registry import ResourceHandlers
from webop.objects.names import join_names
from webop.objects.resources import CRDS, NAMESPACES, Resource, Selector
from webop.reactor.bodies import Bodies
from webop.reactor.cluster_changes import (
    Definitions,
    may_watch,
    wait_for_permission,
    watch_namespaces,
)
from webop.reactor.index_gate import IndexGate
from webop.reactor.namespace_patterns import NamespacePattern, is_exact, select_namespaces
from webop.reactor.resource_context import ResourceContext
from webop.reactor.stream import Stream
from webop.reactor.supervision import keep_running
from webop.reactor.workers import Pace, Workers

logger = logging.getLogger(__name__)

_SETTLING = 0.2  # seconds; CRDs and namespaces often change in groups
_PATIENCE = 10.0  # seconds; then the log says what handlers wait for
_RESCANS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds; while something is missing
_RESCAN_BROKEN = 10.0  # seconds; at most, while the API server or an API group does not answer
_RESCAN_UNWATCHED = 60.0  # seconds; if no watch shows new kinds

StreamKey = tuple[Resource, str | None]


@dataclass(frozen=True, slots=True)
class Scope:
    """The served part of the cluster: all of it, or namespaces by patterns."""

    clusterwide: bool
    patterns: tuple[NamespacePattern, ...] = ()


class Observer:
    """Keeps one stream for each resource and namespace that is declared and exists.

    Guarantees: one stream serves an object at a time, whatever changes in its kind: subresources,
    the preferred version, the selectors that match. A stream that is stopped ends before another
    one begins with its objects: handlers finish within ``settings.batching.exit_timeout`` or are
    cancelled, daemons stop as in a pause.
    """

    def __init__(
        self,
        operator: OperatorContext,
        client: Client,
        scope: Scope,
        group: asyncio.TaskGroup,
    ) -> None:
        self._operator = operator
        self._client = client
        self._scope = scope
        self._group = group
        self._changed = asyncio.Event()
        self._definitions = Definitions()
        self._has_new_definitions = False
        self._streams: dict[StreamKey, Stream] = {}
        self._ending: set[Stream] = set()
        self._gate = IndexGate()
        self._broken: frozenset[tuple[str, str]] = frozenset()
        self._missing: set[Selector] = set()
        self._reports = Once()
        self._was_synced = False
        self._bodies, self._pace = Bodies(), Pace()
        self._workers: dict[str, Workers] = {}
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
            if self._has_new_definitions and not self._is_up_to_date():
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
        return sorted(map(str, self._gate.pending))

    def list_absent(self) -> list[str]:
        """Return why kinds of handlers are not served: they are missing, or not unique."""
        if not self.scanned.is_set():
            return []
        view = self._operator.cluster_view
        handlers = self._operator.registry.select_resource_handlers()
        needed = {each.selector for each in handlers if each.selector and not each.when_kind_exists}
        absences = (view.explain_absence(one) for one in needed if one.is_specific)
        return sorted(filter(None, absences))

    def list_troubles(self) -> list[str]:
        """Return the watches that do not work, and why; watches that are starting do not count."""
        is_active = self._operator.pausing.is_active
        waiting = [
            stream
            for stream in self._streams.values()
            if not stream.status.version and (is_active or stream.is_filling)
        ]
        self._was_synced = self._was_synced or (self.scanned.is_set() and not waiting)
        return [
            f"the watch of {stream.ctx.resource.name} is not up: {stream.status.error or 'listing'}"
            for stream in waiting
            if stream.status.error or not self._was_synced
        ]

    async def _rescan(self) -> bool:
        """Discover and adjust; return whether the API server has answered."""
        self._has_new_definitions = False
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
        return True

    def _report_start(self) -> None:
        """Log once what is served: a silent operator would seem to hang."""
        if not self._operator.registry.select_resource_handlers():
            return  # the webhooks were logged already
        places = join_names(sorted(self._operator.cluster_view.namespaces or ()))
        watching, served = self._operator.settings.watching, {each for each, _ in self._streams}
        chosen = {
            each.name: " and ".join(watching.build_selectors(each).values()) for each in served
        }
        kinds = join_names(sorted(f"{name} ({by})" if by else name for name, by in chosen.items()))
        for name, key in watching.list_unused({*served, NAMESPACES}) if served else ():
            logger.warning(
                "settings.watching.%s has the key %s, which matches no watched kind: it has no "
                "effect.",
                *(name, key),
            )
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
        """Return the API groups to discover; None for all."""
        groups = {selector.group for selector in self._operator.registry.collect_selectors()}
        if None in groups:
            return None
        return self._operator.cluster_view.groups.union(
            group for group in groups if group is not None
        )

    def _adjust(self) -> None:
        """Start, adapt and stop streams."""
        namespaces = (None,) if self._scope.clusterwide else self._operator.cluster_view.namespaces
        wanted = {
            (resource, namespace): (resource, frozenset(selectors))
            for resource, selectors in self._match_selectors().items()
            for namespace in (namespaces or () if resource.namespaced else (None,))
        }
        for key in self._streams.keys() - wanted.keys():
            stream = self._streams.pop(key)
            others = (each for each in wanted.keys() - self._streams if stream.is_about(*each))
            if (other := next(others, None)) is not None:
                self._streams[other] = stream
                continue
            logger.info("Stopped serving %s.", stream)
            stream.is_dropped = True
            stream.task.cancel()
            self._ending.add(stream)
        for key, (resource, selectors) in wanted.items():
            if (known := self._streams.get(key)) is None:
                self._start(resource, key[1], selectors)
            elif known.adapt(resource, selectors):
                logger.info("%s has changed in the cluster. Listing it again.", known)
        for resource, ctx in {one.ctx.resource: one.ctx for one in self._streams.values()}.items():
            if not ctx.is_partial:
                self._report_partial(resource, ctx.handlers)
        self._gate.expect(
            stream
            for stream in self._streams.values()
            if stream.is_filling and not stream.is_indexed
        )

    def _match_selectors(self) -> dict[Resource, list[Selector]]:
        """Match the selectors with the resources; log what is ambiguous or absent."""
        matched: dict[Resource, list[Selector]] = {}
        view = self._operator.cluster_view
        resources = view.resources
        self._missing.clear()
        if not self._is_following:
            reviewed = self._operator.registry.collect_selectors()
            self._missing.update(one for one in reviewed if not one.select(resources))
        for handler in self._operator.registry.select_resource_handlers():
            selector = handler.selector
            if selector is None:
                continue
            found = selector.select(resources)
            problem = view.explain_absence(selector) if selector.is_specific else ""
            if problem and (candidates := selector.find_candidates(resources)):
                found = [
                    resource
                    for resource in candidates
                    if any(
                        selector in each.selectors and each.is_about(resource, each.namespace)
                        for each in self._streams.values()
                    )
                ]
                if found:
                    problem += f" Until the next start, webop continues with {found[0].name}."
                self._report(selector, problem)
            elif problem:
                self._missing.add(selector)
                level = logging.INFO if handler.when_kind_exists else logging.WARNING
                self._report(selector, problem, level)
            elif self._reports.forget(selector) and found:
                logger.info(
                    "The cluster has %s now. Handling it.",
                    join_names(sorted(resource.name for resource in found)),
                )
            for resource in found:
                if not resource.verbs or {"list", "watch"} <= resource.verbs:
                    matched.setdefault(resource, []).append(selector)
        return matched

    def _report(self, selector: Selector, text: str, level: int = logging.WARNING) -> None:
        if self._reports.is_new(selector, text):
            logger.log(level, text)

    def _report_partial(self, resource: Resource, handlers: ResourceHandlers) -> None:
        """Log once which handlers ask for metadata only, in vain, and why."""
        asked = (*handlers.events, *handlers.changes, *handlers.background, *handlers.indexers)
        some = [handler.id for handler in asked if handler.metadata_only]
        rest = [handler.id for handler in handlers.everything if not handler.metadata_only]
        why = f"whole objects are needed by {join_names(rest)}"
        if not rest:
            why = "a storage in settings.persistence is not known to need only metadata"
        text = f"metadata_only=True has no effect for {resource}, because {why}."
        if some and self._reports.is_new(("metadata", resource.plural_name), text):
            logger.info(text)

    def _start(
        self, resource: Resource, namespace: str | None, selectors: frozenset[Selector]
    ) -> None:
        """Start a stream; it waits until the former stream of the same objects has ended."""
        ending = [stream.task for stream in self._ending if stream.is_about(resource, namespace)]
        name = resource.plural_name
        if name not in self._workers:  # for all of its namespaces and versions
            self._workers[name] = Workers(name, self._operator, self._bodies, self._pace)
        ctx = ResourceContext(
            self._operator, self._client, resource, ResourceHandlers(()), self._workers[name]
        )
        stream = Stream(ctx, namespace, self._gate)
        stream.adapt(resource, selectors)
        logger.debug("Started serving %s.", stream)

        async def run_in_order() -> None:
            if ending:
                await asyncio.wait(ending)
            await stream.run()

        self._streams[resource, namespace] = stream
        stream.task = self._group.create_task(run_in_order(), name=f"stream of {stream}")
        stream.task.add_done_callback(lambda _: self._end(stream))

    def _end(self, stream: Stream) -> None:
        """Forget the objects of a stopped stream, except in streams of other versions."""
        if stream not in self._ending:
            return  # the operator stops
        self._ending.remove(stream)
        others = [
            each
            for each in (*self._streams.values(), *self._ending)
            if each.is_about(stream.ctx.resource, stream.namespace)
        ]
        if stream.ctx.handlers.children and not others:
            kind = stream.ctx.resource.plural_name
            self._operator.children.drop(kind, stream.namespace)
        feeds = stream.feeds.difference(*(each.feeds for each in others))
        for uid in stream.uids:
            self._operator.indices.discard(uid, feeds)
            if not any(uid in each.uids for each in others):
                self._operator.indices.discard(uid)
                self._operator.memos.forget(uid)
                self._operator.children.forget(uid)

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
        if not await may_watch(self._client, CRDS):
            await wait_for_permission(self._client, CRDS)
        options = self._operator.settings.watching
        await self._definitions.follow(self._client, options, self._note_definition)

    def _note_definition(self) -> None:
        self._has_new_definitions = True
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
            # Handled kinds are narrowed by other keys, such as EVERYTHING: that hides no namespace.
            named = settings.watching.build_selectors(NAMESPACES, is_named=True)
            selection, on_names = Selection(named), self._select_namespaces
            await watch_namespaces(self._client, settings.watching, selection, on_names)

        self._spawn(follow, "watch of namespaces")
        await self._operator.cluster_view.wait_for_namespaces()

    def _select_namespaces(self, names: Iterable[str]) -> None:
        selected = select_namespaces(names, self._scope.patterns)
        if selected != self._operator.cluster_view.namespaces:
            self._operator.cluster_view.serve(selected)
            self._changed.set()
