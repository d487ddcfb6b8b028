"""Decide what must be done about the newest state of an object. No I/O.

A :class:`Decision` is made from the state and the records on the object, as a restarted operator
does it, and from what only runs in memory: daemons, resumption, reconcilers. Most states need
nothing. :mod:`webop.reactor.turn` carries it out.

While a change is being handled, no handler misses a later one. A record says which state its
handler has ``seen``:

- A finished handler of an update whose ``seen`` differs from now is due again. The record proves
  the change, so only filters on the current state are asked; ``old`` and ``diff`` are against the
  last handled state, and can be empty.
- An unfinished handler of an update stays due, even if the change is undone.
- Handlers of a creation are called once. If they have not all seen the newest state, an update
  follows whose ``old`` has empty sections, and whose records say that all have missed a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from webop.calls.progress import HandlerState, fetch_states
from webop.errors import MisfitError
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
from webop.objects.body import Body
from webop.objects.status_conditions import is_marked_unfit
from webop.objects.storage.diffbase import EssenceDigest
from webop.reactor.entry import Entry
from webop.reactor.reconcilers import find_due
from webop.reactor.resource_context import ResourceContext

_UNCHANGED = (Reason.NOOP, Reason.RESUME)


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
        again: ids of finished handlers that have missed a change; those that match are called.
        reconcilers: handlers of reconciliation to call, now or later.
        stopped: ids of those to stop: the object no longer matches, or is being deleted.
    """

    cause: ChangeCause
    states: Mapping[str, HandlerState]
    handlers: list[ChangeHandler] = field(default_factory=list)
    again: AbstractSet[str] = frozenset()
    has_changes: bool = False
    wants_finalizer: bool | None = None
    misfit: MisfitError | None = None
    is_mended: bool = False
    spawned: list[BackgroundHandler] = field(default_factory=list)
    reconcilers: list[ReconcileHandler] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    @property
    def why(self) -> DaemonStoppingReason:
        """The reason for stopping daemons."""
        if self.cause.is_deleted:
            return DaemonStoppingReason.RESOURCE_DELETED
        return DaemonStoppingReason.FILTERS_MISMATCH

    def __bool__(self) -> bool:
        has_steps = (
            self.has_changes or self.misfit or self.is_mended or self.spawned or self.stopped
        )
        return bool(has_steps or self.reconcilers or self.wants_finalizer is not None)


def decide(ctx: ResourceContext, obj: Entry, raw: dict[str, Any]) -> Decision | None:
    """Return what must be done about the newest state of an object; None for nothing.

    Raises:
        Exception: a filter or a storage of the user has failed.
    """
    recorded = Body(obj.add_records(raw))
    storage = ctx.operator.settings.persistence.progress_storage
    states = fetch_states(ctx.handlers.changes, body=recorded, storage=storage)
    cause = _detect_cause(ctx, obj, raw, recorded, states)
    decision = Decision(cause, states, misfit=cause.unconverted)
    if decision.misfit is not None:
        return decision  # a write, also of the finalizer, could lose what is kept
    wanted = _decide_daemons(ctx, obj, decision)
    _decide_finalizer(ctx, obj, decision, is_wanted=bool(wanted))
    decision.reconcilers = find_due(ctx, obj, cause)
    if decision.wants_finalizer is None:
        _select_handlers(ctx, decision)
        decision.misfit = _find_misfit(cause, [*decision.handlers, *decision.reconcilers])
        if decision.misfit is not None:
            return decision
        decision.is_mended = ctx.handlers.reports_misfits and is_marked_unfit(raw)
        decision.has_changes = bool(decision.handlers) or (
            # It is stored as handled, or records are removed. The records of others in the same
            # place are not ours.
            (cause.reason not in _UNCHANGED or bool(states))
            and cause.reason is not Reason.FREE
            and ctx.handlers.has_scope_for(cause)
        )
        if cause.reason is Reason.DELETE and not _has_unfinished(decision):
            decision.has_changes = False  # but the end of the last daemon
            decision.wants_finalizer = None if obj.daemons else False
    return decision or None


def _detect_cause(
    ctx: ResourceContext,
    obj: Entry,
    raw: dict[str, Any],
    recorded: Body,
    states: Mapping[str, HandlerState],
) -> ChangeCause:
    """Compare the state of an object with the last handled one, and with those in the records."""
    persistence, body = ctx.operator.settings.persistence, Body(raw)
    stored = persistence.diffbase_storage.fetch(body=recorded)
    new = ctx.build_essence(body)
    old: Any = stored
    if isinstance(stored, EssenceDigest):
        old = stored.restore(new)  # too large to store: only a digest tells whether it is the same
    elif stored is not None:
        old = persistence.progress_storage.clear(essence=stored)
        if ctx.is_partial:  # it can be from a time with whole objects
            old = {key: old[key] for key in old if key == "metadata"}
    is_resuming = obj.must_resume or any(
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
    if reason in _UNCHANGED and any(_find_missed(ctx, new, states)):
        reason = Reason.UPDATE  # the change was undone, but some have seen it
    described = ctx.describe(obj, body)
    if reconcilers := ctx.handlers.reconcilers:
        from webop.context.children import Children  # noqa: PLC0415 - only reconcilers have any

        described["children"] = Children(ctx.operator, reconcilers, body, described["logger"])
    return ChangeCause(**described, old=old, new=new, reason=reason, initial=is_resuming)


def _find_missed(
    ctx: ResourceContext, essence: Any, states: Mapping[str, HandlerState]
) -> Iterator[str]:
    """Yield the handlers of an update that have not handled the present state."""
    for key, state in states.items():
        is_known = state.purpose == Reason.UPDATE.value and state.seen is not None
        if is_known and (not state.is_finished or has_missed(ctx, key, state, essence)):
            yield key


def has_missed(ctx: ResourceContext, key: str, state: HandlerState, essence: Any) -> bool:
    """Return whether a handler was called for another state than this one."""
    return state.seen not in (None, ctx.digest_seen(key, state, essence))


def _select_handlers(ctx: ResourceContext, decision: Decision) -> None:
    """Find the handlers of the change, and those that have missed it."""
    cause, states = decision.cause, decision.states
    if cause.reason in (Reason.FREE, Reason.NOOP) or not ctx.handlers.changes:
        return
    decision.handlers = ctx.handlers.select_changes(cause)
    if cause.reason is not Reason.UPDATE or not states:
        return
    missed = {*_find_missed(ctx, cause.new, states)}
    decision.again = {key for key in missed if states[key].is_finished}
    chosen = {handler.id for handler in decision.handlers}
    for handler in ctx.handlers.changes:
        is_for = handler.reason in (None, Reason.UPDATE) and not handler.initial
        is_missed = is_for and handler.id in missed - chosen
        if is_missed and matches(handler, cause, has_missed=True):
            decision.handlers.append(handler)
            chosen.add(handler.id)
    decision.handlers.sort(key=ctx.handlers.changes.index)


def _has_unfinished(decision: Decision) -> bool:
    """Return whether a handler of a deletion must still be called."""
    purpose = Reason.DELETE.value
    for handler in decision.handlers:
        state = decision.states.get(handler.id)
        wanted = Reason.RESUME.value if handler.initial else purpose
        if state is None or state.purpose not in (None, purpose, wanted) or not state.is_finished:
            return True
    return False


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
    ctx: ResourceContext, obj: Entry, decision: Decision
) -> dict[str, BackgroundHandler]:
    """Find the daemons and timers to start and to stop; return those that must run.

    One that is stopping, or has finished and writes its patch, still counts as running.
    """
    cause, running, past = decision.cause, obj.daemons, obj.past
    wanted: dict[str, BackgroundHandler] = {}
    if not cause.is_deleted:
        for handler in ctx.handlers.background:
            if not past.get(handler.id) and matches(handler, cause):
                wanted.setdefault(handler.id, handler)
    decision.spawned = [handler for key, handler in wanted.items() if key not in running]
    kept = {*wanted, *(key for key, has_finished in past.items() if has_finished)}
    decision.stopped = [
        key
        for key, daemon in running.items()
        if cause.is_deleted or key not in kept
        if not daemon.is_stopping_for(decision.why)
    ]
    return wanted


def _decide_finalizer(
    ctx: ResourceContext, obj: Entry, decision: Decision, *, is_wanted: bool
) -> None:
    """Find out whether to add or to remove the finalizer before anything else.

    Daemons and timers, if they are wanted, need the finalizer, too.
    """
    cause = decision.cause
    is_there = ctx.operator.settings.persistence.finalizer in cause.body.meta.finalizers
    is_needed = is_wanted or bool(obj.daemons) or ctx.handlers.needs_finalizer(cause)
    if is_needed != is_there and not (is_needed and cause.is_deleted):
        decision.wants_finalizer = is_needed
