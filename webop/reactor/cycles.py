"""One handling cycle of an object: the handlers of a change, and their progress.

Flow: :mod:`webop.reactor.process` → :func:`handle_change` →
:func:`webop.handling.execute.execute` → the user's function. The patches and states of
handlers that have ended go to the :class:`webop.reactor.writer.Writer` of the object.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from webop.handling.call_options import CallOptions
from webop.handling.causes import ChangeCause
from webop.handling.execute import deliver_results, execute
from webop.handling.handler_states import HandlerState, Progress, digest_essence
from webop.handling.handlers import Reason
from webop.handling.policy import Outcome
from webop.objects.body import Body
from webop.objects.fields import Snapshot
from webop.objects.patch import Patch, apply_merge_patch
from webop.objects.storage.progress import ProgressStorage
from webop.reactor.planning import Plan, ResourceContext, build_essence
from webop.reactor.tracking import Cycle, Tracked, Work
from webop.reactor.writer import open_writer
from webop.tracing import find_current_span

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
    cause, settings, controller = plan.cause, ctx.operator.settings, obj.controller
    storage = settings.persistence.progress_storage
    cause.logger.debug("%s is in progress.", _TITLES[cause.reason].capitalize())
    progress = Progress.restore(
        plan.handlers, body=cause.body, storage=storage, purpose=cause.reason.value
    )
    cycle = work.cycle = _adjust_cycle(plan, progress, storage)
    state, essence = Snapshot(cause.body.raw), Snapshot(cycle.essence)
    has_changed = cause.reason is Reason.CREATE and cause.new != cycle.essence
    seen = Snapshot(cause.new) if has_changed else essence
    commits = _Commits(ctx, obj, seen if cause.reason in (Reason.CREATE, Reason.UPDATE) else None)
    options = CallOptions(
        settings,
        lifecycle=ctx.operator.lifecycle,
        window=settings.execution.commit_window,
        commits=commits,
        counters=ctx.operator.counters,
        status=cycle.standing,
        may_continue=lambda: not (controller.is_held or obj.is_gone),
    )
    for key in cycle.standing.failures.keys() - progress.keys():  # handlers that no longer match
        del cycle.standing.failures[key]
    outcomes = await _call(ctx, obj, plan, cycle, progress, options)
    obj.restore(state)
    cycle.essence = essence.restore()
    if has_changed and outcomes:
        cycle.detour = seen.restore()
    writer = open_writer(ctx, obj)
    if progress.is_finished:
        leftovers = writer.records
        if cause.reason is Reason.DELETE:
            if writer.has_unwritten or obj.has_daemons:  # else the finalizer goes at once
                progress.store(body=commits.sent, patch=writer.records, storage=storage)
            leftovers = writer.cleanup = Patch()
        _conclude(ctx, plan, progress, cycle, commits, leftovers)
        work.cycle = None
        if cycle.detour is not None or cycle.reason is not cause.reason:
            # An update follows, even if the object is out of scope or the same again by then.
            last, other = cycle.essence, cause.new
            if cycle.detour is not None:
                last, other = cycle.detour, cycle.essence
            work.cycle = Cycle(Reason.UPDATE, last, frozenset(), detour=other)
        if cycle.reason is cause.reason:  # else the change was undone, and is handled as another
            obj.initial = False
    else:
        commits.mark(progress, outcomes)
        progress.store(body=commits.sent, patch=writer.records, storage=storage)
    return progress.delay


async def _call(
    ctx: ResourceContext,
    obj: Tracked,
    plan: Plan,
    cycle: Cycle,
    progress: Progress,
    options: CallOptions,
) -> dict[str, Outcome]:
    """Call the handlers that are due; return the outcomes by their ids."""
    called = [handler for handler in plan.handlers if handler.id in progress]
    late = [handler for handler in called if handler.id in cycle.bases]
    essence = Snapshot(plan.cause.new if late else None)
    usual = [handler for handler in called if handler.id not in cycle.bases]
    outcomes = await execute(usual, plan.cause, progress, options)
    for handler in late:  # call it for the changes that it missed
        if outcomes and _is_outdated(ctx, obj, essence.restore()):
            break  # the next calls get the newest state
        missed = plan.cause.since(cycle.bases[handler.id])
        outcomes = await execute([handler], missed, progress, options, outcomes)
    return outcomes


def _is_outdated(ctx: ResourceContext, obj: Tracked, essence: Any) -> bool:
    """Return whether an object has got another state, or is being deleted."""
    raw = obj.get_freshest()
    if raw is None:
        return True
    body = Body(raw)
    return body.meta.deletion_timestamp is not None or build_essence(ctx, body) != essence


class _Commits:
    """Hands over to the writer of an object what its handlers leave when they end.

    Args:
        ctx: the context of the work.
        obj: the object.
        seen: the state that the handlers are called for; None if it is not recorded.
    """

    def __init__(self, ctx: ResourceContext, obj: Tracked, seen: Snapshot | None) -> None:
        self._ctx = ctx
        self._obj = obj
        self._seen = seen
        self._digest = ""

    @property
    def sent(self) -> Body:
        """The newest state of the object with all records that were sent, also by timers."""
        writer = open_writer(self._ctx, self._obj)
        return Body(writer.add_sent_records(self._obj.get_freshest() or {}))

    @property
    def body(self) -> Body:
        """The newest state of the object with all records."""
        writer = open_writer(self._ctx, self._obj)
        return Body(apply_merge_patch(self.sent.raw, writer.records))

    def add(
        self,
        cause: ChangeCause,
        states: Mapping[str, HandlerState],
        outcomes: Mapping[str, Outcome],
        moment: float,
    ) -> None:
        """Hand over states, results and the patch, to be written at a moment, or earlier."""
        writer = open_writer(self._ctx, self._obj)
        if outcomes:  # else their handlers have not ended
            deliver_results(outcomes, cause.patch)
            writer.take(cause.patch)
        progress = Progress(dict(states))
        self.mark(progress, states)
        storage = self._ctx.operator.settings.persistence.progress_storage
        progress.store(body=self.sent, patch=writer.records, storage=storage)
        writer.write_at(moment)

    async def write(self) -> None:
        """Write now what was handed over."""
        await open_writer(self._ctx, self._obj).write()

    def mark(self, progress: Progress, keys: Iterable[str]) -> None:
        """Record for these handlers which state they were called for."""
        if self._seen is not None and keys:
            self._digest = self._digest or digest_essence(self._seen.restore())
            progress.set_seen(keys, self._digest)


def _conclude(
    ctx: ResourceContext,
    plan: Plan,
    progress: Progress,
    cycle: Cycle,
    commits: _Commits,
    patch: Patch,
) -> None:
    """End the cycle: store the handled state on the object, remove the progress."""
    cause, persistence = plan.cause, ctx.operator.settings.persistence
    owned = (handler.id for handler in ctx.handlers.changes)
    storage = persistence.progress_storage
    # Records that were not sent need not be removed, except if they are sent before.
    body = commits.body if cause.reason is Reason.DELETE else commits.sent
    if plan.handlers:
        states = progress.list_all(body=commits.body, storage=storage)
        failed = [key for key, state in states.items() if state.failure]
        succeeded = sum(state.success for state in states.values())
        title = _TITLES[cause.reason]
        if failed:
            text = "%s handled: %d succeeded, %d failed for good (%s)."
            names = ", ".join(failed)
            cause.logger.info(text, title.capitalize(), succeeded, len(failed), names)
        else:
            cause.logger.info("All handlers succeeded for %s.", title)
    progress.purge(owned, body=body, patch=patch, storage=storage)
    storage.touch(body=body, patch=patch, value=None)  # Kopf can have written it
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
        elif key in plan.late and (progress[key].retries or cycle.detour is not None):
            cycle.bases.setdefault(key, cycle.essence)
        elif key in plan.late:
            progress.drop(key)  # the change was undone before it was called
    if plan.cause.reason is Reason.UPDATE:
        # Those that match again, but did not meanwhile, can have missed a change.
        progress.restart_outdated(digest_essence(plan.cause.new), besides=cycle.handler_ids)
        cycle.essence, cycle.detour = plan.cause.new, None
        cycle.handler_ids = frozenset(progress)
    return cycle


def _begin_cycle(plan: Plan, progress: Progress, storage: ProgressStorage) -> Cycle:
    """Begin a cycle, or continue one of an earlier process if its progress is stored.

    The object can have changed after handlers of that process finished (D-67). Handlers of an
    update are then called again, for all changes since the last-handled state. A creation
    continues, and an update for all handlers follows.
    """
    cause, essence = plan.cause, plan.cause.new
    states = progress.list_all(body=cause.body, storage=storage).values()
    if any(state.seen for state in states):
        digest = digest_essence(cause.new)
        if cause.reason is Reason.UPDATE:
            progress.restart_outdated(digest)
        elif cause.reason is Reason.CREATE and any(state.is_outdated(digest) for state in states):
            essence = {}
    return Cycle(cause.reason, essence, frozenset(progress), find_current_span())
