"""Decide what must be done about the newest state of an object. Sync, without I/O.

A :class:`Decision` is made from the newest state, what is recorded on the object, and the declared
handlers; most states need nothing. :mod:`webop.reactor.reconciler` carries it out.

A decision changes memory, too: the object gets its memo, a cycle that others have ended is dropped,
and reconcilers are registered, or due at once after a change. It can be repeated: in one turn, the
controller can ask before and after the work, and the worker if the state has changed since.

No handler misses a change that arrives while a change is being handled. Records say which state
each handler has seen; whatever differs from the newest state is outdated:

- A finished handler is called again if it matches the change since the state that it has seen.
- An unfinished handler is called with all changes since the last-handled state; if these do not
  match, with those since the state that it has seen.
- If a change is undone, what handlers have seen is stored as handled: an update back follows.
- Handlers of a creation are called once. If they have seen different states, one that is not the
  newest is stored as handled: an update follows.

The seen states themselves are in memory only. After a restart, the last-handled one replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from webop.calls.progress import HandlerState, digest_essence, fetch_states
from webop.context.children import Children
from webop.errors import MisfitError
from webop.events.loggers import ObjectLogger
from webop.handlers.causes import ChangeCause, detect_reason
from webop.handlers.filters import matches
from webop.handlers.model import (
    BackgroundHandler,
    ChangeHandler,
    Handler,
    Reason,
    ReconcileHandler,
)
from webop.handlers.stopping import DaemonStoppingReason
from webop.models.validity_condition import is_marked_unfit
from webop.objects.body import Body
from webop.objects.fields import clone
from webop.objects.patch import Patch
from webop.objects.storage.diffbase import EssenceDigest
from webop.reactor.reconcile_calls import find_due
from webop.reactor.resource_context import ResourceContext
from webop.reactor.store import NOTHING, Cycle, WatchedObject

_DELETED = DaemonStoppingReason.RESOURCE_DELETED
_MISMATCH = DaemonStoppingReason.FILTERS_MISMATCH
_UNCHANGED = (Reason.NOOP, Reason.RESUME)
_NO_CYCLE = Cycle()


@dataclass(slots=True)
class Decision:
    """The next steps for an object.

    Attributes:
        cause: what happened, with the patch that all handlers share.
        states: the records of handlers on the object, by id.
        handlers: the handlers of the change, finished ones included.
        has_changes: whether the change must be handled, or at least stored as handled.
        wants_finalizer: whether to add webop's finalizer, or to remove it; None for neither. It is
            added before any handler is called; after its removal, there is nothing else to do.
        spawned: daemons and timers to start.
        misfit: why the object does not fit the model of a handler: then no handler of the change is
            called until it does.
        is_mended: whether the conditions of the object say that it does not fit, but it does now.
        reconcilers: handlers of reconciliation to call, now or later.
        stopped: ids of those to stop: the object no longer matches, or is being deleted.
        why: the reason for stopping them.
    """

    cause: ChangeCause
    states: Mapping[str, HandlerState]
    handlers: list[ChangeHandler] = field(default_factory=list)
    has_changes: bool = False
    wants_finalizer: bool | None = None
    misfit: MisfitError | None = None
    is_mended: bool = False
    spawned: list[BackgroundHandler] = field(default_factory=list)
    reconcilers: list[ReconcileHandler] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    why: DaemonStoppingReason = _MISMATCH

    def __bool__(self) -> bool:
        has_steps = (
            self.has_changes or self.misfit or self.is_mended or self.spawned or self.stopped
        )
        return bool(has_steps or self.reconcilers or self.wants_finalizer is not None)


def decide(ctx: ResourceContext, obj: WatchedObject) -> Decision | None:
    """Return what must be done about the newest state of an object; None for nothing."""
    if obj.raw is None or obj.is_gone or ctx.handlers.has_only_children:
        return None
    work = obj.work or NOTHING
    recorded = Body(work.add_records(obj.raw))
    storage = ctx.operator.settings.persistence.progress_storage
    states = fetch_states(ctx.handlers.changes, body=recorded, storage=storage)
    cycle = work.cycle or _NO_CYCLE
    cause = _detect_cause(ctx, obj, recorded, states, cycle)
    decision = Decision(cause, states, misfit=cause.unconverted)
    if decision.misfit is not None:
        return decision  # a write, also of the finalizer, could lose what is kept
    wanted = _decide_daemons(ctx, obj, decision)
    decision.wants_finalizer = _decide_finalizer(ctx, obj, cause, is_wanted=bool(wanted))
    decision.reconcilers = find_due(ctx, obj, cause)
    if decision.wants_finalizer is None and obj.is_view:
        # A daemon ended: nothing else has changed. Others can have removed the finalizer.
        decision.has_changes = work.is_deletion_handled and cause.reason is Reason.DELETE
    elif decision.wants_finalizer is None:
        _select_handlers(ctx, decision)
        decision.misfit = _find_misfit(cause, [*decision.handlers, *decision.reconcilers])
        if decision.misfit is not None:
            return decision
        decision.is_mended = ctx.handlers.reports_misfits and is_marked_unfit(obj.raw)
        decision.has_changes = bool(decision.handlers) or (
            # It is stored as handled, or records are removed. The object can have left the scope
            # in the middle of a cycle; the records of others in the same place are not ours.
            (cause.reason not in _UNCHANGED or bool(states) or cycle.needs_update)
            and cause.reason is not Reason.FREE
            and (work.cycle is not None or ctx.handlers.has_scope_for(cause))
        )
        if work.cycle is not None and not decision.has_changes:
            work.cycle = None  # others have ended it
    return decision or None


def _detect_cause(
    ctx: ResourceContext,
    obj: WatchedObject,
    recorded: Body,
    states: Mapping[str, HandlerState],
    cycle: Cycle,
) -> ChangeCause:
    """Compare the state of an object with the last-handled one, and with those in the records."""
    persistence = ctx.operator.settings.persistence
    body = Body(obj.raw or {})
    stored = persistence.diffbase_storage.fetch(body=recorded)
    new = ctx.build_essence(body)
    old: Any = stored
    if isinstance(stored, EssenceDigest):
        old = stored.restore(new)  # too large to store: only a digest tells whether it is the same
    elif stored is not None:
        old = persistence.progress_storage.clear(essence=stored)
        if ctx.is_partial:  # it can be from a time with whole objects
            old = {key: old[key] for key in old if key == "metadata"}
    is_resuming = obj.needs_resume or any(
        state.purpose == Reason.RESUME.value and not state.is_finished for state in states.values()
    )
    meta = body.meta
    reason = detect_reason(
        deleting=meta.deletion_timestamp is not None,
        blocked=persistence.finalizer in meta.finalizers,
        old=old,
        changed=old != new,
        initial=is_resuming,
    )
    known: dict[str, Any] = {}
    if reason is Reason.UPDATE:
        outdated = _find_outdated(states, new)
        known = {key: cycle.essences.get(seen, old) for key, seen in outdated.items()}
    elif cycle.needs_update or cycle.essences.keys() & _find_outdated(states, new).values():
        reason = Reason.NOOP if reason is Reason.RESUME else reason  # the undone change comes first
    log = ObjectLogger(body=body, settings=ctx.operator.settings)
    reconcilers = ctx.handlers.reconcilers
    return ChangeCause(
        logger=log,
        children=Children(ctx.operator, reconcilers, body, log) if reconcilers else None,
        memo=ctx.operator.memos.recall(obj.uid),
        indices=ctx.operator.indices,
        resource=ctx.resource,
        body=body,
        patch=Patch(body=body, has_generations=ctx.has_status),
        old=old,
        new=new,
        reason=reason,
        initial=is_resuming,
        known=known,
    )


def _find_outdated(states: Mapping[str, HandlerState], essence: Any) -> dict[str, str]:
    """Return the digests of what handlers of an update have seen, unless it is the given state."""
    seen = {
        key: state.seen
        for key, state in states.items()
        if state.seen is not None and state.purpose in (None, Reason.UPDATE.value)
    }
    digest = digest_essence(essence) if seen else None
    return {key: each for key, each in seen.items() if each != digest}


def _select_handlers(ctx: ResourceContext, decision: Decision) -> None:
    """Find the handlers of the change, and those of them that get it since another state."""
    cause = decision.cause
    if cause.reason in (Reason.FREE, Reason.NOOP) or not ctx.handlers.changes:
        return
    known, cause.known = cause.known, {}
    chosen = ctx.handlers.select_changes(cause)
    usual = {handler.id for handler in chosen}
    for key, old in known.items():
        if decision.states[key].is_finished or key not in usual:
            found = ctx.handlers.select_changes(cause.since(old))
            if again := [handler for handler in found if handler.id == key]:
                cause.known[key] = clone(old)  # handlers can modify it
                chosen += [handler for handler in again if handler not in chosen]
    if cause.known:
        chosen = [handler for handler in ctx.handlers.changes if handler in chosen]
    decision.handlers = chosen


def _find_misfit(cause: ChangeCause, handlers: Iterable[Handler]) -> MisfitError | None:
    """Return why the object does not fit the models of its handlers; None if it does."""
    for handler in handlers:
        if handler.arguments:
            try:
                cause.fit(handler.arguments, dict(cause.kwargs))
            except MisfitError as exc:
                return exc
    return None


def _decide_daemons(
    ctx: ResourceContext, obj: WatchedObject, decision: Decision
) -> dict[str, BackgroundHandler]:
    """Find the daemons and timers to start and to stop; return those that must run.

    One that is stopping, or has finished and writes its patch, still counts as running.
    """
    cause = decision.cause
    wanted: dict[str, BackgroundHandler] = {}
    decision.why = _DELETED if cause.is_deleted else _MISMATCH
    running = {} if obj.daemons is None else obj.daemons.running
    past = {} if obj.daemons is None else obj.daemons.past
    if not cause.is_deleted:
        for handler in ctx.handlers.background:
            if not past.get(handler.id) and matches(handler, cause):
                wanted.setdefault(handler.id, handler)
    decision.spawned = [handler for key, handler in wanted.items() if key not in running]
    decision.stopped = [
        key
        for key, daemon in running.items()
        if (cause.is_deleted or not (key in wanted or past.get(key)))
        and not daemon.stopper.reason & decision.why
    ]
    return wanted


def _decide_finalizer(
    ctx: ResourceContext, obj: WatchedObject, cause: ChangeCause, *, is_wanted: bool
) -> bool | None:
    """Return whether to add or to remove the finalizer before anything else; None for neither.

    Daemons and timers, if they are wanted, need the finalizer, too.
    """
    is_there = ctx.operator.settings.persistence.finalizer in cause.body.meta.finalizers
    is_needed = is_wanted or obj.has_daemons or ctx.handlers.needs_finalizer(cause)
    if is_needed == is_there or (is_needed and cause.is_deleted):
        return None
    return is_needed
