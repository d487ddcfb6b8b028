"""What is done about one object when it has changed: the whole story on one screen.

Flow: :meth:`Processor.process` → :func:`webop.handling.execute.execute` → the user's function.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from webop.errors import APIError, LoginError
from webop.handling.causes import EventCause, ResourceCause
from webop.handling.execute import deliver_results, execute
from webop.handling.filters import matches
from webop.handling.handlers import ErrorsMode, EventHandler, Reason
from webop.handling.indexing import index_object
from webop.handling.policy import Outcome
from webop.handling.progress import Progress
from webop.handling.registry import deduplicated
from webop.handling.terms import Terms
from webop.objects.body import Body, RawEvent
from webop.objects.fields import Snapshot
from webop.objects.patch import Patch
from webop.posting import LocalObjectLogger
from webop.reactor.application import apply_finalizers, save_patch
from webop.reactor.cycles import handle_change
from webop.reactor.gate import Gate
from webop.reactor.planning import Plan, ResourceContext, make_plan
from webop.reactor.saving import catch_up, is_refused, release, save_changes
from webop.reactor.schedules import start_in_background
from webop.reactor.tracking import Tracked, get_uid

logger = logging.getLogger(__name__)


class Processor:
    """The work on the objects of one resource; see :class:`webop.reactor.dispatcher`."""

    def __init__(
        self, ctx: ResourceContext, gate: Gate[Any], *, spawn: Callable[..., asyncio.Task[None]]
    ) -> None:
        self.ctx = ctx
        self.wants_every_event = bool(ctx.handlers.events)
        self.has_indexes = bool(ctx.handlers.indexers)
        self._gate = gate
        self._spawn = spawn
        settings = ctx.operator.settings
        self._event_terms = Terms(settings, default_errors=ErrorsMode.IGNORED)
        self._index_terms = replace(self._event_terms, success_level=logging.DEBUG)

    def has_work(self, obj: Tracked) -> bool:
        """Tell whether anything is to be done about the newest state of an object."""
        if obj.events or obj.unsaved is not None or obj.is_unindexed:
            return True
        try:
            obj.plan = make_plan(self.ctx, obj)
        except Exception:  # noqa: BLE001  a filter has failed: it is reported in process()
            return True
        if obj.plan is None:
            obj.initial = False
        return obj.plan is not None

    async def index(self, raw: dict[str, Any]) -> None:
        """Bring the indexes up to a state of an object; errors of indexers end here."""
        body = Body(raw)
        cause = ResourceCause(
            logger=LocalObjectLogger(body=body, settings=self.ctx.operator.settings),
            memo=self.ctx.operator.memos.recall(get_uid(raw)),
            indices=self.ctx.operator.indices,
            resource=self.ctx.resource,
            body=body,
            patch=Patch(body=body),
        )
        handlers, indexes = self.ctx.handlers.indexers, self.ctx.operator.indices
        await index_object(handlers, cause, get_uid(raw), indexes, self._index_terms)

    def withdraw(self, obj: Tracked) -> None:
        """Take an object that is gone, or is not watched any more, out of the indexes."""
        if self.has_indexes:
            self.ctx.operator.indices.discard(obj.uid)

    def forget(self, obj: Tracked) -> None:
        """Drop what else is remembered of an object that is gone."""
        self.ctx.operator.memos.forget(obj.uid)

    async def process(self, obj: Tracked) -> float | None:
        """Do what is to be done about the newest state of an object.

        Guarantees: errors of the API server, of filters, and of the framework itself end here;
        the object is come back to after ``settings.batching.error_delays``, and what happens to
        it until then is only shown to the handlers of raw events.

        Returns:
            The seconds after which to come back even if nothing changes; None if there is no need.
        """
        try:
            if obj.is_unindexed:
                obj.is_unindexed = False
                if obj.raw is not None and obj.event_type != "DELETED":
                    await self.index(obj.raw)
            await self._gate.wait()
            await self._show_events(obj)
            if rest := obj.find_rest():
                return rest
            await catch_up(self.ctx, obj)
            plan = self._take_plan(obj)
            if plan is None:
                delay, obj.initial = None, False
            else:
                delay = await self._carry_out(obj, plan)
        except Exception as exc:  # noqa: BLE001  one object must not stop the others
            return self._throttle(obj, exc)
        obj.error_delays = None
        return delay

    def _take_plan(self, obj: Tracked) -> Plan | None:
        """Return the plan that started the work if it is still for the newest state."""
        plan, obj.plan = obj.plan, None
        if plan is not None and plan.cause.body.raw is obj.raw:
            return plan
        return make_plan(self.ctx, obj)

    async def _carry_out(self, obj: Tracked, plan: Plan) -> float | None:
        """Call the handlers, record their progress, and write it all down in one patch."""
        cause = plan.cause
        self._adjust_background(obj, plan)
        if cause.reason is Reason.DELETE and obj.is_released:
            await release(self.ctx, obj)
            return None
        if plan.finalizers is not None:
            added = len(plan.finalizers) > len(cause.body.meta.finalizers)
            cause.logger.debug("Adding the finalizer." if added else "Removing the finalizer.")
            await apply_finalizers(self.ctx, obj, cause.body, plan.finalizers)
            return None
        if not plan.has_changes:
            obj.initial = False
            return None
        delay = await handle_change(self.ctx, obj, plan)
        await save_changes(self.ctx, obj, cause)
        if obj.is_released:
            await release(self.ctx, obj)
        return delay

    def _adjust_background(self, obj: Tracked, plan: Plan) -> None:
        """Stop and start daemons and timers; those to be started wait for the finalizer."""
        running = {} if obj.background is None else obj.background.tasks
        for key in plan.stopped:
            if key in running:
                running[key].stop(plan.why)
        if plan.finalizers is None and self.ctx.operator.duty.is_active:
            for handler in plan.spawned:
                start_in_background(self.ctx, obj, handler, spawn=self._spawn)
            obj.is_provided = True

    async def _show_events(self, obj: Tracked) -> None:
        """Call the handlers of raw events; their errors are logged and forgotten (HND-27)."""
        events, obj.events = obj.events or (), None
        for event_type, raw in events:
            body = Body(raw)
            event: RawEvent = {"type": event_type, "object": raw}  # type: ignore[typeddict-item]
            cause = EventCause(
                logger=LocalObjectLogger(body=body, settings=self.ctx.operator.settings),
                memo=self.ctx.operator.memos.recall(obj.uid),
                indices=self.ctx.operator.indices,
                resource=self.ctx.resource,
                body=body,
                patch=Patch(body=body),
                type=event_type,
                event=event,
            )
            handlers = [h for h in deduplicated(self.ctx.handlers.events) if _is_for(h, cause)]
            if not handlers:
                continue
            state = Snapshot(raw)
            outcomes: dict[str, Outcome] = await execute(
                handlers, cause, Progress.start(handlers), self._event_terms
            )
            obj.restore(state)
            deliver_results(outcomes, cause.patch)
            if cause.patch and event_type != "DELETED":
                try:
                    await save_patch(self.ctx, obj, cause.patch)
                except (APIError, LoginError) as exc:
                    cause.logger.warning("The patch of event handlers is not applied: %s", exc)

    def _throttle(self, obj: Tracked, exc: Exception) -> float | None:
        """Leave an object alone for a while after an error that is not of its handlers."""
        delays: float | Iterable[float] = self.ctx.operator.settings.batching.error_delays
        delay = None if is_refused(exc) else obj.throttle(delays)
        pause = "until its next change" if delay is None else f"for {delay:g} seconds"
        expected = isinstance(exc, (APIError, LoginError))
        logger.error(
            "%s %s is left alone %s: %s",
            self.ctx.resource.kind or self.ctx.resource.plural,
            obj,
            pause,
            exc if expected else " ".join([f"{exc!r}.", *getattr(exc, "__notes__", ())]),
            exc_info=None if expected else exc,
            extra=self.ctx.refer_to(obj),
        )
        return delay


def _is_for(handler: EventHandler, cause: EventCause) -> bool:
    """Check the filters of an event handler; if they fail, only this handler misses the event."""
    try:
        return matches(handler, cause)
    except Exception:
        cause.logger.exception("The filter of %s has failed.", handler)
        return False
