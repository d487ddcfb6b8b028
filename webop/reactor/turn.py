"""One turn of an object: everything that must be done about its newest state, in this order.

Flow: :meth:`webop.reactor.workers.Workers` → :func:`take_turn` → :mod:`webop.reactor.decision` →
:mod:`webop.reactor.changes` → the user's function → :mod:`webop.reactor.writer`.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from webop.calls.error_policy import Outcome
from webop.calls.execution import attempt
from webop.calls.progress import fetch_states, identify_content
from webop.calls.shared_options import CallOptions
from webop.context.indexes import index_object
from webop.events.loggers import LocalObjectLogger
from webop.handlers.causes import ChangeCause, EventCause, ResourceCause
from webop.handlers.filters import matches
from webop.handlers.model import EventHandler, MappingHandler, Reason
from webop.handlers.registry import deduplicated
from webop.objects.body import Body, RawEvent
from webop.objects.fields import clone
from webop.objects.patch import Patch
from webop.objects.status_conditions import build_validity, put_condition
from webop.reactor import changes, daemons, failures
from webop.reactor.decision import Decision, decide
from webop.reactor.entry import Entry
from webop.reactor.failures import fail, recover, wait
from webop.reactor.queue import REST, Later, Result
from webop.reactor.reconcilers import call_due
from webop.reactor.resource_context import ResourceContext
from webop.reactor.writer import read, set_finalizer, take, write
from webop.telemetry.counters import FailedCall
from webop.telemetry.tracing import NOT_TRACED, Description, find_current_span, open_span

if TYPE_CHECKING:
    from webop.telemetry.tracing import SpanContext

logger = logging.getLogger(__name__)

_STATES_INDEXED = 3  # at most; if states arrive faster, handlers see a newer one than the indexes


async def take_turn(ctx: ResourceContext, obj: Entry) -> Result:
    """Do what must be done about the newest state of an object; return when its next turn is."""
    try:
        await _index(ctx, obj)  # first: handlers of other objects can wait for it
        gate: Result | None = obj.stream.find_gate(obj)
        if gate is not None:  # a pause, the end, indexes that are not filled, a list, its shard
            if obj.must_show and obj.stream.shows_stranger(obj):
                await ctx.operator.pausing.work(_show_stranger(ctx, obj))
            return gate
        return await ctx.operator.pausing.work(_act(ctx, obj))  # never after the end of a Lease
    except Exception as exc:  # noqa: BLE001  one object must not stop the others
        fail(ctx, obj, exc)
        return wait(obj)


async def _show_stranger(ctx: ResourceContext, obj: Entry) -> None:
    """Call the functions of ``watches=`` for an object that this replica does not handle."""
    if await _load(ctx, obj) is not None:
        await _show(ctx, obj)


async def _act(ctx: ResourceContext, obj: Entry) -> Result:
    """Do all but indexing; the turn ends at the first gate that is closed."""
    if await _load(ctx, obj) is None:  # it is gone, but no event or list has said so
        return REST
    if obj.must_show:  # event handlers get each state that they can get, whatever has failed
        await _show(ctx, obj)
    gate: Result | None = failures.find_gate(ctx, obj)
    if gate is not None:  # a failure, or nothing can be written in its namespace
        return gate
    if not await write(ctx, obj):  # what is unwritten comes before anything new
        return wait(obj)
    if obj.must_index:  # events and writes have taken time
        await _index(ctx, obj)
    raw = await _load(ctx, obj)
    gate = obj.stream.find_gate(obj)
    if raw is None or gate is not None:
        return gate or REST
    if obj.is_gone:
        return await _release(ctx, obj)
    obj.is_dirty = obj.must_index  # this state is decided about now
    decision, delay = decide(ctx, obj, raw), None
    _forget_misfit(ctx, obj, decision)
    if decision is None:
        obj.must_resume = False
    else:
        delay = await _carry_out(ctx, obj, decision)
    # A failure in this turn has had its attempts, also in a pause, in which write() does not wait.
    is_written = not failures.must_wait(obj) and await write(ctx, obj)
    obj.is_dirty |= obj.must_index or obj.must_show  # for the next turn
    if not is_written:
        return wait(obj)
    recover(obj)
    ctx.workers.outages.leave(obj)
    return REST if delay is None else Later(delay)


async def _load(ctx: ResourceContext, obj: Entry) -> dict[str, Any] | None:
    """Return the newest known state; read it if it was not kept in memory."""
    raw = ctx.workers.bodies.load(obj)
    if raw is not None or obj.is_gone:
        return raw or {}
    raw = await read(ctx, obj)
    if raw is not None:
        obj.stream.accept_response(obj, raw)
        if obj.body is None:  # it is the known version, of which the state was dropped
            ctx.workers.bodies.keep(obj, raw)
    return ctx.workers.bodies.load(obj)


async def _carry_out(ctx: ResourceContext, obj: Entry, decision: Decision) -> float | None:
    """Do what was decided; return the seconds until the next turn, None for none."""
    cause, is_wanted, delay = decision.cause, decision.wants_finalizer, None
    for key in decision.stopped:
        obj.daemons[key].stop(decision.why)
    if decision.is_mended:
        _put_validity(ctx, obj, cause, None)
    if is_wanted is not None:  # handlers begin when the finalizer is there
        cause.logger.debug("%s the finalizer.", "Adding" if is_wanted else "Removing")
        if cause.reason is Reason.DELETE:
            await changes.end_deletion(ctx, obj, decision.states)
        else:
            await set_finalizer(ctx, obj, is_wanted=is_wanted)
        return None
    if decision.misfit is not None:
        _report_misfit(ctx, obj, cause, str(decision.misfit))
        return None
    for handler in decision.spawned:
        daemons.start(ctx, obj, cause.body.raw, handler)
    if decision.has_changes:
        status = obj.open_status()
        with open_span(_describe, cause, status.trace) or NOT_TRACED as span:
            status.trace = status.trace or find_current_span()
            delay = await changes.handle(ctx, obj, decision)
            is_written = await write(ctx, obj)
            if span is not None:
                span.conclude("done" if delay is None else "retry")
        status.trace = None if delay is None else status.trace
        if not is_written:
            return delay
    else:
        obj.must_resume = False
    if decision.reconcilers:
        rest = await call_due(ctx, obj, decision.reconcilers)
        delay = min((one for one in (delay, rest) if one is not None), default=None)
    return delay


def _describe(cause: ChangeCause, parent: SpanContext | None) -> Description:
    """Return the description of the handling of a change for traces; retries continue the first."""
    reason = cause.reason.value
    attributes = {**cause.identify(), "webop.reason": reason}
    return Description(f"{reason} {cause.resource.plural_name}", attributes, parent=parent)


async def _release(ctx: ResourceContext, obj: Entry) -> Result:
    """End the work on an object that is gone; if it only left the selectors, leave no trace on it.

    Its daemons must have ended: the end of the last one leads here again.
    """
    if obj.daemons or not ctx.has_left(obj):
        return REST
    unwritten, raw = obj.open_unwritten(), await read(ctx, obj)
    if raw is None or not obj.is_gone:  # it does not exist, or has come back
        return REST
    if obj.stream.is_paused or obj.unwritten is not unwritten:  # others can act, or could
        return REST
    ctx.workers.bodies.keep(obj, raw)
    storage = ctx.operator.settings.persistence.progress_storage
    states = fetch_states(ctx.handlers.changes, body=Body(raw), storage=storage)
    if records := changes.purge(ctx, states, Body(raw)):
        obj.open_unwritten().records = records
    if not await write(ctx, obj):
        return wait(obj)
    if obj.unwritten is not unwritten:
        return REST
    await set_finalizer(ctx, obj, is_wanted=False)
    text = "%s has left the selectors of %s: webop forgets it."
    logger.debug(text, obj, ctx.resource, extra=ctx.refer_to(obj))
    return REST


async def _index(ctx: ResourceContext, obj: Entry) -> None:
    """Update the indexes with the newest state of an object; log errors of indexers."""
    handlers, stream = ctx.handlers, obj.stream

    def is_wanted() -> bool:
        return not obj.is_gone and handlers is stream.handlers

    for _ in range(_STATES_INDEXED):
        is_due = obj.must_index and is_wanted()  # else the next turn does this
        if not is_due or (raw := await _load(ctx, obj)) is None:
            break
        obj.must_index = False
        cause = ResourceCause(**ctx.describe(obj, Body(raw), LocalObjectLogger))
        options = _build_event_options(ctx, obj)
        what = handlers.indexers, cause, obj.uid, ctx.operator.indices, options
        await index_object(*what, is_wanted=is_wanted)
        ctx.workers.note_end(obj)
    stream.note_indexed(obj, handlers)


def _build_event_options(ctx: ResourceContext, obj: Entry) -> CallOptions:
    return CallOptions(
        ctx.operator.settings,
        on_late=lambda is_async: ctx.workers.note_late(obj, is_async=is_async),
        counters=ctx.operator.counters,
    )


async def _show(ctx: ResourceContext, obj: Entry) -> None:
    """Call event handlers with the newest state; their errors are logged and ignored."""
    is_own, obj.must_show = obj.stream.owns(obj), False
    if is_own:
        obj.shown = None if obj.is_gone else obj.version
    event_type, raw = obj.event_type, clone(ctx.workers.bodies.load(obj) or {})
    event: RawEvent = {"type": event_type, "object": raw}
    described = ctx.describe(obj, Body(raw), LocalObjectLogger)
    cause = EventCause(**described, type=event_type, event=event)
    handlers = [
        handler
        for handler in deduplicated(ctx.handlers.events)
        if (is_own or isinstance(handler, MappingHandler)) and _is_for(handler, cause)
    ]
    options = _build_event_options(ctx, obj)
    for handler in handlers:
        if not (event_type == "DELETED" or ctx.operator.pausing.is_active):
            break
        outcome = await attempt(handler, cause, None, options)
        if isinstance(handler, MappingHandler):
            _call_mapped(ctx, handler, outcome, cause)
    ctx.workers.note_end(obj)
    if event_type != "DELETED" and is_own:
        take(ctx, obj, cause.patch)


def _is_for(handler: EventHandler, cause: EventCause) -> bool:
    """Check the filters of an event handler; if they fail, only this handler misses the event."""
    try:
        return matches(handler, cause)
    except Exception:
        cause.logger.exception("The filter of %s has failed.", handler)
        return False


def _call_mapped(
    ctx: ResourceContext, handler: MappingHandler, outcome: Outcome, cause: EventCause
) -> None:
    """Call the reconciler for the objects that a function of ``watches=`` has named.

    If it has failed, it can be any object: all are called.
    """
    children, namespace = ctx.operator.children, cause.body.meta.namespace
    kind, is_failed = ctx.resource.plural_name, bool(outcome.message)
    try:
        if not is_failed:
            children.call_named(handler.parent, outcome.result, kind, namespace)
    except TypeError as exc:
        is_failed = True
        cause.logger.error("%s: %s", handler, exc)  # noqa: TRY400  the text is enough
    if is_failed:
        children.call_all_soon(handler.parent, kind)


def _forget_misfit(ctx: ResourceContext, obj: Entry, decision: Decision | None) -> None:
    if (misfits := ctx.operator.counters.misfits) and not (decision and decision.misfit):
        misfits.pop(obj.uid, None)


def _report_misfit(ctx: ResourceContext, obj: Entry, cause: ChangeCause, problem: str) -> None:
    """Log once why an object does not fit its model, and put it into its conditions."""
    # The reason can differ at each look, as that of a validator with the time in its text.
    state = identify_content(cause.body, has_generations=ctx.has_status)
    misfits, kind = ctx.operator.counters.misfits, cause.resource.plural_name
    if obj.uid in misfits and misfits[obj.uid][1] == state:
        return
    what = "(model)", "MisfitError", time.monotonic()
    misfits[obj.uid] = FailedCall(kind, obj.namespace, obj.name, *what), state
    text = "The object does not fit the model of its handlers, which wait until it does: %s"
    cause.logger.error(text, problem, extra={"k8s_reason": "Misfit"})
    if ctx.handlers.reports_misfits and cause.unconverted is None:
        _put_validity(ctx, obj, cause, problem)


def _put_validity(
    ctx: ResourceContext, obj: Entry, cause: ChangeCause, problem: str | None
) -> None:
    condition = build_validity(problem, cause.patch.generation)
    take(ctx, obj, Patch(fns=[partial(put_condition, condition=condition)]))
