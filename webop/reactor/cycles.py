"""One handling cycle of an object: the handlers of a change, and their progress.

Flow: :mod:`webop.reactor.process` → :func:`handle_change` →
:func:`webop.handling.execute.execute` → the user's function. What the framework must
store goes into ``cause.own``, what the handlers want changed into ``cause.patch``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from webop.errors import APIError, LoginError
from webop.handling.call_options import CallOptions
from webop.handling.execute import deliver_results, execute
from webop.handling.handler_states import HandlerState, Progress, build_mark
from webop.handling.handlers import Reason
from webop.objects.body import Body
from webop.objects.fields import Snapshot
from webop.objects.patch import Patch, apply_merge_patch, subtract_patch
from webop.objects.storage.progress import ProgressStorage
from webop.reactor import writing
from webop.reactor.planning import Plan, ResourceContext, build_essence
from webop.reactor.tracking import Cycle, Tracked, Work

logger = logging.getLogger(__name__)

_TITLES = {
    Reason.CREATE: "creation",
    Reason.UPDATE: "update",
    Reason.DELETE: "deletion",
    Reason.RESUME: "resuming",
    Reason.NOOP: "reversal",
}


async def handle_change(ctx: ResourceContext, obj: Tracked, work: Work, plan: Plan) -> float | None:
    """Call the handlers that are due, and record their progress.

    Returns:
        Seconds until the next handler is due; None if all are finished.
    """
    cause, settings = plan.cause, ctx.operator.settings
    storage = settings.persistence.progress_storage
    cause.logger.debug("%s is in progress.", _TITLES[cause.reason].capitalize())
    progress = Progress.restore(
        plan.handlers, body=cause.body, storage=storage, purpose=cause.reason.value
    )
    cycle = work.cycle = _adjust_cycle(plan, progress, storage)
    written: list[Patch] = []
    state, essence = Snapshot(cause.body.raw), Snapshot(cycle.essence)
    has_changed = cause.reason is Reason.CREATE and cause.new != cycle.essence
    seen = None
    if cause.reason in (Reason.CREATE, Reason.UPDATE):
        seen = Snapshot(cause.new) if has_changed else essence
    options = CallOptions(
        settings,
        lifecycle=ctx.operator.lifecycle,
        window=settings.execution.commit_window,
        commit=partial(_commit, ctx, obj, seen, written),
        tally=ctx.operator.tally,
    )
    called = [handler for handler in plan.handlers if handler.id in progress]
    outcomes = await execute(
        [handler for handler in called if handler.id not in cycle.bases], cause, progress, options
    )
    for handler in called:
        if handler.id in cycle.bases:  # it is called for the changes that it has missed
            missed = cause.since(cycle.bases[handler.id])
            outcomes |= await execute([handler], missed, progress, options)
    obj.restore(state)
    cycle.essence = essence.restore()
    if has_changed and outcomes and seen is not None:
        cycle.detour = seen.restore()
    deliver_results(outcomes, cause.patch)
    for patch in written:  # users may have changed the object since then
        rest, done = subtract_patch(cause.patch, patch), list(map(id, patch.fns))
        fns = [fn for fn in cause.patch.fns if id(fn) not in done]
        cause.patch.clear()
        cause.patch.update(rest)
        cause.patch.fns.extend(fns)
    body = Body(obj.get_freshest() or cause.body.raw)  # with what was written in between
    if progress.is_finished:
        leftovers = cause.own
        if cause.reason is Reason.DELETE:
            if cause.patch or obj.has_background:  # else the finalizer goes at once
                progress.store(body=body, patch=cause.own, storage=storage)
                body = Body(apply_merge_patch(body.raw, cause.own))
            leftovers = work.cleanup = Patch()
        _conclude(ctx, plan, progress, body, cycle, leftovers)
        work.cycle = None
        obj.initial = False
    else:
        if seen is not None:
            progress.mark(outcomes, build_mark(seen.restore()))
        progress.store(body=body, patch=cause.own, storage=storage)
    return progress.delay


async def _commit(
    ctx: ResourceContext,
    obj: Tracked,
    seen: Snapshot | None,
    written: list[Patch],
    states: Mapping[str, HandlerState],
    patch: Patch,
) -> None:
    """Store what is finished while a slower handler runs; if this fails, it is stored later."""
    progress = Progress(dict(states))
    if seen is not None:
        progress.mark(states, build_mark(seen.restore()))
    storage = ctx.operator.settings.persistence.progress_storage
    progress.store(body=Body(obj.get_freshest() or {}), patch=patch, storage=storage)
    try:
        if await writing.patch(ctx, obj, patch):
            written.append(patch)
    except (APIError, LoginError) as exc:
        said, extra = "The progress of %s is not written yet: %s", ctx.refer_to(obj)
        logger.debug(said, obj, exc, extra=extra)


def _conclude(
    ctx: ResourceContext, plan: Plan, progress: Progress, body: Body, cycle: Cycle, patch: Patch
) -> None:
    """End the cycle: store the handled state on the object, remove the progress."""
    cause, persistence = plan.cause, ctx.operator.settings.persistence
    owned = (handler.id for handler in ctx.handlers.changes)
    storage = persistence.progress_storage
    if plan.handlers:
        recorded = Body(apply_merge_patch(body.raw, cause.own))
        states = progress.list_all(body=recorded, storage=storage)
        succeeded, failed = sum(s.success for s in states), sum(s.failure for s in states)
        title = _TITLES[cause.reason].capitalize()
        cause.logger.info("%s is processed: %d succeeded; %d failed.", title, succeeded, failed)
    progress.purge(owned, body=body, patch=patch, storage=storage)
    storage.touch(body=body, patch=patch, value=None)  # Kopf may have left it
    essence = cycle.essence
    if cycle.detour is not None and build_essence(ctx, body) == essence:
        essence = cycle.detour  # the change was undone after handlers have seen it: an update
    if cause.reason is not Reason.DELETE and cause.old != essence:
        persistence.diffbase_storage.store(body=body, patch=patch, essence=essence)


def _adjust_cycle(plan: Plan, progress: Progress, storage: ProgressStorage) -> Cycle:
    """Begin a cycle, or continue the present one with the newest state of the object."""
    cycle = plan.cycle
    if cycle is None:
        return _begin_cycle(plan, progress, storage)
    for key in plan.missed:
        if progress[key].is_finished:
            progress.restart(key)
            cycle.bases[key] = cycle.essence
        elif key in plan.late and progress[key].retries:
            cycle.bases.setdefault(key, cycle.essence)
        elif key in plan.late:
            progress.drop(key)  # the change was undone before it was called
    if plan.cause.reason is Reason.UPDATE:
        cycle.essence = plan.cause.new
    return cycle


def _begin_cycle(plan: Plan, progress: Progress, storage: ProgressStorage) -> Cycle:
    """Begin a cycle, or continue one of an earlier process if its progress is stored.

    The object may have changed since handlers of that process have finished (D-67). Those of an
    update are called again, for what has changed since the last-handled state. A creation
    continues, and an update for all handlers follows.
    """
    cause, essence = plan.cause, plan.cause.new
    states = progress.list_all(body=cause.body, storage=storage)
    if any(state.seen for state in states):
        mark = build_mark(cause.new)
        if cause.reason is Reason.UPDATE:
            progress.renew(mark)
        elif cause.reason is Reason.CREATE and any(state.is_outdated(mark) for state in states):
            essence = {}
    return Cycle(cause.reason, essence, frozenset(progress))
