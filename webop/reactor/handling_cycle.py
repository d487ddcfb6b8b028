"""One handling cycle of an object: the handlers of a change, and their progress.

Flow: :mod:`webop.reactor.reconciler` → :func:`handle_change` →
:func:`webop.calls.execution.execute` → the user's function. The patches and states of
handlers that have ended go to the :class:`webop.reactor.object_writer.Writer` of the object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from webop.calls.execution import execute
from webop.calls.progress import HandlerState, Progress, digest_content, digest_essence
from webop.calls.shared_options import CallOptions
from webop.handlers.causes import ChangeCause
from webop.handlers.model import Reason
from webop.objects.body import Body
from webop.objects.fields import Snapshot
from webop.objects.patch import Patch
from webop.reactor.decision import Decision
from webop.reactor.object_writer import open_writer
from webop.reactor.resource_context import ResourceContext
from webop.reactor.store import Cycle, WatchedObject, Work
from webop.telemetry.tracing import find_current_span

_HASTE = 1.0  # seconds between attempts that changes of the object lead to, at least
_HANDLED = {"k8s_reason": "Handled"}
_TITLES = {
    Reason.CREATE: "creation",
    Reason.UPDATE: "update",
    Reason.DELETE: "deletion",
    Reason.RESUME: "resuming",
    Reason.NOOP: "clean-up",
}


async def handle_change(
    ctx: ResourceContext, obj: WatchedObject, work: Work, decision: Decision
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
    needed = controller.needed_listing  # another one after a pause, in which others can act
    options = CallOptions(
        settings,
        lifecycle=ctx.operator.lifecycle,
        window=settings.execution.commit_window,
        commits=commits,
        counters=ctx.operator.counters,
        status=cycle.call_status,
        may_continue=lambda: (
            not (controller.holds or obj.is_gone) and controller.needed_listing == needed
        ),
    )
    failures = cycle.call_status.failures
    for key in failures.keys() - progress.keys():  # handlers that no longer match
        del failures[key]
    if settings.execution.retry_on_change:
        _hurry(cycle, cause, progress)
    outcomes = await execute(decision.handlers, cause, progress, options)
    obj.restore(state)
    cause.new = commits.essence.restore()
    writer = open_writer(ctx, obj)
    seen: set[str | None] = set()
    if not progress.is_finished or any(state.seen for state in decision.states.values()):
        commits.mark(progress, outcomes)
        recorded = Progress({**decision.states, **progress})
        states = recorded.list_all(body=commits.body, storage=storage)
        seen = {state.seen for state in states.values()} - {None}
        known = {**cycle.essences, digest_essence(cause.new): cause.new}
        cycle.essences = {key: essence for key, essence in known.items() if key in seen}
    if not progress.is_finished:
        progress.store(body=commits.sent, patch=writer.records, storage=storage)
        return progress.delay
    handled: Any = cause.new
    work.cycle = None
    if cause.reason in (Reason.CREATE, Reason.NOOP) and (essences := cycle.essences):
        # An update must follow: what is stored as handled differs from the newest state. If the
        # object gets that state before the update begins, another one is stored.
        if cause.reason is Reason.NOOP:  # other handlers know only this one
            essences[digest_essence(cause.new)] = cause.new
        newest = digest_essence(ctx.build_essence(commits.sent))
        handled = next((essence for key, essence in essences.items() if key != newest), cause.new)
        work.cycle = Cycle(essences, needs_update=True) if len(essences) > 1 else None
    if cause.reason is Reason.CREATE and seen - cycle.essences.keys():
        handled = {}  # a former process has called handlers for another state
    leftovers = writer.records
    if cause.reason is Reason.DELETE:
        if writer.has_unwritten or obj.has_daemons:  # else the finalizer goes at once
            progress.store(body=commits.sent, patch=writer.records, storage=storage)
        leftovers = writer.cleanup = Patch()
    _conclude(ctx, decision, progress, commits, handled, leftovers)
    obj.needs_resume = cause.initial and cause.reason is Reason.NOOP
    return None


def _hurry(cycle: Cycle, cause: ChangeCause, progress: Progress) -> None:
    """Let failed handlers be due at once if somebody else has changed the object since."""
    content, moment = digest_content(cause.body), asyncio.get_running_loop().time()
    if cycle.content not in ("", content):
        progress.hurry(max(0.0, cycle.called_at + _HASTE - moment))
    cycle.content = content
    if any(state.is_due for state in progress.values()):
        cycle.called_at = moment


class _Commits:
    """Hands over to the writer of an object what its handlers leave when they end.

    Args:
        ctx: the context of the work.
        obj: the object.
        cause: the change that the handlers are called for.

    Attributes:
        essence: the state that they are called for.
    """

    def __init__(self, ctx: ResourceContext, obj: WatchedObject, cause: ChangeCause) -> None:
        self._ctx = ctx
        self._obj = obj
        self.essence = Snapshot(cause.new)
        self._is_seen = cause.reason in (Reason.CREATE, Reason.UPDATE)
        self._after = [key for key, old in cause.known.items() if old != cause.old]
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
        return Body(writer.add_records(self._obj.get_freshest() or {}))

    def add(self, states: Mapping[str, HandlerState], patch: Patch | None, moment: float) -> None:
        """Hand over states and the patch, to be written at a moment, or earlier."""
        writer = open_writer(self._ctx, self._obj)
        if patch is not None:  # else their handlers have not ended
            writer.take(patch)
        if states:  # else the cycle ends, and is written at once
            progress = Progress(states)
            self.mark(progress, states)
            storage = self._ctx.operator.settings.persistence.progress_storage
            progress.store(body=self.sent, patch=writer.records, storage=storage)
            writer.write_at(moment)

    async def write(self) -> None:
        """Write now what was handed over."""
        await open_writer(self._ctx, self._obj).write()

    def mark(self, progress: Progress, keys: Iterable[str]) -> None:
        """Record for these handlers which state they were called for."""
        if self._is_seen and keys:
            self._digest = self._digest or digest_essence(self.essence.restore())
            progress.set_seen(keys, self._digest, after=self._after)


def _conclude(
    ctx: ResourceContext,
    decision: Decision,
    progress: Progress,
    commits: _Commits,
    handled: Any,
    patch: Patch,
) -> None:
    """End the cycle: store the handled state on the object, remove the progress."""
    cause, persistence = decision.cause, ctx.operator.settings.persistence
    owned = (handler.id for handler in ctx.handlers.changes)
    storage = persistence.progress_storage
    # Records that were not sent need not be removed, except if they are sent before.
    body = commits.body if cause.reason is Reason.DELETE else commits.sent
    if decision.handlers:
        states = progress.list_all(body=commits.body, storage=storage)
        failed = [key for key, state in states.items() if state.failure]
        succeeded = sum(state.success for state in states.values())
        title = _TITLES[cause.reason]
        if failed:
            text = "%s handled: %d succeeded, %d failed for good (%s)."
            names = ", ".join(failed)
            numbers = succeeded, len(failed)
            cause.logger.info(text, title.capitalize(), *numbers, names, extra=_HANDLED)
        else:
            cause.logger.info("All handlers succeeded for %s.", title, extra=_HANDLED)
    # Handlers that no longer match can have records, too, which know their sub-handlers.
    recorded = Progress({**decision.states, **progress})
    recorded.purge(owned, body=body, patch=patch, storage=storage)
    storage.touch(body=body, patch=patch, value=None)  # Kopf can have written it
    if cause.reason is not Reason.DELETE and cause.old != handled:
        persistence.diffbase_storage.store(body=body, patch=patch, essence=handled)
