"""The observer: finds the kinds and namespaces to watch, as they appear and disappear.

It asks the API server for them every 30 seconds, and as soon as a watch shows that a CRD has
changed, or that a namespace has come or gone. It keeps one stream running for each resource that
handlers are declared for, in each served namespace (chapters "Resource specification" and
"Scopes").
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from webop.aio.backoff import Backoff, Once
from webop.aio.supervision import keep_running
from webop.client.api import Client
from webop.client.discovery import Discovery, discover
from webop.client.http.requests import Selection
from webop.client.watch import ListingFinished, WatchStatus, watch
from webop.context.operator_context import OperatorContext
from webop.errors import APIError, APIForbiddenError
from webop.handlers.registry import ResourceHandlers
from webop.objects.names import join_names
from webop.objects.namespace_patterns import NamespacePattern, is_exact, select_namespaces
from webop.objects.resources import CRDS, NAMESPACES, Resource, Selector
from webop.reactor.bodies import Bodies
from webop.reactor.resource_context import ResourceContext
from webop.reactor.stream import Stream
from webop.reactor.workers import Pace, Workers

logger = logging.getLogger(__name__)

_SETTLING = 0.2  # seconds; CRDs and namespaces often change in groups
_PATIENCE = 10.0  # seconds; then the log says what handlers wait for

# Seconds until the API server is asked again, as its discovery can be behind its CRDs.
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 27.0)


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
        self._triggered = asyncio.Event()
        self._found = Discovery()
        self._streams: list[Stream] = []  # also those that have been stopped, until they have ended
        self._indexed = asyncio.Event()  # never cleared: later streams delay their own objects only
        self._reports = Once()
        self._was_synced = False
        self._bodies, self._pace = Bodies(), Pace()
        self._workers: dict[str, Workers] = {}

    async def run(self) -> None:
        """Ask for kinds and namespaces, forever, or only once if scanning is disabled."""
        self._spawn(self._report_waiting, "gate")
        if self._is_following:
            definitions = functools.partial(self._watch, CRDS, Selection(is_partial=True))
            self._spawn(definitions, "watch of definitions")
        if self._is_following and not self._scope.clusterwide:
            namespaces = functools.partial(self._watch, NAMESPACES, self._select_namespaces())
            self._spawn(namespaces, "watch of namespaces")
        pauses = Backoff(_PAUSES, jitter=0.1)
        while not await self._scan() or not self._operator.settings.scanning.disabled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pauses.next()):
                    await self._triggered.wait()
            if self._triggered.is_set():
                pauses.reset()
                await asyncio.sleep(_SETTLING)
                self._triggered.clear()

    @property
    def _is_following(self) -> bool:
        """Whether CRDs and namespaces are watched."""
        is_scanning = not self._operator.settings.scanning.disabled
        return is_scanning and self._operator.registry.follows_kinds

    @property
    def streams(self) -> Collection[Stream]:
        """The streams that serve objects."""
        return [stream for stream in self._streams if not stream.is_dropped]

    def list_unindexed(self) -> list[str]:
        """Return the streams that still fill the indexes while handlers wait for them."""
        if self._indexed.is_set():
            return []
        return sorted(str(one) for one in self.streams if one.is_filling and not one.is_indexed)

    def _open_if_indexed(self) -> None:
        """Let handlers run once all lists that fill indexes are complete."""
        if not self._indexed.is_set() and not self.list_unindexed():
            self._indexed.set()
            for stream in self.streams:
                stream.open()

    def list_absent(self) -> list[str]:
        """Return why kinds of handlers are not served: they are missing, or not unique."""
        view = self._operator.cluster_view
        if not view.is_known:
            return []
        handlers = self._operator.registry.select_resource_handlers()
        needed = {each.selector for each in handlers if each.selector and not each.when_kind_exists}
        absences = (view.explain_absence(one) for one in needed if one.is_specific)
        return sorted(filter(None, absences))

    def list_troubles(self) -> list[str]:
        """Return the watches that do not work, and why; watches that are starting do not count."""
        is_active, ownership = self._operator.pausing.is_active, self._operator.ownership
        waiting = [
            stream
            for stream in self.streams
            if not stream.status.version
            and (stream.is_filling or (is_active and ownership.wants(stream.ctx.resource)))
        ]
        is_scanned = self._operator.cluster_view.is_known
        self._was_synced = self._was_synced or (is_scanned and not waiting)
        return [
            f"the watch of {stream.ctx.resource.name} is not up: {stream.status.error or 'listing'}"
            for stream in waiting
            if stream.status.error or not self._was_synced
        ]

    # What the cluster has

    async def _watch(self, resource: Resource, selection: Selection) -> None:
        """Trigger a scan when a definition changes, and when a namespace comes or goes."""
        status, options = WatchStatus(), self._operator.settings.watching
        items = watch(self._client, resource, None, options, status, selection)
        async with contextlib.aclosing(items):
            async for item in items:
                if isinstance(item, ListingFinished):
                    self._triggered.set()
                elif isinstance(item, tuple):
                    name = item[1]["metadata"]["name"]
                    if resource == CRDS or (
                        item[0] != "MODIFIED" and select_namespaces([name], self._scope.patterns)
                    ):
                        self._triggered.set()
                elif resource == CRDS and status.failures == 2:  # in a row; the watch logs why
                    text = "webop cannot watch CRDs. Until it can, it looks for kinds every 30 s."
                    logger.warning(text)

    async def _scan(self) -> bool:
        """Ask for kinds and namespaces, and adjust to them; return whether all was answered."""
        view = self._operator.cluster_view
        try:
            found = await discover(self._client, self._collect_groups(), self._found)
            namespaces = await self._find_namespaces()
        except APIError as exc:
            level = logging.WARNING if self._reports.is_new("discovery") else logging.DEBUG
            logger.log(level, "Cannot discover the resources of the cluster: %s", exc)
            return False
        if self._reports.forget("discovery"):
            logger.info("Discovered the resources of the cluster.")
        former, self._found = self._found, found
        if found is not former or namespaces != view.namespaces:
            is_first = not view.is_known
            view.update(found.resources, found.groups, namespaces)
            self._report_broken(former.broken)
            self._adjust()
            if is_first:
                self._report_start()
        return not found.broken

    def _collect_groups(self) -> frozenset[str] | None:
        """Return the API groups to discover; None for all."""
        selectors = self._operator.registry.collect_selectors()
        groups = [selector.group for selector in selectors if selector.group is not None]
        is_limited = len(groups) == len(selectors)
        return self._operator.cluster_view.groups.union(groups) if is_limited else None

    async def _find_namespaces(self) -> frozenset[str] | None:
        """Return the namespaces to serve; None for all."""
        if self._scope.clusterwide:
            return None
        patterns, known = self._scope.patterns, self._operator.cluster_view.namespaces
        exact = frozenset(filter(is_exact, patterns))
        if not self._is_following:
            return exact
        names: list[str] = []
        try:
            async for page in self._client.list_pages(NAMESPACES, None, self._select_namespaces()):
                names += [raw["metadata"]["name"] for raw in page.items]
        except APIForbiddenError:  # the watch logs which rights are missing
            served = exact if known is None else known
            if self._reports.is_new("namespaces"):
                text = "webop may not list namespaces. Until it may, it serves only these: %s."
                logger.warning(text, join_names(sorted(served)) or "none")
            return served
        self._reports.forget("namespaces")
        return select_namespaces(names, patterns)

    def _select_namespaces(self) -> Selection:
        """Return which namespaces count, and that their names are enough."""
        # Handled kinds are narrowed by other keys, such as EVERYTHING: that hides no namespace.
        named = self._operator.settings.watching.build_selectors(NAMESPACES, is_named=True)
        return Selection(named, is_partial=True)

    # What is served

    def _report_start(self) -> None:
        """Log once what is served: a silent operator would seem to hang."""
        if not self._operator.registry.select_resource_handlers():
            return  # the webhooks were logged already
        places = join_names(sorted(self._operator.cluster_view.namespaces or ()))
        watching = self._operator.settings.watching
        served = {stream.ctx.resource for stream in self.streams}
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
        else:
            where = "all namespaces" if self._scope.clusterwide else f"namespaces: {places}"
            logger.info("The operator is running. It serves %s in %s.", kinds, where)

    def _report_broken(self, former: frozenset[tuple[str, str]]) -> None:
        """Log which API groups do not respond, and when they respond again."""
        broken = self._found.broken
        for name in sorted(map("/".join, broken - former)):
            logger.warning(
                "The API group %s does not respond: its API service is not available. Until it "
                "does, webop does not serve kinds of it that were not discovered before.",
                name,
            )
        for name in sorted(map("/".join, former - broken)):
            logger.info("The API group %s responds again.", name)

    def _adjust(self) -> None:
        """Start, adapt and stop streams."""
        view = self._operator.cluster_view
        namespaces = (None,) if self._scope.clusterwide else view.namespaces or ()
        wanted = {
            (resource, namespace): frozenset(selectors)
            for resource, selectors in self._match_selectors().items()
            for namespace in (namespaces if resource.namespaced else (None,))
        }
        served = {(stream.ctx.resource, stream.namespace): stream for stream in self.streams}
        for former in [served.pop(key) for key in served.keys() - wanted.keys()]:
            others = (each for each in wanted.keys() - served if former.is_about(*each))
            if (other := next(others, None)) is not None:  # another version
                served[other] = former
                continue
            logger.info("Stopped serving %s.", str(former))  # who keeps the record keeps no stream
            former.is_dropped = True
            former.task.cancel()
        ending = [stream for stream in self._streams if stream.is_dropped]
        for (resource, namespace), selectors in wanted.items():
            if (stream := served.get((resource, namespace))) is None:
                self._start(resource, namespace, ending).adapt(resource, selectors)
            elif stream.adapt(resource, selectors):
                logger.info("%s has changed in the cluster. Listing it again.", stream)
        for ctx in {stream.ctx.resource: stream.ctx for stream in self.streams}.values():
            self._report_partial(ctx)
        self._open_if_indexed()

    def _match_selectors(self) -> dict[Resource, list[Selector]]:
        """Match the selectors with the resources; log what is ambiguous or absent."""
        matched: dict[Resource, list[Selector]] = {}
        view = self._operator.cluster_view
        for handler in self._operator.registry.select_resource_handlers():
            selector = handler.selector
            if selector is None:
                continue
            found = selector.find_candidates(view.resources)
            if problem := view.explain_absence(selector) if selector.is_specific else "":
                streams = [stream for stream in self.streams if selector in stream.selectors]
                served = {stream.ctx.resource.plural_name for stream in streams}
                found = [resource for resource in found if resource.plural_name in served]
                if found:
                    problem += f" Until the next start, webop continues with {found[0].name}."
                level = logging.INFO if handler.when_kind_exists else logging.WARNING
                if self._reports.is_new(selector, problem):
                    logger.log(level, problem)
            elif self._reports.forget(selector) and found:
                names = join_names(sorted(resource.name for resource in found))
                logger.info("The cluster has %s now. Handling it.", names)
            for resource in found:
                if not resource.verbs or {"list", "watch"} <= resource.verbs:
                    matched.setdefault(resource, []).append(selector)
        return matched

    def _report_partial(self, ctx: ResourceContext) -> None:
        """Log once which handlers ask for metadata only, in vain, and why."""
        handlers, resource = ctx.handlers, ctx.resource
        asked = (*handlers.events, *handlers.changes, *handlers.background, *handlers.indexers)
        some = [handler.id for handler in asked if handler.metadata_only]
        rest = [handler.id for handler in handlers.everything if not handler.metadata_only]
        why = f"whole objects are needed by {join_names(rest)}"
        if not rest:
            why = "a storage in settings.persistence is not known to need only metadata"
        text = f"metadata_only=True has no effect for {resource}, because {why}."
        if (
            some
            and not ctx.is_partial
            and self._reports.is_new(("metadata", resource.plural_name), text)
        ):
            logger.info(text)

    def _start(self, resource: Resource, namespace: str | None, ending: list[Stream]) -> Stream:
        """Start a stream; it waits until the former stream of the same objects has ended."""
        former = [stream.task for stream in ending if stream.is_about(resource, namespace)]
        name = resource.plural_name
        if name not in self._workers:  # for all of its namespaces and versions
            self._workers[name] = Workers(name, self._operator, self._bodies, self._pace)
        ctx = ResourceContext(
            self._operator, self._client, resource, ResourceHandlers(()), self._workers[name]
        )
        stream = Stream(ctx, namespace, self._indexed, self._open_if_indexed)
        logger.debug("Started serving %s.", stream)

        async def run_in_order() -> None:
            if former:
                await asyncio.wait(former)
            await stream.run()

        self._streams.append(stream)
        stream.task = self._group.create_task(run_in_order(), name=f"stream of {stream}")
        stream.task.add_done_callback(lambda _: self._end(stream))
        return stream

    def _end(self, stream: Stream) -> None:
        """Forget the objects of a stopped stream, except in streams of other versions."""
        if not stream.is_dropped:
            return  # the operator stops
        self._streams.remove(stream)
        resource, namespace = stream.ctx.resource, stream.namespace
        others = [each for each in self._streams if each.is_about(resource, namespace)]
        if stream.ctx.handlers.children and not others:
            self._operator.children.drop(resource.plural_name, namespace)
        feeds = stream.feeds.difference(*(each.feeds for each in others))
        for uid in stream.objects:
            self._operator.indices.discard(uid, feeds)
            if not any(uid in each.objects for each in others):
                self._operator.indices.discard(uid)
                self._operator.forget(uid)

    def _spawn(self, fn: Callable[[], Awaitable[None]], name: str) -> None:
        self._group.create_task(keep_running(fn, name=name), name=name)

    async def _report_waiting(self) -> None:
        """Log what handlers wait for, if they wait for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._indexed.wait()
        if not self._indexed.is_set() and self._operator.cluster_view.is_known:
            text = "Handlers wait until the indexes are filled with all objects of %s."
            logger.warning(text, ", ".join(self.list_unindexed()))
