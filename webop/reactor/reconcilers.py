"""The calls of reconcilers: for which objects, when, and what follows from their results.

:mod:`webop.reactor.decision` asks :func:`find_due` for an object, and :mod:`webop.reactor.turn`
calls :func:`call_due`. All that is remembered is in memory: after a restart, each object is
reconciled once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from webop.aio.backoff import format_pause
from webop.calls.execution import attempt
from webop.calls.progress import HandlerState, digest_content, digest_essence, identify_content, now
from webop.calls.shared_options import CallOptions
from webop.handlers.causes import ReconcileCause, ResourceCause
from webop.handlers.filters import matches
from webop.handlers.model import ReconcileHandler
from webop.handlers.retries import Again
from webop.objects.body import Body
from webop.objects.fields import Snapshot, convert_to_json, resolve
from webop.objects.patch import Patch, apply_merge_patch
from webop.reactor.entry import Entry, ReconcileState
from webop.reactor.resource_context import ResourceContext
from webop.reactor.writer import take, write

_HASTE = 1.0  # seconds from the end of a failed call to one for what has happened since, at least
_RIVALRY = 1.0, 60.0  # seconds; the first rest, and the longest


def get_moment(state: ReconcileState, handler: ReconcileHandler) -> float | None:
    """Return when a reconciler must be called, by the loop's clock; None for not at all."""
    moment = state.due
    if state.because:  # it also ends the pause after a failure, but not at once
        early = state.early if state.failures else 0.0
        moment = early if moment is None else min(moment, early)
    if moment is None or not state.began:
        return moment
    return max(moment, state.began + max(handler.min_interval, state.rest))


def find_due(ctx: ResourceContext, obj: Entry, cause: ResourceCause) -> list[ReconcileHandler]:
    """Return the reconcilers that must be called for the newest state, now or later."""
    found: list[ReconcileHandler] = []
    if not ctx.handlers.reconcilers or cause.is_deleted:
        return found
    for handler in ctx.handlers.reconcilers:
        if not matches(handler, cause):
            continue
        known, said = obj.reconcilers.get(handler.id), _say(ctx, handler, cause.body)
        if known is None:
            known = ReconcileState({"resumed" if obj.must_resume else "created"}, said)
            obj.reconcilers = {**obj.reconcilers, handler.id: known}
            ctx.operator.children.register(obj, handler)
        elif known.seen != said:  # it is tried at once, whatever has failed before
            known.because.add("changed")
            known.seen, known.due, known.failures, known.rest = said, None, 0, 0.0
        if known.skipped is not None and known.skipped[0] != obj.version:
            if not _has(cause.body, known.skipped[1]):
                known.because.add("changed")
            known.skipped = None
        if get_moment(known, handler) is not None:
            found.append(handler)
    return found


async def call_due(
    ctx: ResourceContext, obj: Entry, handlers: Sequence[ReconcileHandler]
) -> float | None:
    """Call the reconcilers that are due, unless a newer state must be looked at first.

    It can have come during the call of another handler: perhaps the object is being deleted.

    Returns:
        The seconds until the next one is due; None if none is.
    """
    loop = asyncio.get_running_loop()
    for handler in handlers:
        moment = get_moment(obj.reconcilers[handler.id], handler)
        if moment is not None and moment <= loop.time() and obj.may_continue:
            await _call(ctx, obj, handler)
    moments = (get_moment(obj.reconcilers[handler.id], handler) for handler in handlers)
    return min((max(0.0, one - loop.time()) for one in moments if one is not None), default=None)


async def _call(ctx: ResourceContext, obj: Entry, handler: ReconcileHandler) -> None:
    """Call a reconciler once, and write its patch."""
    operator, loop = ctx.operator, asyncio.get_running_loop()
    known, raw = obj.reconcilers[handler.id], ctx.workers.bodies.load(obj)
    if raw is None:
        return
    is_retry = known.due is not None and known.due <= loop.time()
    because = tuple(sorted(known.because)) or (("failed",) if known.failures else ("again",))
    known.because.clear()
    known.due, known.began = None, loop.time()
    snapshot, body = Snapshot(raw), Body(raw)
    known.seen = _say(ctx, handler, body)
    described = ctx.describe(obj, body)
    log = described["logger"]
    from webop.context.children import Children  # noqa: PLC0415 - only reconcilers have any

    children = Children(operator, [handler], body, log, is_reconciling=True)
    cause = ReconcileCause(**described, children=children, because=because)
    options = CallOptions(
        operator.settings,
        on_late=lambda is_async: ctx.workers.note_late(obj, is_async=is_async),
        counters=operator.counters,
        status=obj.open_status(),
    )
    state = HandlerState(now(), retries=known.failures)
    outcome = await attempt(handler, cause, state, options)
    ctx.workers.note_end(obj)
    raw = ctx.restore(obj, snapshot)
    known.reason = ""
    if isinstance(asked := outcome.result, Again):
        log.debug("%s waits: %s Again in %s s.", handler, asked.reason, format_pause(asked.after))
        known.due, known.reason = loop.time() + asked.after, asked.reason
    first, longest = _RIVALRY
    known.rest = min(2 * known.rest or first, longest) if children.has_taken_back else 0.0
    if outcome.exception is None or outcome.final:  # then it waits for the next reason
        known.failures = 0
    else:
        known.failures += is_retry or not known.failures  # early calls do not lengthen pauses
        known.due = loop.time() + (outcome.delay or 0.0)
        known.early = loop.time() + max(_HASTE, loop.time() - known.began)
    patch, version, known.skipped = cause.patch, obj.version, None
    newest = ctx.workers.bodies.load(obj)
    if patch and not obj.unwritten and newest is not None and _has(newest, patch):
        known.skipped = obj.version, patch
        patch = Patch(fns=patch.fns)  # the writer leaves out those that change nothing
    if patch:
        wanted = Body(apply_merge_patch(raw, patch))
        take(ctx, obj, patch)
        await write(ctx, obj)
        now_is = Body(ctx.workers.bodies.load(obj) or {})
        if _digest_said(handler, wanted) == _digest_said(handler, now_is):  # nobody else was there
            known.seen = _say(ctx, handler, now_is)
    is_due = obj.unwritten is not None and bool(obj.unwritten.changes)
    has_written = children.has_written or obj.version != version or is_due
    if handler.own_writes and has_written and outcome.exception is None:
        known.because.add("own_writes")


def _has(raw: Mapping[str, Any], patch: Patch) -> bool:
    """Return whether a state of an object has what a patch sets."""
    try:
        return not Patch(convert_to_json(patch)).as_json_patch(raw)
    except ValueError:  # the writer logs what JSON cannot represent
        return False


def _say(ctx: ResourceContext, handler: ReconcileHandler, body: Body) -> str:
    """Return what the object says to a reconciler, in short: its generation, or a digest."""
    if handler.fields:
        return _digest_said(handler, body)
    return identify_content(body, has_generations=ctx.has_status)


def _digest_said(handler: ReconcileHandler, body: Body) -> str:
    if handler.fields:
        return digest_essence({"": [resolve(body, path) for path in handler.fields]})
    return digest_content(body)
