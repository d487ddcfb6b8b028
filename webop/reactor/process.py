"""What is done about one object when it has changed: the whole story on one screen.

Flow: :meth:`Processor.process` → :func:`webop.handling.execute.execute` → the user's function.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from webop.errors import APIError, LoginError
from webop.handling.causes import EventCause
from webop.handling.execute import Terms, deliver_results, execute
from webop.handling.filters import matches
from webop.handling.handlers import ErrorsMode, EventHandler, Reason
from webop.handling.policy import Outcome
from webop.handling.progress import Progress
from webop.handling.registry import deduplicated
from webop.objects.body import Body, RawEvent
from webop.objects.patch import Patch
from webop.posting import LocalObjectLogger
from webop.reactor.application import apply_finalizers, save_patch
from webop.reactor.planning import Plan, ResourceContext, make_plan
from webop.reactor.tracking import Cycle, Tracked

logger = logging.getLogger(__name__)

_FINAL = frozenset({400, 405, 409, 413, 415, 422})  # a patch refused so is refused ever after

_TITLES = {
    Reason.CREATE: "creation",
    Reason.UPDATE: "update",
    Reason.DELETE: "deletion",
    Reason.RESUME: "resuming",
    Reason.NOOP: "reversal",
}


class Processor:
    """The work on the objects of one resource; see :class:`webop.reactor.dispatcher`."""

    def __init__(self, ctx: ResourceContext) -> None:
        self.ctx = ctx
        self.wants_every_event = bool(ctx.handlers.events)
        settings = ctx.operator.settings
        self._terms = Terms(
            settings, lifecycle=ctx.operator.lifecycle, window=settings.execution.commit_window
        )
        self._event_terms = Terms(settings, default_errors=ErrorsMode.IGNORED)

    def has_work(self, obj: Tracked) -> bool:
        """Tell whether anything is to be done about the newest state of an object."""
        if obj.events or obj.unsaved is not None:
            return True
        try:
            obj.plan = make_plan(self.ctx, obj)
        except Exception:  # noqa: BLE001  a filter has failed: it is reported in process()
            return True
        if obj.plan is None:
            obj.initial = False
        return obj.plan is not None

    def forget(self, obj: Tracked) -> None:
        """Drop what is remembered of an object that is gone."""
        self.ctx.operator.memos.forget(obj.uid)

    async def process(self, obj: Tracked, *, epoch: int) -> float | None:
        """Do what is to be done about the newest state of an object.

        Guarantees: errors of the API server, of filters, and of the framework itself end here;
        the object is come back to after ``settings.batching.error_delays``.

        Returns:
            The seconds after which to come back even if nothing changes; None if there is no need.
        """
        try:
            await self._show_events(obj)
            await self._catch_up(obj, epoch=epoch)
            plan = self._take_plan(obj)
            if plan is None:
                delay, obj.initial = None, False
            else:
                delay = await self._carry_out(obj, plan, epoch=epoch)
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

    async def _carry_out(self, obj: Tracked, plan: Plan, *, epoch: int) -> float | None:
        """Call the handlers, record their progress, and write it all down in one patch."""
        cause = plan.cause
        if cause.reason is Reason.DELETE and obj.is_released:
            await self._release(obj, epoch=epoch)
            return None
        if plan.finalizers is not None:
            added = len(plan.finalizers) > len(cause.body.meta.finalizers)
            cause.logger.debug("Adding the finalizer." if added else "Removing the finalizer.")
            await apply_finalizers(self.ctx, obj, cause.body, plan.finalizers, epoch=epoch)
            return None
        title = _TITLES[cause.reason]
        cause.logger.debug("%s is in progress.", title.capitalize())
        storage = self.ctx.operator.settings.persistence.progress_storage
        progress = Progress.restore(
            plan.handlers, body=cause.body, storage=storage, purpose=cause.reason.value
        )
        cycle = obj.cycle = _adjust_cycle(plan, progress)
        outcomes = await self._execute(plan, cycle, progress)
        deliver_results(outcomes, cause.patch)
        if progress.is_finished:
            self._conclude(obj, plan, progress)
        else:
            progress.store(body=cause.body, patch=cause.patch, storage=storage)
        await self._save(obj, cause.patch, epoch=epoch)
        if obj.is_released:
            await self._release(obj, epoch=epoch)
        return progress.delay

    async def _execute(self, plan: Plan, cycle: Cycle, progress: Progress) -> dict[str, Outcome]:
        """Call the handlers; those that are behind the others hear of what they have missed."""
        called = [handler for handler in plan.handlers if handler.id in progress]
        behind = [handler for handler in called if handler.id in cycle.bases]
        others = [handler for handler in called if handler.id not in cycle.bases]
        outcomes = await execute(others, plan.cause, progress, self._terms)
        for handler in behind:
            cause = plan.cause.since(cycle.bases[handler.id])
            outcomes |= await execute([handler], cause, progress, self._terms)
        return outcomes

    def _conclude(self, obj: Tracked, plan: Plan, progress: Progress) -> None:
        """End the cycle: what was handled is remembered on the object, the progress is not."""
        cause, persistence = plan.cause, self.ctx.operator.settings.persistence
        owned = (handler.id for handler in self.ctx.handlers.changes)
        progress.purge(
            owned, body=cause.body, patch=cause.patch, storage=persistence.progress_storage
        )
        if plan.handlers:
            succeeded, failed = progress.count()
            title = _TITLES[cause.reason].capitalize()
            cause.logger.info("%s is processed: %d succeeded; %d failed.", title, succeeded, failed)
        essence = cause.new if obj.cycle is None else obj.cycle.essence
        if cause.reason is not Reason.DELETE and cause.old != essence:
            persistence.diffbase_storage.store(body=cause.body, patch=cause.patch, essence=essence)
        obj.is_released = cause.reason is Reason.DELETE
        obj.cycle = None
        obj.initial = False

    async def _save(self, obj: Tracked, patch: Patch, *, epoch: int) -> None:
        """Write a patch now, or, if the API server is away, before anything else next time.

        So handlers are not called again for what is only not written down yet.
        """
        if not patch:
            return
        obj.unsaved = None
        try:
            await save_patch(self.ctx, obj, patch, epoch=epoch)
        except (APIError, LoginError) as exc:
            if getattr(exc, "status", 0) not in _FINAL:
                obj.unsaved = patch
            raise

    async def _catch_up(self, obj: Tracked, *, epoch: int) -> None:
        if obj.unsaved is not None and obj.event_type != "DELETED":
            await self._save(obj, obj.unsaved, epoch=epoch)

    async def _release(self, obj: Tracked, *, epoch: int) -> None:
        """Let a deleted object go, whatever else is changed in it at the same time.

        The deletion handlers have run and are not to run again, so a conflict is resolved here.
        """
        persistence = self.ctx.operator.settings.persistence
        while obj.raw is not None and obj.event_type != "DELETED":
            body = Body(obj.raw)
            left = [name for name in body.meta.finalizers if name != persistence.finalizer]
            if len(left) == len(body.meta.finalizers):
                return
            if await apply_finalizers(self.ctx, obj, body, left, epoch=epoch):
                return
            if not await obj.wait_for_news(persistence.consistency_timeout):
                return

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
            outcomes: dict[str, Outcome] = await execute(
                handlers, cause, Progress.start(handlers), self._event_terms
            )
            deliver_results(outcomes, cause.patch)
            if cause.patch and event_type != "DELETED":
                try:
                    await save_patch(self.ctx, obj, cause.patch, epoch=-1)
                except (APIError, LoginError) as exc:
                    cause.logger.warning("The patch of event handlers is not applied: %s", exc)

    def _throttle(self, obj: Tracked, exc: Exception) -> float | None:
        """Leave an object alone for a while after an error that is not of its handlers."""
        delays: float | Iterable[float] = self.ctx.operator.settings.batching.error_delays
        delay = obj.throttle(delays)
        pause = "until its next change" if delay is None else f"for {delay:g} seconds"
        expected = isinstance(exc, (APIError, LoginError))
        logger.error(
            "%s %s is left alone %s: %s",
            self.ctx.resource.kind or self.ctx.resource.plural,
            obj,
            pause,
            exc if expected else repr(exc),
            exc_info=None if expected else exc,
        )
        return delay


def _is_for(handler: EventHandler, cause: EventCause) -> bool:
    """Check the filters of an event handler; if they fail, only this handler misses the event."""
    try:
        return matches(handler, cause)
    except Exception:
        cause.logger.exception("The filter of %s has failed.", handler)
        return False


def _adjust_cycle(plan: Plan, progress: Progress) -> Cycle:
    """Begin a cycle, or bring the present one up to the newest state of the object."""
    cycle = plan.cycle
    if cycle is None:
        return Cycle(plan.cause.reason, plan.cause.new, frozenset(progress))
    for key in plan.missed:
        if progress[key].is_finished:
            progress.restart(key)
            cycle.bases[key] = cycle.essence
        elif key in plan.late and progress[key].retries:
            cycle.bases.setdefault(key, cycle.essence)
        elif key in plan.late:
            progress.drop(key)  # it has seen nothing of what is undone by now
    if plan.cause.reason is Reason.UPDATE:
        cycle.essence = plan.cause.new
    return cycle
