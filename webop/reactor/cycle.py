"""One handling cycle of an object: the handlers of a change, and their progress.

Flow: :mod:`webop.reactor.process` → :func:`handle_change` →
:func:`webop.handling.execute.execute` → the user's function. webop's own records go into
``cause.own``, the changes of handlers into ``cause.patch``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from webop.errors import APIError
from webop.handling.call_options import CallOptions
from webop.handling.causes import ChangeCause
from webop.handling.execute import deliver_results, execute
from webop.handling.handler_states import HandlerState, Progress, digest_essence
from webop.handling.handlers import Reason
from webop.objects.body import Body
from webop.objects.fields import Snapshot
from webop.objects.patch import Patch, apply_merge_patch, merge_patches, subtract_patch
from webop.reactor import writing
from webop.reactor.decision import Decision
from webop.reactor.resource_context import ResourceContext
from webop.reactor.tracking import Cycle, Pending, Tracked, Work
from webop.tracing import find_current_span

logger = logging.getLogger(__name__)

_TITLES = {
    Reason.CREATE: "creation",
    Reason.UPDATE: "update",
    Reason.DELETE: "deletion",
    Reason.RESUME: "resuming",
    Reason.NOOP: "clean-up",
}


async def handle_change(
    ctx: ResourceContext, obj: Tracked, work: Work, decision: Decision
) -> float | None:
    """Call the handlers that are due, and record their progress.

    Returns:
        Seconds until the next handler is due; None if all are finished.
    """
    cause, settings, controller = decision.cause, ctx.operator.settings, obj.controller
    storage = settings.persistence.progress_storage
    cause.logger.debug("%s is in progress.", _TITLES[cause.reason].capitalize())
    progress = Progress.restore(
        decision.handlers, body=cause.body, storage=storage, purpose=cause.reason.value
    )
    for key in cause.known:
        if progress[key].is_finished:
            progress.restart(key)
    cycle = work.cycle = work.cycle or Cycle()
    cycle.trace = cycle.trace or find_current_span()
    state, commits = Snapshot(cause.body.raw), _Commits(ctx, obj, cause)
    options = CallOptions(
        settings,
        lifecycle=ctx.operator.lifecycle,
        window=settings.execution.commit_window,
        commit=commits.add,
        counters=ctx.operator.counters,
        status=cycle.call_status,
        may_continue=lambda: (
            not (controller.is_stopped or controller.is_holding or obj.suspected_deleted)
        ),
    )
    failures = cycle.call_status.failures
    for key in failures.keys() - progress.keys():  # handlers that no longer match
        del failures[key]
    outcomes = await execute(decision.handlers, cause, progress, options)
    obj.restore(state)
    cause.new = commits.essence.restore()
    deliver_results(outcomes, cause.patch)
    commits.subtract_from(cause.patch)
    # Including what was written meanwhile, or will be before this: also by timers, for this worker.
    body = Body(work.add_records(obj.get_freshest() or cause.body.raw))
    states = children = decision.states
    if not progress.is_finished or any(state.seen for state in states.values()):
        commits.mark(progress, outcomes)
        states = {**states, **progress}
        recorded = Body(apply_merge_patch(body.raw, cause.own))
        children = Progress(states).list_all(body=recorded, storage=storage)
        seen = {state.seen for state in children.values()}
        known = {**cycle.essences, digest_essence(cause.new): cause.new}
        cycle.essences = {key: essence for key, essence in known.items() if key in seen}
    if progress.is_finished:
        handled, kept = cause.new, dict[str, HandlerState]()
        if cause.reason is Reason.CREATE and cycle.essences:
            newest = ctx.build_essence(body)
            handled, kept = _choose_handled(newest, cycle.essences, states, children)
        leftovers = cause.own
        if cause.reason is Reason.DELETE:
            if cause.patch or obj.has_background:  # else the finalizer goes at once
                progress.store(body=body, patch=cause.own, storage=storage)
                body = Body(apply_merge_patch(body.raw, cause.own))
            leftovers = work.cleanup = Patch()
        _conclude(ctx, decision, progress, body, handled, leftovers)
        Progress(kept).store(body=body, patch=leftovers, storage=storage)
        work.cycle = Cycle(cycle.essences) if kept else None
        obj.needs_resume = False
    else:
        progress.store(body=body, patch=cause.own, storage=storage)
    return progress.delay


def _choose_handled(
    newest: Any,
    essences: Mapping[str, Any],
    states: Mapping[str, HandlerState],
    children: Mapping[str, HandlerState],
) -> tuple[Any, dict[str, HandlerState]]:
    """Choose which state a creation stores as handled, if handlers have seen several.

    It is one that differs from the newest state: an update follows. Handlers that have seen another
    one keep their records for it.

    Args:
        newest: the newest state of the object.
        essences: the states that handlers have seen, the first one first.
        states: the records of handlers.
        children: the same, and the records of their sub-handlers.
    """
    digest = digest_essence(newest)
    seen = {state.seen for state in children.values()} - {None}
    handled = next((key for key in essences if key != digest), digest)
    kept = {
        key: replace(state, purpose=Reason.UPDATE.value)
        for key, state in states.items()
        if state.seen in essences and state.seen != handled
        if {children[ref].seen for ref in state.subrefs if ref in children} <= {state.seen}
    }
    # After a restart, nobody knows what they have seen.
    return essences.get(handled, newest) if seen <= essences.keys() else {}, kept


class _Commits:
    """The patches that store finished outcomes while slower handlers still run.

    Args:
        ctx: the context of the work.
        obj: the object.
        cause: the change that the handlers are called for.

    Attributes:
        essence: the state that they are called for.
    """

    def __init__(self, ctx: ResourceContext, obj: Tracked, cause: ChangeCause) -> None:
        self._ctx = ctx
        self._obj = obj
        self.essence = Snapshot(cause.new)
        self._is_seen = cause.reason in (Reason.CREATE, Reason.UPDATE)
        is_undone = cause.old == cause.new
        self._after = [key for key, old in cause.known.items() if is_undone or old != cause.old]
        self._written: list[Patch] = []  # or pending, which is written first

    async def add(self, states: Mapping[str, HandlerState], wanted: Patch, own: Patch) -> bool:
        """Store the outcomes so far; after a failure, they are kept and stored later."""
        ctx, obj = self._ctx, self._obj
        wanted, own = Patch(wanted), Patch(own)  # copies: pending patches must not change
        self.subtract_from(wanted)
        progress = Progress(dict(states))
        self.mark(progress, states)
        storage = ctx.operator.settings.persistence.progress_storage
        progress.store(body=Body(obj.get_freshest() or {}), patch=own, storage=storage)
        self._written.append(Patch(merge_patches(wanted, own), fns=wanted.fns))
        try:
            await writing.save(ctx, obj, Pending(wanted, own))
        except APIError as exc:
            text, extra = "Cannot write the progress of %s yet: %s", ctx.refer_to(obj)
            logger.debug(text, obj, exc, extra=extra)
            return False
        return True

    def mark(self, progress: Progress, keys: Iterable[str]) -> None:
        """Record for these handlers which state they were called for."""
        if self._is_seen:
            progress.set_seen(keys, digest_essence(self.essence.restore()), after=self._after)

    def subtract_from(self, patch: Patch) -> None:
        """Remove written values from a patch: users can have changed the object since then."""
        for written in self._written:
            rest, fns = subtract_patch(patch, written), [*patch.fns]
            for fn in written.fns:  # once each: several handlers can want the same
                at = next((at for at, other in enumerate(fns) if other is fn), None)
                if at is not None:
                    del fns[at]
            patch.clear()
            patch.update(rest)
            patch.fns.extend(fns)


def _conclude(
    ctx: ResourceContext,
    decision: Decision,
    progress: Progress,
    body: Body,
    handled: Any,
    patch: Patch,
) -> None:
    """End the cycle: store the handled state on the object, remove the progress."""
    cause, persistence = decision.cause, ctx.operator.settings.persistence
    owned = (handler.id for handler in ctx.handlers.changes)
    storage = persistence.progress_storage
    if decision.handlers:
        recorded = Body(apply_merge_patch(body.raw, cause.own))
        states = progress.list_all(body=recorded, storage=storage)
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
    if cause.reason is not Reason.DELETE and cause.old != handled:
        persistence.diffbase_storage.store(body=body, patch=patch, essence=handled)
