"""The calls of reconcilers: for which objects, when, and what follows from their results.

:mod:`webop.reactor.decision` asks :func:`find_due` for an object, and
:mod:`webop.reactor.reconciler` calls :func:`call_due`. All that is remembered is in memory: after a
restart, each object is reconciled once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from webop.aio.backoff import format_pause
from webop.calls.execution import attempt
from webop.calls.progress import HandlerState, digest_content, digest_essence, now
from webop.calls.shared_options import CallOptions, HandlingStatus
from webop.context.children import Children
from webop.events.loggers import ObjectLogger
from webop.handlers.causes import ReconcileCause, ResourceCause
from webop.handlers.filters import matches
from webop.handlers.model import ReconcileHandler
from webop.handlers.retries import Again
from webop.objects.body import Body
from webop.objects.fields import Snapshot, convert_to_json, resolve
from webop.objects.patch import Patch, apply_merge_patch
from webop.reactor.object_writer import open_writer
from webop.reactor.resource_context import ResourceContext

if TYPE_CHECKING:
    from webop.reactor.store import WatchedObject


_RIVALRY = 1.0, 60.0  # seconds; the first rest, and the longest


@dataclass(slots=True)
class ReconcileState:
    """The state of one reconciler for one object.

    Attributes:
        because: what has happened since the last call.
        seen: what the object said at the last call: a generation or a digest.
        due: when to call it again even if nothing happens, by the loop's clock; None for never.
        began: when the last call began.
        failures: the number of failed calls since the last success.
        rest: seconds until the next call after it has taken back what others have changed: they
            could be another operator, which does the same. It grows until that ends.
        skipped: a patch that was not sent, since it changed nothing in a version of the object. The
            next version tells whether that was the newest one.
    """

    because: set[str] = field(default_factory=set)
    seen: str = ""
    due: float | None = None
    began: float = 0.0
    failures: int = 0
    rest: float = 0.0
    skipped: tuple[int, Patch] | None = None

    @property
    def is_pausing(self) -> bool:
        """Whether it waits after a failure: what happens meanwhile does not end the pause."""
        return bool(self.failures) and self.due is not None

    def get_moment(self, handler: ReconcileHandler) -> float | None:
        """Return when it must be called, by the loop's clock; None for not at all."""
        moment = 0.0 if self.because and not self.is_pausing else self.due
        if moment is None or not self.began:
            return moment
        return max(moment, self.began + max(handler.min_interval, self.rest))


@dataclass(slots=True)
class ReconcileStates:
    """The calls of all reconcilers for one object: what is remembered by id, and their status."""

    known: dict[str, ReconcileState] = field(default_factory=dict)
    call_status: HandlingStatus = field(default_factory=HandlingStatus)

    def resume(self) -> None:
        """Call them again after a pause, in which others can have worked."""
        for one in self.known.values():
            one.because.add("resumed")


def find_due(
    ctx: ResourceContext, obj: WatchedObject, cause: ResourceCause
) -> list[ReconcileHandler]:
    """Return the reconcilers that must be called for the newest state, now or later.

    Right after a pause, its state is outdated: the list that follows shows a newer one.
    """
    found: list[ReconcileHandler] = []
    if not ctx.handlers.reconcilers or cause.is_deleted or obj.awaits_list:
        return found
    states = obj.reconciling = obj.reconciling or ReconcileStates()
    for handler in ctx.handlers.reconcilers:
        if not matches(handler, cause):
            continue
        known, said = states.known.get(handler.id), _say(ctx, handler, cause.body)
        if known is None:
            first = "resumed" if obj.needs_resume else "created"
            known = states.known[handler.id] = ReconcileState({first}, said)
            ctx.operator.children.register(obj, handler)
        elif known.seen != said:  # it is tried at once, whatever has failed before
            known.because.add("changed")
            known.seen, known.due, known.failures, known.rest = said, None, 0, 0.0
        if known.skipped is not None and known.skipped[0] != obj.version:
            if not _has(obj, known.skipped[1]):
                known.because.add("changed")
            known.skipped = None
        if known.get_moment(handler) is not None:
            found.append(handler)
    return found


async def call_due(
    ctx: ResourceContext, obj: WatchedObject, handlers: Sequence[ReconcileHandler]
) -> float | None:
    """Call the reconcilers that are due, unless a newer state must be looked at first.

    It can have come during the call of another handler: perhaps the object is being deleted.

    Returns:
        The seconds until the next one is due; None if none is.
    """
    loop, states = asyncio.get_running_loop(), obj.reconciling or ReconcileStates()
    for handler in handlers:
        moment = states.known[handler.id].get_moment(handler)
        is_known = not (obj.is_dirty or obj.awaits_list or obj.is_gone or obj.raw is None)
        if moment is not None and moment <= loop.time() and is_known and not obj.controller.holds:
            await _call(ctx, obj, handler, states)
    moments = (states.known[handler.id].get_moment(handler) for handler in handlers)
    return min((max(0.0, one - loop.time()) for one in moments if one is not None), default=None)


async def _call(
    ctx: ResourceContext, obj: WatchedObject, handler: ReconcileHandler, states: ReconcileStates
) -> None:
    """Call a reconciler once, and write its patch."""
    operator, loop, known = ctx.operator, asyncio.get_running_loop(), states.known[handler.id]
    because = tuple(sorted(known.because)) or (("failed",) if known.failures else ("again",))
    known.because.clear()
    known.due, known.began = None, loop.time()
    snapshot, body = Snapshot(obj.raw), Body(obj.raw or {})
    known.seen = _say(ctx, handler, body)
    log = ObjectLogger(body=body, settings=operator.settings)
    children = Children(operator, [handler], body, log)
    cause = ReconcileCause(
        logger=log,
        memo=operator.memos.recall(obj.uid),
        indices=operator.indices,
        resource=ctx.resource,
        body=body,
        patch=Patch(body=body, has_generations=ctx.has_status),
        children=children,
        because=because,
    )
    options = CallOptions(
        operator.settings,
        success_level=logging.DEBUG,
        counters=operator.counters,
        status=states.call_status,
    )
    with ctx.queue.running_handlers(writing=operator.children.count_applying()):
        outcome = await attempt(
            handler, cause, HandlerState(now(), retries=known.failures), options
        )
    obj.restore(snapshot)
    if isinstance(asked := outcome.result, Again):
        log.debug("%s waits: %s Again in %s s.", handler, asked.reason, format_pause(asked.after))
        known.due = loop.time() + asked.after
    first, longest = _RIVALRY
    known.rest = min(2 * known.rest or first, longest) if children.has_taken_back else 0.0
    if outcome.exception is None or outcome.final:  # then it waits for the next reason
        known.failures = 0
    else:
        known.failures += 1
        known.due = loop.time() + (outcome.delay or 0.0)
    patch, known.skipped = cause.patch, None
    if patch and not (obj.has_unwritten or obj.awaits_list) and _has(obj, patch):
        known.skipped = obj.version, patch
        patch = Patch(fns=patch.fns)  # the writer leaves out those that change nothing
    if patch:
        wanted = Body(apply_merge_patch(snapshot.restore() or {}, patch))
        writer = open_writer(ctx, obj)
        writer.take(patch)
        await writer.write()
        now_is = Body(obj.raw or {})
        if _digest_said(handler, wanted) == _digest_said(handler, now_is):  # nobody else was there
            known.seen = _say(ctx, handler, now_is)


def _has(obj: WatchedObject, patch: Patch) -> bool:
    """Return whether the newest known state of an object has what a patch sets."""
    if obj.raw is None:
        return False
    try:
        return not Patch(convert_to_json(patch)).as_json_patch(obj.raw)
    except ValueError:  # the writer logs what JSON cannot represent
        return False


def _say(ctx: ResourceContext, handler: ReconcileHandler, body: Body) -> str:
    """Return what the object says to a reconciler, in short: its generation, or a digest."""
    if handler.fields:
        return _digest_said(handler, body)
    return identify_content(body, has_generations=ctx.has_status)


def _digest_said(handler: ReconcileHandler, body: Body) -> str:
    if handler.fields:
        return digest_essence({"": [resolve(body, path) for path in handler.fields]})
    return digest_content(body)


def identify_content(body: Body, *, has_generations: bool) -> str:
    """Return the generation of an object, or a digest of all but its metadata and its status.

    Without the subresource, a new status would be a new generation.
    """
    generation = body.metadata.get("generation") if has_generations else None
    return str(generation or digest_content(body))
