"""Call the handlers of a change, and record their progress.

Flow: :func:`handle` → :func:`webop.calls.execution.execute` → the user's function. Patches and
states are taken over when a handler ends, and written at the end of the turn. If a function takes
longer than 0.1 s, those of the handlers before it are written meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from webop.calls.execution import execute
from webop.calls.progress import HandlerState, Progress
from webop.calls.shared_options import LATE, CallOptions
from webop.errors import APIError
from webop.handlers.causes import ChangeCause
from webop.handlers.model import Reason
from webop.objects.body import Body
from webop.objects.fields import Snapshot, is_mapping
from webop.objects.patch import Patch, merge_patches
from webop.reactor.decision import Decision, has_missed
from webop.reactor.entry import Entry
from webop.reactor.resource_context import ResourceContext
from webop.reactor.writer import let_rest, list_states, set_finalizer, take, write

_HASTE = 1.0  # seconds between attempts that changes of the object lead to, at least
_HANDLED = {"k8s_reason": "Handled"}
_TITLES = {
    Reason.CREATE: "creation",
    Reason.UPDATE: "update",
    Reason.DELETE: "deletion",
    Reason.RESUME: "resuming",
    Reason.NOOP: "clean-up",
}


async def handle(ctx: ResourceContext, obj: Entry, decision: Decision) -> float | None:
    """Call the handlers that are due; return the seconds until the next is, None if all are done.

    If others could act meanwhile, after a pause, records are dropped: the object is listed again.
    """
    cause = decision.cause
    cause.logger.debug("%s is in progress.", _TITLES[cause.reason].capitalize())
    progress = Progress.restore(decision.handlers, decision.states, purpose=cause.reason.value)
    for key in progress.keys() & decision.again:
        progress.restart(key)
    journal, status = _Journal(ctx, obj, cause), obj.open_status()
    options = CallOptions(
        ctx.operator.settings,
        lifecycle=ctx.operator.lifecycle,
        journal=journal,
        on_late=journal.note_late,
        counters=ctx.operator.counters,
        status=status,
        may_continue=lambda: obj.may_continue,
    )
    for key in status.failures.keys() - {"", *progress, *obj.daemons, *obj.reconcilers}:
        del status.failures[key]  # of a handler that no longer matches
    if ctx.operator.settings.execution.retry_on_change:
        _hurry(ctx, obj, cause, progress)
    try:
        await execute(decision.handlers, cause, progress, options)
        journal.restore()
        if journal.is_over:
            return None
        if not progress.is_finished:
            journal.record(progress)
            return progress.delay
        _report(ctx, decision, progress, journal)
        if cause.reason is Reason.DELETE:
            await _finish_deletion(ctx, obj, decision, progress, journal)
        else:
            _conclude(ctx, obj, decision, progress, journal)
    except asyncio.CancelledError:
        if not journal.is_over:
            journal.record()
            await write(ctx, obj)
        raise
    finally:
        journal.close()
    obj.must_resume = False
    return None


def purge(ctx: ResourceContext, states: Mapping[str, HandlerState], body: Body) -> Patch:
    """Return the patch that removes the records of all handlers."""
    storage, patch = ctx.operator.settings.persistence.progress_storage, Patch()
    owned = (handler.id for handler in ctx.handlers.changes)
    # Handlers that no longer match can have records, too, which know their sub-handlers.
    Progress(states).purge(owned, body=body, patch=patch, storage=storage)
    storage.touch(body=body, patch=patch, value=None)  # Kopf can have written it
    return patch


def _hurry(ctx: ResourceContext, obj: Entry, cause: ChangeCause, progress: Progress) -> None:
    """Let failed handlers be due at once if somebody else has changed the object since."""
    moment = asyncio.get_running_loop().time()
    if any(
        not state.is_finished and has_missed(ctx, key, state, cause.new)
        for key, state in progress.items()
    ):
        progress.hurry(max(0.0, obj.called_at + _HASTE - moment))
    if any(state.is_due for state in progress.values()):
        obj.called_at = moment


class _Journal:
    """Takes over what the handlers of one change leave when they end.

    Attributes:
        ended: the states that are not in the records yet.
        recorded: the ids of handlers that have ended, and are in the records.
        view: the newest state of the object with the records that there are.
    """

    def __init__(self, ctx: ResourceContext, obj: Entry, cause: ChangeCause) -> None:
        self.ended: dict[str, HandlerState] = {}
        self.recorded: set[str] = set()
        self._ctx = ctx
        self._obj = obj
        self._cause = cause
        self._unwritten = obj.open_unwritten()
        self._snapshot = Snapshot(cause.body.raw)
        self._due = asyncio.get_running_loop().time() + LATE

    @property
    def is_over(self) -> bool:
        """Whether others could act meanwhile, in a pause: then records are dropped."""
        return self._obj.unwritten is not self._unwritten

    @property
    def view(self) -> Body:
        return Body(self._obj.add_records(self._ctx.workers.bodies.load(self._obj) or {}))

    @property
    def body(self) -> Body:
        """The newest state of the object with all records of handlers."""
        self.record()
        return self.view

    @property
    def essence(self) -> Any:
        """The state that the handlers see, as own writes have left it."""
        unwritten = self._obj.open_unwritten()
        if unwritten.essence is None:
            unwritten.essence = self._ctx.build_essence(Body(self._snapshot.restore()))
        return unwritten.essence

    def note(self, states: Mapping[str, HandlerState], patch: Patch) -> None:
        """Take over states of handlers, and the patch of those that have ended."""
        is_due = bool(self.ended) and asyncio.get_running_loop().time() > self._due
        take(self._ctx, self._obj, patch)
        self.ended.update(states)
        if is_due:
            self._write()  # with this one: its result must not be stored without its record

    def note_late(self, is_async: bool) -> None:  # noqa: FBT001  a callback
        """Write what has ended: another function takes long."""
        self._ctx.workers.note_late(self._obj, is_async=is_async)
        self._write()

    def _write(self) -> None:
        obj = self._obj
        self._due = asyncio.get_running_loop().time() + LATE
        self.record()
        if obj.unwritten is not None and obj.unwritten.is_due:
            obj.stream.spawn(write(self._ctx, obj), name=f"writer of {obj}")

    def record(self, others: Mapping[str, HandlerState] | None = None) -> None:
        """Put the states of handlers that have ended, and those of others, into the records."""
        states = {k: state for k, state in (others or {}).items() if k not in self.recorded}
        states |= self.ended
        if not states:
            return
        if self._cause.reason in (Reason.CREATE, Reason.UPDATE):
            essence = self.essence
            for key, state in self.ended.items():
                states[key] = replace(state, seen=self._ctx.digest_seen(key, state, essence))
        self.recorded.update(self.ended)
        self.ended.clear()
        unwritten = self._obj.open_unwritten()
        storage = self._ctx.operator.settings.persistence.progress_storage
        Progress(states).store(body=self.view, patch=unwritten.records, storage=storage)
        unwritten.is_denied = False

    def restore(self) -> None:
        """Undo changes that the handlers have made in place."""
        raw = self._ctx.restore(self._obj, self._snapshot)
        if raw is not self._snapshot.document:
            self._cause.new = self._ctx.build_essence(Body(raw))

    def close(self) -> None:
        """End the calls."""
        self._ctx.workers.note_end(self._obj)
        if self._obj.unwritten is not None:
            self._obj.unwritten.essence = None


def _report(
    ctx: ResourceContext, decision: Decision, progress: Progress, journal: _Journal
) -> None:
    """Log the end of the handling of a change."""
    if not decision.handlers:
        return
    cause, storage = decision.cause, ctx.operator.settings.persistence.progress_storage
    states = progress.list_all(body=journal.view, storage=storage) | journal.ended
    title, failed = _TITLES[cause.reason], [key for key, one in states.items() if one.failure]
    if failed:
        succeeded = sum(state.success for state in states.values())
        text = "%s handled: %d succeeded, %d failed for good (%s)."
        numbers = succeeded, len(failed), ", ".join(failed)
        cause.logger.info(text, title.capitalize(), *numbers, extra=_HANDLED)
    else:
        cause.logger.info("All handlers succeeded for %s.", title, extra=_HANDLED)


def _conclude(
    ctx: ResourceContext, obj: Entry, decision: Decision, progress: Progress, journal: _Journal
) -> None:
    """Store the handled state on the object, remove the records of handlers."""
    cause, states = decision.cause, {**decision.states, **progress}
    handled: Any = cause.new
    owed = Progress()
    if cause.reason is Reason.CREATE and decision.states:
        journal.record()
        essence, raw = journal.essence, ctx.workers.bodies.load(obj) or {}
        recorded = list_states(ctx, obj, raw).items()
        if any(has_missed(ctx, key, state, essence) for key, state in recorded):
            handled = {key: {} for key, part in cause.new.items() if is_mapping(part)}
            obj.is_dirty = True
            for key, state in states.items():  # so an update follows even if nothing differs
                owed[key] = replace(state, purpose=Reason.UPDATE.value, seen="")
    journal.ended.clear()
    body = journal.view
    patch = purge(ctx, states, body)
    owed.store(body=body, patch=patch, storage=ctx.operator.settings.persistence.progress_storage)
    if cause.old != handled:
        storage = ctx.operator.settings.persistence.diffbase_storage
        storage.store(body=body, patch=patch, essence=handled)
    if patch:
        unwritten = obj.open_unwritten()
        unwritten.records = Patch(merge_patches(unwritten.records, patch))
        unwritten.is_denied = False


async def _finish_deletion(
    ctx: ResourceContext, obj: Entry, decision: Decision, progress: Progress, journal: _Journal
) -> None:
    """Remove the finalizer: all handlers of the deletion have finished.

    If anything is written before, or a daemon must end, or this fails, they are recorded first:
    they must not run again.
    """
    if obj.daemons or obj.unwritten:
        journal.record(progress)
        if not await write(ctx, obj) or obj.daemons:
            return
    try:
        await end_deletion(ctx, obj, {**decision.states, **progress})
    except APIError:
        journal.record(progress)
        raise


async def end_deletion(
    ctx: ResourceContext, obj: Entry, states: Mapping[str, HandlerState]
) -> None:
    """Remove the finalizer; then the records of handlers, if the object stays for others."""
    response = await set_finalizer(ctx, obj, is_wanted=False)
    unwritten = obj.open_unwritten()
    unwritten.records.clear()
    if response is not None and Body(response).meta.finalizers:
        unwritten.records = purge(ctx, states, Body(response))
    else:
        let_rest(ctx, obj)
