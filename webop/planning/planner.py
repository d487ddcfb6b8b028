"""Make a plan: the decisions of an operator that begins now, for each object of the cluster.

Flow of :class:`Planner`: login → startup handlers → discovery → children → indexes → for each
object, :func:`webop.reactor.decision.decide`, and maybe its reconcilers → configurations. There are
no watches, Leases, peering records and Events.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from webop.aio.concurrency import run_concurrently
from webop.calls.progress import Progress
from webop.calls.shared_options import CallOptions
from webop.client import standalone
from webop.client.discovery import discover
from webop.client.http.requests import Selection
from webop.client.standalone import Networking, connect_command
from webop.client.watch_events import get_uid, parse_version
from webop.context.indexes import index_object
from webop.errors import ActivityError, APIForbiddenError
from webop.events.loggers import LocalObjectLogger
from webop.handlers.causes import ResourceCause
from webop.handlers.model import Activity, Reason, ReconcileHandler, name_decorator
from webop.handlers.registry import OperatorRegistry, ResourceHandlers
from webop.handlers.validation import names_argument
from webop.objects.body import Body
from webop.objects.diffs import diff
from webop.objects.fields import Json
from webop.objects.names import join_names
from webop.objects.namespace_patterns import is_exact, select_namespaces
from webop.objects.resources import NAMESPACES, Resource, Selector
from webop.planning.configurations import plan_configurations
from webop.planning.dry_runs import DryRuns, Step, current_step
from webop.planning.items import MASKED, Certainty, Item, Plan, Section, note
from webop.reactor.bodies import Bodies
from webop.reactor.decision import Decision, decide
from webop.reactor.entry import Entry, Owner
from webop.reactor.failures import recover
from webop.reactor.observer import Scope
from webop.reactor.reconcilers import call_due
from webop.reactor.resource_context import ResourceContext
from webop.reactor.workers import Pace, Workers
from webop.runtime.activity_handlers import run_activity
from webop.runtime.operator import Operator, OperatorOptions
from webop.settings.groups import OperatorSettings

_CALLS: Final = 16  # at once
_PATIENCE: Final = 60.0  # seconds; for the startup handlers, and for each call
_GRACE: Final = 2.0  # seconds; for the tasks that the calls leave behind
_PAUSES: Final = (1.0, 2.0, 4.0)  # seconds; between the attempts of a request
_UNCALLED: Final = "it was not called: add --call"
_OUTSIDE: Final = "a thread or a task wrote it, outside of the calls of the plan"
_NOT_YET: Final = "the object does not exist yet"
_UNPRUNED: Final = "prune() does nothing after an apply that has failed"
_FAILURES: Final = frozenset({"HandlerFailed", "HandlerRetry"})


def _listen(record: logging.LogRecord) -> bool:
    """Note why a handler fails. Drop lines about Secrets: they can have the values."""
    step = current_step.get()
    if step is not None and getattr(record, "k8s_reason", "") in _FAILURES:
        error = record.exc_info[0] if record.exc_info else None
        hidden = f"it has failed: {error.__name__ if error else MASKED}"
        step.failures.append(hidden if step.is_secret else record.getMessage())
    return step is None or not step.is_secret


@dataclass(frozen=True)
class _Stream(Owner):
    """The stream of the objects of a plan, which have no turns."""

    ctx: ResourceContext
    is_paused = is_ending = False
    handlers = ResourceHandlers(())

    def _ignore(self, *_: Any, **__: Any) -> Any:
        return None

    find_gate = wake = note_indexed = owns = shows_stranger = spawn = take_turn = _ignore

    def accept_response(self, obj: Entry, raw: Json) -> None:
        self.ctx.workers.bodies.keep(obj, raw)


@dataclass(slots=True, kw_only=True)
class Planner:
    """Makes a plan; the help of ``webop plan`` describes the options that are not listed here.

    Attributes:
        settings: those before the startup handlers.
        definitions: the CustomResourceDefinitions of the models.
        report: gets lines about the progress.
    """

    registry: OperatorRegistry
    settings: OperatorSettings
    scope: Scope
    definitions: Sequence[Json]
    calls_reconcilers: bool
    calls_startup: bool
    limit: int | None
    report: Callable[[str], None]
    _operator: Operator = field(init=False)
    _runs: DryRuns = field(default_factory=DryRuns)
    _handled: set[str] = field(default_factory=set)
    _calls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CALLS))

    async def plan(self) -> Plan:
        """Return what the operator would do if it began now.

        Raises:
            LoginError: there are no credentials, or they are refused.
            ActivityError: a startup handler has failed, or they took too long.
            APIError: something cannot be read.
        """
        parts: Any = {name: getattr(self, name) for name in ("registry", "settings", "scope")}
        runs, logger = self._runs, logging.getLogger("webop.objects")
        standalone.transport_factory = runs.connect  # for good: threads can outlive the plan
        async with connect_command() as requests:
            parts |= {"vault": requests.vault, "transport_factory": runs.connect}
            self._operator = Operator(OperatorOptions(**parts))
            self._operator.client.options = Networking(_PAUSES)
            logger.addFilter(_listen)
            try:
                async with self._operator.client:
                    own = asyncio.all_tasks()
                    plan = await self._plan()
                    if left := asyncio.all_tasks() - own:
                        await asyncio.wait(left, timeout=_GRACE)
                    if writes := runs.others.writes.values():
                        doubt = partial(replace, certainty=Certainty.MAY, reason=_OUTSIDE)
                        notes = [i if i.reason else doubt(i) for i in writes]  # or has a doubt
                        plan.sections.append(Section("Other writes", notes=notes))
                    return plan
            finally:
                logger.removeFilter(_listen)

    async def _plan(self) -> Plan:
        plan = Plan()
        if self.calls_startup:
            await self._start(plan)
        await self._discover(plan)
        contexts = [*self._build_contexts(plan)]
        for ctx in contexts:
            self._handled |= set() if ctx.handlers.has_only_children else {ctx.resource.plural_name}
            await self._read_children(ctx)
        for ctx in contexts:
            if self._is_indexed and ctx.handlers.indexers:
                await self._index(ctx)
        for ctx in contexts:
            if ctx.resource.plural_name in self._handled:
                plan.sections.append(await self._plan_kind(ctx))
        context, client = self._operator.context, self._operator.client
        plan.sections += await plan_configurations(context, client, self.definitions)
        return plan

    def _has_calls(self, handlers: Iterable[Any]) -> bool:
        """Return whether any of the handlers is a reconciler that is called."""
        found = (one for one in handlers if isinstance(one, ReconcileHandler))
        return any(self.calls_reconcilers or one.plannable for one in found)

    @property
    def _is_indexed(self) -> bool:
        return self._has_calls(self.registry.select_resource_handlers())

    async def _start(self, plan: Plan) -> None:
        """Call the startup handlers, which can change settings."""
        current_step.set(step := Step())
        call = run_activity(self._operator.context, Activity.STARTUP, is_planning=True)
        try:
            plan.startup = [*await _wait(call)]
        except TimeoutError:
            text = f"The startup handlers did not end within {_PATIENCE:g} s."
            raise ActivityError(text, kind=text) from None
        current_step.set(None)
        writes, step.writes = step.writes, self._runs.others.writes
        if writes:
            plan.sections.append(Section("Startup handlers", notes=[*writes.values()]))

    async def _discover(self, plan: Plan) -> None:
        """Find the kinds and the namespaces, as the observer does."""
        context, client, scope = self._operator.context, self._operator.client, self.scope
        found, names = await discover(client), None
        if not scope.clusterwide:
            names = frozenset(filter(is_exact, scope.patterns))
        if names is not None and not context.settings.scanning.disabled:
            named = context.settings.watching.build_selectors(NAMESPACES, is_named=True)
            with contextlib.suppress(APIForbiddenError):
                pages = client.list_pages(NAMESPACES, None, Selection(named, is_partial=True))
                listed = [one["metadata"]["name"] async for page in pages for one in page.items]
                names = select_namespaces(listed, scope.patterns)
        if names is not None and not names:
            why = f"no namespace matches {', '.join(map(str, scope.patterns))}"
            missing = Item("serve", "namespaces", Certainty.UNKNOWN, why)
            plan.sections.append(Section("Namespaces", notes=[missing]))
        context.cluster_view.update(found.resources, found.groups, names)
        if context.client is not None:
            context.client.enter()

    def _build_contexts(self, plan: Plan) -> Iterator[ResourceContext]:
        """Yield the kinds of the handlers; plan nothing for those that the cluster lacks."""
        context, bodies, pace = self._operator.context, Bodies(), Pace()
        matched, absent = dict[Resource, set[Selector]](), dict[str, Item]()
        for handler in context.registry.select_resource_handlers():
            if (selector := handler.selector) is None:
                continue
            if selector.is_specific and (why := context.cluster_view.explain_absence(selector)):
                absent[str(selector)] = note("serve", str(selector), Certainty.UNKNOWN, why)
            for resource in selector.select(context.cluster_view.resources):
                if not resource.verbs or "list" in resource.verbs:
                    matched.setdefault(resource, set()).add(selector)
        if absent:
            plan.sections.append(Section("Absent kinds", notes=[*absent.values()]))
        for resource, selectors in sorted(matched.items(), key=lambda pair: pair[0].name):
            workers = Workers(resource.plural_name, context, bodies, pace)
            handlers = context.registry.handlers_of(selectors)
            yield ResourceContext(context, self._operator.client, resource, handlers, workers)

    async def _list(self, ctx: ResourceContext) -> AsyncIterator[list[Json]]:
        """Yield the objects of a kind, in pages."""
        names, count = self._operator.context.cluster_view.namespaces, 0
        selection = Selection(ctx.build_selectors(), is_partial=ctx.is_partial)
        is_everywhere = names is None or not ctx.resource.namespaced
        for place in [None] if is_everywhere else sorted(names or ()):
            async for page in ctx.client.list_pages(ctx.resource, place, selection):
                count += len(page.items)
                self.report(f"{ctx.resource.name}: {count} objects")
                yield page.items

    async def _read_children(self, ctx: ResourceContext) -> None:
        store, names = ctx.operator.children, ctx.operator.child_names
        kind, is_read = ctx.resource.plural_name, ctx.handlers.reads_children
        if ctx.handlers.children:
            async for page in self._list(ctx):
                for raw in page:
                    store.note(kind, None, raw, names, is_read=is_read)
                    raw["metadata"].pop("managedFields", None)

    async def _index(self, ctx: ResourceContext) -> None:
        """Fill the indexes, which the called reconcilers, and filters, can read."""
        options, handlers = CallOptions(ctx.operator.settings), ctx.handlers.indexers
        async for page in self._list(ctx):
            for obj, raw in ((self._enter(ctx, raw), raw) for raw in page):
                cause = ResourceCause(**ctx.describe(obj, Body(raw), LocalObjectLogger))
                what = handlers, cause, obj.uid, ctx.operator.indices, options
                await index_object(*what, is_wanted=lambda: True)

    def _enter(self, ctx: ResourceContext, raw: Json) -> Entry:
        """Return an object as an operator that has just started knows it."""
        if not ctx.operator.settings.watching.managed_fields:
            raw["metadata"].pop("managedFields", None)
        meta = raw["metadata"]
        obj = Entry(_Stream(ctx), get_uid(raw), meta["name"], meta.get("namespace"))
        obj.version, obj.must_resume = parse_version(raw), True
        return obj

    async def _plan_kind(self, ctx: ResourceContext) -> Section:
        section, counts = Section(ctx.resource.name), Counter[str]()
        async for page in self._list(ctx):
            planned = (self._plan_object(ctx, raw, section, counts) for raw in page)
            for place, items, is_shown in await run_concurrently(planned):
                section.add(place, items, is_shown=is_shown)
        if counts["called"] < counts["due"]:
            why = f"they were called for {counts['called']} of {counts['due']} objects (--limit)"
            section.notes.append(Item("call", "reconcilers", Certainty.UNKNOWN, why))
        section.notes += [note("call", f"{one} for each object") for one in ctx.handlers.events]
        for handler, index in itertools.product(ctx.handlers.everything, ctx.operator.indices):
            if not self._is_indexed and handler.when and names_argument(handler.when, index):
                why = f"its filter reads the index {index!r}, which is empty without --call"
                section.notes.append(note("decide", str(handler), Certainty.MAY, why))
        return section

    async def _plan_object(
        self, ctx: ResourceContext, raw: Json, section: Section, counts: Counter[str]
    ) -> tuple[str, list[Item], bool]:
        obj, items, due = self._enter(ctx, raw), list[Item](), list[ReconcileHandler]()
        try:
            decision = decide(ctx, obj, raw)
            if decision and decision.wants_finalizer is not None:
                raw = _set_finalizer(ctx, raw, decision, items)
                is_last = decision.cause.reason is Reason.DELETE
                decision = None if is_last else decide(ctx, obj, raw)
            items += _list_items(ctx, decision) if decision else ()
            due = decision.reconcilers if decision and decision.misfit is None else due
        except Exception as exc:  # noqa: BLE001  a filter or a storage of the user
            text = type(exc).__name__ if ctx.resource.plural_name == "secrets" else repr(exc)
            items.append(Item("decide", "handlers", Certainty.UNKNOWN, f"a filter failed: {text}"))
        called = [one for one in due if self._has_calls([one])]
        others = [str(one) for one in due if one not in called]
        notes = [Item("call", name, Certainty.UNKNOWN, _UNCALLED) for name in others]
        section.notes += [one for one in notes if one not in section.notes]
        has_more = bool(called) or not all(one.is_routine for one in items)
        is_shown = has_more and counts["shown"] != self.limit  # here, objects are still in order
        counts.update(shown=is_shown, due=bool(called), called=bool(called) and is_shown)
        for handler in due:
            items.append(note("call", str(handler), reason="resumed"))
            if is_shown and handler in called:
                ctx.workers.bodies.keep(obj, raw)
                items += await self._call(ctx, obj, handler)
        return str(obj), items, is_shown

    async def _call(
        self, ctx: ResourceContext, obj: Entry, handler: ReconcileHandler
    ) -> list[Item]:
        """Call a reconciler, and return what it would write."""
        async with self._calls:
            current_step.set(step := Step(ctx.resource.plural_name == "secrets"))
            self.report(f"{handler} for {obj}")
            recover(obj)
            try:
                await _wait(call_due(ctx, obj, [handler]))
            except TimeoutError:
                step.failures.append(f"it did not end within {_PATIENCE:g} s")
            current_step.set(None)
        writes, step.writes = step.writes, self._runs.others.writes
        items, state = [*writes.values()], obj.reconcilers[handler.id]
        has_failed = state.failures or (obj.uid, handler.id) in ctx.operator.counters.failed
        if has_failed and not step.failures:  # the operator has switched its log off
            step.failures.append("it has failed")
        items += [Item("prune", "children", Certainty.UNKNOWN, _UNPRUNED)] * bool(step.refused)
        items += [Item("continue", str(handler), Certainty.UNKNOWN, one) for one in step.failures]
        for place, item in writes.items():
            if item.action == "create" and place.kind in self._handled:
                items.append(note("continue", f"handlers of {place}", Certainty.UNKNOWN, _NOT_YET))
        if state.due is not None and not state.failures:
            why = f"it asked to be called again: {state.reason or 'without a reason'}"
            items.append(note("continue", str(handler), Certainty.UNKNOWN, why))
        return items


async def _wait(call: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a call, or raise TimeoutError, even if it ignores its cancellation."""
    task = asyncio.create_task(call)
    await asyncio.wait({task}, timeout=_PATIENCE)
    if not task.done():
        task.cancel()
        raise TimeoutError
    return task.result()


def _set_finalizer(ctx: ResourceContext, raw: Json, decision: Decision, items: list[Item]) -> Json:
    """Return an object with the finalizer as it is decided, and note that."""
    own, meta = ctx.operator.settings.persistence.finalizer, raw["metadata"]
    names = [name for name in meta.get("finalizers") or () if name != own]
    items.append(Item("add" if decision.wants_finalizer else "remove", f"the finalizer {own}"))
    names += [own] if decision.wants_finalizer else []
    return {**raw, "metadata": {**meta, "finalizers": names}}


def _list_items(ctx: ResourceContext, decision: Decision) -> Iterator[Item]:
    """Yield what a decision means, without the finalizer and the reconcilers."""
    cause, why = decision.cause, _explain(decision)
    if decision.misfit is not None:
        text, is_change = str(decision.misfit), ctx.handlers.reports_misfits
        yield Item("wait", "until the object fits its model", reason=text, is_change=is_change)
        return
    if decision.is_mended:
        yield Item("remove", "the condition that the object does not fit its model")
    for daemon in decision.spawned:
        yield note("start", str(daemon))
    progress = Progress.restore(decision.handlers, decision.states, purpose=cause.reason.value)
    for key in progress.keys() & decision.again:
        progress.restart(key)
    due = [handler for handler in decision.handlers if not progress[handler.id].is_finished]
    for handler in due:
        retries, is_change = progress[handler.id].retries, cause.reason is not Reason.RESUME
        text = f"{why}; attempt {retries + 1}" if retries else why
        target = f"{name_decorator(handler)} handler {handler.id!r}"
        yield Item("call", target, reason=text, is_change=is_change)
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
    names = sorted(".".join(item.field) for item in diff(cause.old, cause.new))
    return f"updated: {join_names(names)}" if names else "updated"
