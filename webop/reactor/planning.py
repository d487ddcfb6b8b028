"""What is to be done about the present state of an object: decided in sync code, cheaply.

A :class:`Plan` is made of the newest state, the stored essence and the declared handlers; most
states need none. Carried out in :mod:`webop.reactor.process`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from webop.client.api import Client
from webop.handling.causes import ChangeCause, detect_reason
from webop.handling.context import OperatorContext
from webop.handling.handlers import ChangeHandler, Reason
from webop.handling.registry import ResourceHandlers
from webop.objects.body import Body
from webop.objects.diffs import diff
from webop.objects.patch import Patch
from webop.objects.resources import Resource
from webop.posting import ObjectLogger
from webop.reactor.tracking import Cycle, Tracked

_HANDLED = frozenset({Reason.CREATE, Reason.UPDATE, Reason.DELETE, Reason.RESUME})


@dataclass(frozen=True, slots=True)
class ResourceContext:
    """The context of the work on one resource."""

    operator: OperatorContext
    client: Client
    resource: Resource
    handlers: ResourceHandlers


@dataclass(slots=True)
class Plan:
    """What is to be done about an object.

    Attributes:
        cause: what has happened; with the patch that everyone adds to.
        handlers: who is to be called.
        finalizers: the list of finalizers as it is to be; None if it is fine. Adding ours comes
            before any handler, removing it without handlers is all there is to do.
        cycle: the handling cycle that it goes on with; None if a new one begins.
        missed: ids of handlers that are to hear of what has changed since the cycle has begun,
            even if they have finished.
        late: those of them for whom nothing has changed since the last-handled state.
    """

    cause: ChangeCause
    handlers: list[ChangeHandler] = field(default_factory=list)
    finalizers: list[str] | None = None
    cycle: Cycle | None = None
    missed: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()


def make_plan(ctx: ResourceContext, obj: Tracked) -> Plan | None:
    """Return what is to be done about the newest state of an object; None if nothing is."""
    if obj.raw is None or obj.event_type == "DELETED":
        return None
    cause = detect_cause(ctx, obj, Body(obj.raw))
    finalizers = _plan_finalizers(ctx, cause)
    if finalizers is not None:
        return Plan(cause, finalizers=finalizers)
    if cause.reason is Reason.NOOP and obj.cycle is not None:
        return Plan(cause, cycle=obj.cycle)  # back where it was, but some have seen it elsewhere
    if cause.reason not in _HANDLED or not ctx.handlers.changes:
        return None
    plan = Plan(cause, ctx.handlers.select_changes(cause))
    if obj.cycle is not None and obj.cycle.reason is cause.reason:
        _continue_cycle(ctx, plan, obj.cycle)
    if plan.handlers or _is_worth_noting(ctx, cause) or _has_leftovers(ctx, cause):
        return plan
    return None


def _continue_cycle(ctx: ResourceContext, plan: Plan, cycle: Cycle) -> None:
    """Go on with a cycle under way, in the course of which the object may have changed."""
    plan.cycle = cycle
    if plan.cause.reason is Reason.CREATE:
        # What has changed in the meantime is an update afterwards, also for handlers of fields.
        ids = cycle.handler_ids
        plan.handlers = [h for h in plan.handlers if h.id in ids or not h.needs_change]
    elif plan.cause.reason is Reason.UPDATE and plan.cause.new != cycle.essence:
        missed = ctx.handlers.select_changes(plan.cause.since(cycle.essence))
        plan.missed = frozenset(handler.id for handler in missed)
        plan.late = plan.missed - {handler.id for handler in plan.handlers}
        chosen = {id(handler) for handler in (*plan.handlers, *missed)}
        plan.handlers = [h for h in ctx.handlers.changes if id(h) in chosen]


def _is_worth_noting(ctx: ResourceContext, cause: ChangeCause) -> bool:
    """Tell whether a change that no handler is called for is to be stored as handled."""
    return cause.reason is not Reason.RESUME and ctx.handlers.has_scope_for(cause)


def _has_leftovers(ctx: ResourceContext, cause: ChangeCause) -> bool:
    """Tell whether there is progress of a cycle that has lost its cause while nobody was here."""
    storage = ctx.operator.settings.persistence.progress_storage
    return cause.reason is Reason.RESUME and any(
        storage.fetch(key=handler.id, body=cause.body) for handler in ctx.handlers.changes
    )


def detect_cause(ctx: ResourceContext, obj: Tracked, body: Body) -> ChangeCause:
    """Compare the state of an object with the last-handled one."""
    persistence = ctx.operator.settings.persistence
    old: Any = persistence.diffbase_storage.fetch(body=body)
    new: Any = persistence.diffbase_storage.build(body=body, extra_fields=ctx.handlers.extra_fields)
    new = persistence.progress_storage.clear(essence=new)
    if old is not None:
        old = persistence.progress_storage.clear(essence=old)
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
        patch=Patch(body=body),
        old=old,
        new=new,
        diff=() if old == new else diff(old, new),
        reason=reason,
        initial=obj.initial,
    )


def _plan_finalizers(ctx: ResourceContext, cause: ChangeCause) -> list[str] | None:
    """Return the finalizers as they are to be before anything else; None if they are fine."""
    finalizer = ctx.operator.settings.persistence.finalizer
    present = list(cause.body.meta.finalizers)
    is_needed = ctx.handlers.needs_finalizer(cause)
    if is_needed and finalizer not in present and not cause.is_deleted:
        return [*present, finalizer]
    if not is_needed and finalizer in present:
        return [name for name in present if name != finalizer]
    return None
