"""Decide what must be done about the newest state of an object. Sync and cheap.

A :class:`Plan` is made from the newest state, the stored essence and the declared handlers; most
states need no plan. :mod:`webop.reactor.process` carries it out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from webop.client.api import Client
from webop.handling.causes import ChangeCause, detect_reason
from webop.handling.context import OperatorContext
from webop.handling.filters import matches
from webop.handling.handlers import BackgroundHandler, ChangeHandler, Reason
from webop.handling.registry import ResourceHandlers
from webop.handling.stopping import DaemonStoppingReason
from webop.objects.body import Body, build_object_reference
from webop.objects.patch import Patch
from webop.objects.resources import Resource
from webop.objects.storage.diffbase import EssenceDigest
from webop.posting import ObjectLogger
from webop.reactor.queue import WorkQueue
from webop.reactor.tracking import NOTHING, Cycle, Tracked

_DELETED = DaemonStoppingReason.RESOURCE_DELETED
_MISMATCH = DaemonStoppingReason.FILTERS_MISMATCH
_UNCHANGED = frozenset({Reason.NOOP, Reason.RESUME})
_HANDLED = frozenset({Reason.CREATE, Reason.UPDATE, Reason.DELETE, Reason.RESUME})


@dataclass(frozen=True, slots=True)
class ResourceContext:
    """The context of the work on one resource.

    ``queue`` is shared by all namespaces of a kind.
    """

    operator: OperatorContext
    client: Client
    resource: Resource
    handlers: ResourceHandlers
    queue: WorkQueue

    @property
    def has_status(self) -> bool:
        """Whether the status has its own endpoint (the status subresource)."""
        return "status" in self.operator.cluster_view.find(self.resource).subresources

    def refer_to(self, obj: Tracked) -> dict[str, Any]:
        """Return the ``extra`` that adds the reference of an object to a log message."""
        metadata = {"name": obj.name, "uid": obj.uid, "namespace": obj.namespace}
        kind, version = self.resource.kind, self.resource.api_version
        body = {"apiVersion": version, "kind": kind, "metadata": metadata}
        return {"k8s_ref": build_object_reference(body)}


@dataclass(slots=True)
class Plan:
    """The next steps for an object.

    Attributes:
        cause: what happened, with the patch that all handlers share.
        handlers: the handlers to call.
        finalizers: the new list of finalizers; None if it need not change. webop adds its finalizer
            before it calls any handler; after removing it, there is nothing else to do.
        cycle: the handling cycle to continue; None to begin one.
        missed: ids of handlers that must be called for changes since the cycle began, even if they
            have finished.
        late: those of them without a change since the last-handled state.
        spawned: daemons and timers to start.
        stopped: ids of those to stop: the object no longer matches, or is being deleted.
        why: the reason for stopping them.
        has_changes: whether the change must be handled, or at least stored as handled.
    """

    cause: ChangeCause
    handlers: list[ChangeHandler] = field(default_factory=list)
    finalizers: list[str] | None = None
    cycle: Cycle | None = None
    missed: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    spawned: list[BackgroundHandler] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    why: DaemonStoppingReason = _MISMATCH
    has_changes: bool = False

    def __bool__(self) -> bool:
        return bool(self.has_changes or self.finalizers is not None or self.spawned or self.stopped)


def make_plan(ctx: ResourceContext, obj: Tracked) -> Plan | None:
    """Return what must be done about the newest state of an object; None for nothing."""
    if obj.raw is None:
        return None
    work, body = obj.work or NOTHING, Body(obj.raw)
    plan = Plan(detect_cause(ctx, obj, body))
    is_taken_over = obj.is_taken_over and not obj.has_unwritten  # else the records may be our own
    is_taken_over = is_taken_over and ctx.handlers.has_scope_for(plan.cause)
    if is_taken_over and not obj.initial and _is_being_resumed(ctx, body):
        obj.initial = True
        plan = Plan(detect_cause(ctx, obj, body))
    wanted = _plan_daemons(ctx, obj, plan)
    plan.finalizers = _plan_finalizers(ctx, obj, plan.cause, is_wanted=bool(wanted))
    if plan.finalizers is None and obj.is_view:
        # A daemon ended: nothing else has changed. Others can have removed the finalizer.
        plan.has_changes = work.is_released and plan.cause.reason is Reason.DELETE
    elif plan.finalizers is None:
        cycle = work.cycle
        if cycle is not None and cycle.is_left:
            # It is still ours if its change was undone before another operator ended it.
            is_undone = plan.cause.reason in _UNCHANGED
            is_undone = is_undone and _has_records(ctx, body, (None, Reason.UPDATE.value))
            cycle = cycle if is_undone else None
        plan.has_changes = _plan_changes(ctx, cycle, plan)
        if is_taken_over and plan.cause.reason is Reason.NOOP:  # nobody continues their cycle
            plan.has_changes = plan.has_changes or _has_records(ctx, body)
        if not plan:  # until handlers begin, the object can still change back
            work.cycle = cycle
    return plan or None


def _plan_changes(ctx: ResourceContext, cycle: Cycle | None, plan: Plan) -> bool:
    """Find the handlers of the change; return whether there is anything to do about it."""
    cause = plan.cause
    if cycle is not None and cycle.reason is Reason.UPDATE and cause.reason in _UNCHANGED:
        plan.cycle = cycle  # the change was undone, but handlers have seen it
        return True
    if cause.reason not in _HANDLED or not ctx.handlers.changes:
        return False
    plan.handlers = ctx.handlers.select_changes(cause)
    if cycle is not None and cycle.reason is cause.reason:
        _continue_cycle(ctx, plan, cycle)
    if plan.handlers:
        return True
    if cause.reason is not Reason.RESUME:
        # It is stored as handled. The object can have left the scope in the middle of a cycle, of
        # which nothing must be left; the records of others in the same place are not ours.
        return ctx.handlers.has_scope_for(cause) or cycle is not None
    # A cycle can have lost its cause while the operator was down: its progress must be removed.
    return _has_records(ctx, cause.body)


def _is_being_resumed(ctx: ResourceContext, body: Body) -> bool:
    """Return whether there is progress of resume handlers; those of other cycles do not count."""
    storage = ctx.operator.settings.persistence.progress_storage
    others = {handler.id for handler in ctx.handlers.changes if not handler.initial}
    for handler in ctx.handlers.changes:
        record = storage.fetch(key=handler.id, body=body) if handler.initial else None
        if record and (record.get("purpose") == Reason.RESUME.value or handler.id not in others):
            return True
    return False


def _has_records(
    ctx: ResourceContext, body: Body, purposes: Collection[str | None] | None = None
) -> bool:
    """Return whether there is progress of handlers on an object, of some purposes if given."""
    storage = ctx.operator.settings.persistence.progress_storage
    found = (storage.fetch(key=handler.id, body=body) for handler in ctx.handlers.changes)
    return any(each and (purposes is None or each.get("purpose") in purposes) for each in found)


def _plan_daemons(ctx: ResourceContext, obj: Tracked, plan: Plan) -> dict[str, BackgroundHandler]:
    """Find the daemons and timers to start and to stop; return those that must run.

    Those that have finished never start again. One that is stopping still counts as running: at its
    end, the object is processed again, and it starts again if it matches then. One that has
    finished is not stopped while it writes its patch.
    """
    running = {} if obj.daemons is None else obj.daemons.running
    past = {} if obj.daemons is None else obj.daemons.past  # true if it has finished
    wanted: dict[str, BackgroundHandler] = {}
    if not plan.cause.is_deleted:
        for handler in ctx.handlers.background:
            if not past.get(handler.id) and matches(handler, plan.cause):
                wanted.setdefault(handler.id, handler)
    plan.why = _DELETED if plan.cause.is_deleted else _MISMATCH
    plan.stopped = [
        key
        for key, daemon in running.items()
        if (plan.cause.is_deleted or not (key in wanted or past.get(key)))
        and not daemon.stopper.reason & plan.why
    ]
    plan.spawned = [handler for key, handler in wanted.items() if key not in running]
    return wanted


def _continue_cycle(ctx: ResourceContext, plan: Plan, cycle: Cycle) -> None:
    """Continue a cycle; the object may have changed since it began."""
    plan.cycle = cycle
    if plan.cause.reason is Reason.CREATE:
        # Changes since the start are handled as an update later, also by handlers of fields.
        ids = cycle.handler_ids
        plan.handlers = [h for h in plan.handlers if h.id in ids or not h.needs_change]
    elif plan.cause.reason is Reason.UPDATE and plan.cause.new != cycle.essence:
        missed = ctx.handlers.select_changes(plan.cause.since(cycle.essence))
        plan.missed = frozenset(handler.id for handler in missed)
        plan.late = plan.missed - {handler.id for handler in plan.handlers}
        chosen = {id(handler) for handler in (*plan.handlers, *missed)}
        plan.handlers = [h for h in ctx.handlers.changes if id(h) in chosen]


def build_essence(ctx: ResourceContext, body: Body) -> Any:
    """Return the state of an object that is stored as handled: without what the framework adds."""
    persistence = ctx.operator.settings.persistence
    essence = persistence.diffbase_storage.build(body=body, extra_fields=ctx.handlers.extra_fields)
    return persistence.progress_storage.clear(essence=essence)


def detect_cause(ctx: ResourceContext, obj: Tracked, body: Body) -> ChangeCause:
    """Compare the state of an object with the last-handled one."""
    persistence = ctx.operator.settings.persistence
    stored = persistence.diffbase_storage.fetch(body=body)
    new = build_essence(ctx, body)
    old: Any = stored
    if isinstance(stored, EssenceDigest):
        old = stored.restore(new)  # too large to store: only a digest tells whether it is the same
    elif stored is not None:
        old = persistence.progress_storage.clear(essence=stored)
    meta = body.meta
    reason = detect_reason(
        event_type=obj.event_type,
        deleting=meta.deletion_timestamp is not None,
        blocked=persistence.finalizer in meta.finalizers,
        old=old,
        changed=old != new,
        initial=obj.initial,
    )
    return ChangeCause(
        logger=ObjectLogger(body=body, settings=ctx.operator.settings),
        memo=ctx.operator.memos.recall(obj.uid),
        indices=ctx.operator.indices,
        resource=ctx.resource,
        body=body,
        patch=Patch(body=body, has_generations=ctx.has_status),
        old=old,
        new=new,
        reason=reason,
        initial=obj.initial,
    )


def _plan_finalizers(
    ctx: ResourceContext, obj: Tracked, cause: ChangeCause, *, is_wanted: bool
) -> list[str] | None:
    """Return the finalizers if they must change before anything else; None if not.

    Daemons and timers, if they are wanted, need the finalizer, too.
    """
    finalizer = ctx.operator.settings.persistence.finalizer
    present = list(cause.body.meta.finalizers)
    is_needed = is_wanted or obj.has_daemons or ctx.handlers.needs_finalizer(cause)
    if is_needed and finalizer not in present and not cause.is_deleted:
        return [*present, finalizer]
    if not is_needed and finalizer in present:
        return [name for name in present if name != finalizer]
    return None
