"""One handling cycle of an object: the handlers of a change, and their progress.

Flow: :mod:`webop.reactor.process` → :func:`handle_change` →
:func:`webop.handling.execute.execute` → the user's function. webop's own records go into
``cause.own``, the changes of handlers into ``cause.patch``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
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
    progress = Progress.restore(decision.handlers, decision.states, purpose=cause.reason.value)
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
    seen: set[str | None] = set()
    if not progress.is_finished or any(state.seen for state in decision.states.values()):
        commits.mark(progress, outcomes)
        recorded = Body(apply_merge_patch(body.raw, cause.own))
        states = Progress({**decision.states, **progress}).list_all(body=recorded, storage=storage)
        seen = {state.seen for state in states.values()} - {None}
        known = {**cycle.essences, digest_essence(cause.new): cause.new}
        cycle.essences = {key: essence for key, essence in known.items() if key in seen}
    if not progress.is_finished:
        progress.store(body=body, patch=cause.own, storage=storage)
        return progress.delay
    handled: Any = cause.new
    work.cycle = None
    if cause.reason in (Reason.CREATE, Reason.NOOP) and (essences := cycle.essences):
        # An update must follow: what is stored as handled differs from the newest state. If the
        # object gets that state before the update begins, another one is stored.
        if cause.reason is Reason.NOOP:  # other handlers know only this one
            essences[digest_essence(cause.new)] = cause.new
        newest = digest_essence(ctx.build_essence(body))
        handled = next((essence for key, essence in essences.items() if key != newest), cause.new)
        work.cycle = Cycle(essences, needs_update=True) if len(essences) > 1 else None
    if cause.reason is Reason.CREATE and seen - cycle.essences.keys():
        handled = {}  # a former process has called handlers for another state
    leftovers = cause.own
    if cause.reason is Reason.DELETE:
        if cause.patch or obj.has_background:  # else the finalizer goes at once
            progress.store(body=body, patch=cause.own, storage=storage)
            body = Body(apply_merge_patch(body.raw, cause.own))
        leftovers = work.cleanup = Patch()
    _conclude(ctx, decision, progress, body, handled, leftovers)
    obj.needs_resume = cause.initial and cause.reason is Reason.NOOP
    return None


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
        self._after = [key for key, old in cause.known.items() if old != cause.old]
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
