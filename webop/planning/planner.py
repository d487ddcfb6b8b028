"""Make a plan: the decisions of an operator that begins now, for each object of the cluster.

Flow of :func:`build_plan`: login → startup handlers → discovery → children → for each object,
:func:`webop.reactor.decision.decide`, and maybe its reconcilers → configurations. There are no
watches, Leases, peering records and Events.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from webop.aio.concurrency import run_concurrently
from webop.calls.progress import Progress
from webop.calls.shared_options import CallOptions
from webop.client.discovery import discover
from webop.client.http.requests import Selection
from webop.client.standalone import Networking, connect_command
from webop.client.watch_events import get_uid, parse_version
from webop.context.indexes import index_object
from webop.errors import APIForbiddenError
from webop.events.loggers import LocalObjectLogger
from webop.handlers.causes import ResourceCause
from webop.handlers.model import Activity, Reason, ReconcileHandler, name_decorator
from webop.handlers.registry import OperatorRegistry
from webop.handlers.validation import names_argument
from webop.objects.body import Body
from webop.objects.diffs import diff
from webop.objects.names import join_names
from webop.objects.namespace_patterns import is_exact, select_namespaces
from webop.objects.resources import NAMESPACES, Resource, Selector
from webop.planning.configurations import plan_configurations
from webop.planning.dry_runs import DryRuns, Step, current_step
from webop.planning.items import Certainty, Item, Plan, Section
from webop.reactor.bodies import Bodies
from webop.reactor.decision import Decision, decide
from webop.reactor.entry import Entry
from webop.reactor.failures import recover
from webop.reactor.observer import Scope
from webop.reactor.reconcilers import call_due
from webop.reactor.resource_context import ResourceContext
from webop.reactor.workers import Pace, Workers
from webop.runtime.activity_handlers import run_activity
from webop.runtime.operator import Operator, OperatorOptions
from webop.settings.groups import OperatorSettings

if TYPE_CHECKING:
    from webop.reactor.entry import Owner

Json = dict[str, Any]

_CALLS: Final = 16  # at once
_PATIENCE: Final = 60.0  # seconds; for the startup handlers, and for each call
_PAUSES: Final = (1.0, 2.0, 4.0)  # seconds; between the attempts of a request
_NAMED: Final = 5  # fields
_FAILURES: Final = frozenset({"HandlerFailed", "HandlerRetry"})
_UNPRUNED: Final = "prune() does nothing after an apply that has failed"


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What to plan.

    Attributes:
        registry: the handlers.
        settings: the settings, before the startup handlers.
        scope: the namespaces.
        definitions: the CustomResourceDefinitions of the models.
        calls_reconcilers: whether all reconcilers are called, not only the ``plannable`` ones.
        calls_startup: whether the startup handlers are called.
        limit: of the objects of each kind that are shown, and whose reconcilers are called.
        report: is told about the progress.
    """

    registry: OperatorRegistry
    settings: OperatorSettings
    scope: Scope
    definitions: Sequence[Json] = ()
    calls_reconcilers: bool = False
    calls_startup: bool = True
    limit: int | None = None
    report: Callable[[str], None] = lambda _: None


async def build_plan(options: PlanOptions) -> Plan:
    """Return what the operator would do if it began now.

    Raises:
        LoginError: there are no credentials, or they are refused.
        ActivityError: a startup handler has failed.
        APIError: something cannot be read.
        TimeoutError: the startup handlers took too long.
    """
    async with connect_command() as requests:
        dry_runs = DryRuns()
        operator = Operator(
            OperatorOptions(
                registry=options.registry,
                settings=options.settings,
                scope=options.scope,
                vault=requests.vault,
                transport_factory=dry_runs.connect,
            )
        )
        operator.client.options = Networking(_PAUSES)
        async with operator.client:
            return await _Planner(operator, options, dry_runs).run()


@dataclass(slots=True)
class _Stream:
    """The stream of objects that have no turns."""

    ctx: ResourceContext
    is_paused = is_ending = False

    def find_gate(self, _: Entry) -> None:
        """Let functions be called."""

    def wake(self, obj: Entry, *, after: float = 0.0) -> None:
        """Plan no second turn."""

    def accept_response(self, obj: Entry, raw: Json) -> None:
        self.ctx.workers.bodies.keep(obj, raw)


class _Listener(logging.Handler):
    """Notes why the reconcilers of the current step fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[int, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        step = current_step.get()
        if step is not None and getattr(record, "k8s_reason", "") in _FAILURES:
            self.failures.setdefault(id(step), []).append(record.getMessage())


@dataclass(slots=True)
class _Planner:
    operator: Operator
    options: PlanOptions
    dry_runs: DryRuns
    calls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CALLS))
    listener: _Listener = field(default_factory=_Listener)

    async def run(self) -> Plan:
        context, plan = self.operator.context, Plan()
        if self.options.calls_startup:
            plan.startup = await self._start(plan)
        self.operator.client.options = Networking(_PAUSES)
        assert context.client is not None  # noqa: S101  for the type checker
        context.client.enter()
        await self._discover()
        contexts = [*self._build_contexts(plan)]
        for ctx in contexts:
            await self._read_children(ctx)
        with self._listening():
            for ctx in contexts if self._calls_any else ():
                await self._index(ctx)
            plan.sections += [await self._plan_kind(ctx) for ctx in contexts if _is_planned(ctx)]
        plan.sections += await plan_configurations(
            context, self.operator.client, self.options.definitions
        )
        return plan

    @property
    def _calls_any(self) -> bool:
        handlers = self.options.registry.select_resource_handlers()
        return any(isinstance(one, ReconcileHandler) and self._is_called(one) for one in handlers)

    def _is_called(self, handler: ReconcileHandler) -> bool:
        return self.options.calls_reconcilers or handler.plannable

    async def _start(self, plan: Plan) -> list[str]:
        """Call the startup handlers, which can change settings."""
        token = current_step.set(self.dry_runs.startup)
        try:
            async with asyncio.timeout(_PATIENCE):
                called = await run_activity(
                    self.operator.context, Activity.STARTUP, is_planning=True
                )
        finally:
            current_step.reset(token)
        if items := self.dry_runs.startup.list_items():
            plan.sections.append(Section("Startup handlers", notes=items))
        return [*called]

    async def _discover(self) -> None:
        """Find the kinds and the namespaces, as the observer does."""
        client, scope, names = self.operator.client, self.options.scope, None
        found = await discover(client)
        if not scope.clusterwide:
            named = self.operator.context.settings.watching.build_selectors(
                NAMESPACES, is_named=True
            )
            try:
                pages = client.list_pages(NAMESPACES, None, Selection(named, is_partial=True))
                listed = [one["metadata"]["name"] async for page in pages for one in page.items]
                names = select_namespaces(listed, scope.patterns)
            except APIForbiddenError:
                names = frozenset(filter(is_exact, scope.patterns))
        self.operator.context.cluster_view.update(found.resources, found.groups, names)

    def _build_contexts(self, plan: Plan) -> Iterator[ResourceContext]:
        """Yield the kinds of the handlers; plan nothing for those that the cluster lacks."""
        context, bodies, pace = self.operator.context, Bodies(), Pace()
        view, matched = context.cluster_view, dict[Resource, set[Selector]]()
        absent = dict[str, Item]()
        for handler in self.options.registry.select_resource_handlers():
            if (selector := handler.selector) is None:
                continue
            for resource in selector.find_candidates(view.resources):
                if not resource.verbs or "list" in resource.verbs:
                    matched.setdefault(resource, set()).add(selector)
            if selector.is_specific and (why := view.explain_absence(selector)):
                absent[str(selector)] = Item(
                    "serve", str(selector), Certainty.UNKNOWN, why, is_change=False
                )
        if absent:
            plan.sections.append(
                Section("Kinds that are not in the cluster", notes=[*absent.values()])
            )
        for resource, selectors in sorted(matched.items(), key=lambda each: each[0].name):
            workers = Workers(resource.plural_name, context, bodies, pace)
            handlers = context.registry.handlers_of(selectors)
            yield ResourceContext(context, self.operator.client, resource, handlers, workers)

    async def _list(self, ctx: ResourceContext) -> AsyncIterator[list[Json]]:
        """Yield the objects of a kind, in pages."""
        namespaces = self.operator.context.cluster_view.namespaces
        places = (
            (None,) if namespaces is None or not ctx.resource.namespaced else sorted(namespaces)
        )
        selection, count = Selection(ctx.build_selectors(), is_partial=ctx.is_partial), 0
        for place in places:
            async for page in ctx.client.list_pages(ctx.resource, place, selection):
                count += len(page.items)
                self.options.report(f"{ctx.resource.name}: {count} objects")
                yield page.items

    async def _read_children(self, ctx: ResourceContext) -> None:
        if not ctx.handlers.children:
            return
        store, names = ctx.operator.children, ctx.operator.child_names
        kind, is_read = ctx.resource.plural_name, ctx.handlers.reads_children
        async for page in self._list(ctx):
            for raw in page:
                store.note(kind, None, raw, names, is_read=is_read)
                raw["metadata"].pop("managedFields", None)

    async def _index(self, ctx: ResourceContext) -> None:
        """Fill the indexes: the reconcilers that are called can read them."""
        operator, handlers = ctx.operator, ctx.handlers.indexers
        if not handlers:
            return
        async for page in self._list(ctx):
            for raw in page:
                obj = self._enter(ctx, raw)
                cause = ResourceCause(**ctx.describe(obj, Body(raw), LocalObjectLogger))
                what = handlers, cause, obj.uid, operator.indices, CallOptions(operator.settings)
                await index_object(*what, is_wanted=lambda: True)

    def _enter(self, ctx: ResourceContext, raw: Json) -> Entry:
        """Return an object as an operator that has just started knows it."""
        if not ctx.operator.settings.watching.managed_fields:
            raw["metadata"].pop("managedFields", None)
        meta, stream = raw["metadata"], cast("Owner", _Stream(ctx))
        obj = Entry(stream, get_uid(raw), meta["name"], meta.get("namespace"))
        obj.version, obj.must_resume = parse_version(raw), True
        return obj

    async def _plan_kind(self, ctx: ResourceContext) -> Section:
        section, limit = Section(ctx.resource.name), self.options.limit
        section.notes += self._list_notes(ctx)
        async for page in self._list(ctx):
            first = section.count
            planned = await run_concurrently(
                self._plan_object(ctx, raw, is_shown=limit is None or first + number < limit)
                for number, raw in enumerate(page)
            )
            for place, items in planned:
                section.add(place, items, limit)
        if (
            limit is not None
            and section.count > limit
            and any(map(self._is_called, ctx.handlers.reconcilers))
        ):
            why = f"they were called for {limit} of {section.count} objects only (--limit)"
            section.notes.append(
                Item("call", "reconcilers", Certainty.UNKNOWN, why, is_change=False)
            )
        return section

    def _list_notes(self, ctx: ResourceContext) -> Iterator[Item]:
        for each in ctx.handlers.events:
            yield Item("call", f"{each} for each object", is_change=False)
        for handler, index in itertools.product(ctx.handlers.everything, ctx.operator.indices):
            if not self._calls_any and handler.when and names_argument(handler.when, index):
                why = f"its filter reads the index {index!r}, which is empty without --call"
                yield Item("decide", str(handler), Certainty.MAY, why, is_change=False)

    async def _plan_object(
        self, ctx: ResourceContext, raw: Json, *, is_shown: bool
    ) -> tuple[str, list[Item]]:
        obj, items, called = self._enter(ctx, raw), list[Item](), list[ReconcileHandler]()
        try:
            decision = decide(ctx, obj, raw)
            if decision is not None and decision.wants_finalizer is not None:
                items.append(_describe_finalizer(ctx, decision))
                if decision.cause.reason is not Reason.DELETE:
                    raw = _set_finalizer(ctx, raw, is_wanted=decision.wants_finalizer)
                    decision = decide(ctx, obj, raw)
                else:
                    decision = None
            if decision is not None:
                items += _list_items(ctx, decision)
                called = decision.reconcilers
        except Exception as exc:  # noqa: BLE001  a filter or a storage of the user
            items.append(
                Item("decide", "handlers", Certainty.UNKNOWN, f"a filter has failed: {exc!r}")
            )
        for handler in called:
            items.append(Item("call", str(handler), reason="resumed", is_change=False))
            if is_shown and self._is_called(handler):
                ctx.workers.bodies.keep(obj, raw)
                items += await self._call(ctx, obj, handler)
        return str(obj), items

    async def _call(
        self, ctx: ResourceContext, obj: Entry, handler: ReconcileHandler
    ) -> list[Item]:
        """Call a reconciler with clients that only read; return what it would write."""
        step = Step()
        failures = self.listener.failures.setdefault(id(step), [])
        async with self.calls:
            token = current_step.set(step)
            try:
                recover(obj)
                async with asyncio.timeout(_PATIENCE):
                    await call_due(ctx, obj, [handler])
            except TimeoutError:
                failures.append(f"it did not end within {_PATIENCE:g} s")
            finally:
                current_step.reset(token)
                del self.listener.failures[id(step)]
        items, state = step.list_items(), obj.reconcilers[handler.id]
        if step.has_failed:
            items.append(Item("prune", "children", Certainty.UNKNOWN, _UNPRUNED))
        items += [Item("continue", str(handler), Certainty.UNKNOWN, text) for text in failures]
        if state.due is not None and not state.failures:
            why = f"it asked to be called again: {state.reason}".removesuffix(": ")
            items.append(Item("continue", str(handler), Certainty.UNKNOWN, why, is_change=False))
        return items

    @contextmanager
    def _listening(self) -> Iterator[None]:
        logger = logging.getLogger("webop.objects")
        logger.addHandler(self.listener)
        try:
            yield
        finally:
            logger.removeHandler(self.listener)


def _is_planned(ctx: ResourceContext) -> bool:
    """Return whether something is decided about the objects of a kind."""
    handlers = ctx.handlers
    return bool(handlers.changes or handlers.background or handlers.reconcilers or handlers.events)


def _describe_finalizer(ctx: ResourceContext, decision: Decision) -> Item:
    verb = "add" if decision.wants_finalizer else "remove"
    return Item(verb, f"the finalizer {ctx.operator.settings.persistence.finalizer}")


def _set_finalizer(ctx: ResourceContext, raw: Json, *, is_wanted: bool) -> Json:
    own, meta = ctx.operator.settings.persistence.finalizer, raw["metadata"]
    names = [name for name in meta.get("finalizers") or () if name != own]
    return {**raw, "metadata": {**meta, "finalizers": [*names, own] if is_wanted else names}}


def _list_items(ctx: ResourceContext, decision: Decision) -> Iterator[Item]:
    """Yield what a decision means, without the finalizer and the reconcilers."""
    cause = decision.cause
    if decision.misfit is not None:
        is_written = ctx.handlers.reports_misfits
        yield Item(
            "wait",
            "until the object fits its model",
            reason=str(decision.misfit),
            is_change=is_written,
        )
        return
    if decision.is_mended:
        yield Item("remove", "the condition that the object does not fit its model")
    for daemon in decision.spawned:
        yield Item("start", str(daemon), is_change=False)
    progress = Progress.restore(decision.handlers, decision.states, purpose=cause.reason.value)
    for key in progress.keys() & decision.again:
        progress.restart(key)
    is_resumed, why = cause.reason is Reason.RESUME, _explain(decision)
    due = [handler for handler in decision.handlers if not progress[handler.id].is_finished]
    for handler in due:
        retries = progress[handler.id].retries
        text = f"{why}; attempt {retries + 1}" if retries else why
        target = f"{name_decorator(handler)} handler {handler.id!r}"
        yield Item("call", target, reason=text, is_change=not is_resumed)
    if cause.reason is Reason.DELETE and due:
        finalizer = f"the finalizer {ctx.operator.settings.persistence.finalizer}"
        yield Item("remove", finalizer, Certainty.MAY, "when its deletion handlers have finished")
    elif decision.has_changes and not due:
        yield Item("store", "the state of the object as handled", reason=why)


def _explain(decision: Decision) -> str:
    cause = decision.cause
    if cause.reason is not Reason.UPDATE:
        texts = {Reason.CREATE: "created: it was never handled", Reason.DELETE: "deleted"}
        return texts.get(cause.reason, "resumed")
    names = [".".join(item.field) for item in diff(cause.old, cause.new)]
    return f"updated: {join_names(names, _NAMED)}" if names else "updated"
