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
from webop.handling.handlers import ErrorsMode, Reason
from webop.handling.policy import Outcome
from webop.handling.progress import Progress
from webop.handling.registry import deduplicated
from webop.objects.body import Body, RawEvent
from webop.objects.patch import Patch
from webop.posting import LocalObjectLogger
from webop.reactor.application import apply_finalizers, apply_patch
from webop.reactor.planning import Plan, ResourceContext, make_plan
from webop.reactor.tracking import Cycle, Tracked

logger = logging.getLogger(__name__)

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
        if obj.events:
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
            plan = self._take_plan(obj)
            delay = None if plan is None else await self._carry_out(obj, plan, epoch=epoch)
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
        if obj.cycle is None or plan.is_first:
            obj.cycle = Cycle(cause.reason, cause.new, frozenset(progress))
        outcomes = await execute(plan.handlers, cause, progress, self._terms)
        deliver_results(outcomes, cause.patch)
        if not progress.is_finished:
            progress.store(body=cause.body, patch=cause.patch, storage=storage)
            return await self._save(obj, cause.patch, delay=progress.delay, epoch=epoch)
        self._conclude(obj, plan, progress)
        if cause.reason is not Reason.DELETE:
            return await self._save(obj, cause.patch, delay=None, epoch=epoch)
        await self._save(obj, cause.patch, delay=None, epoch=epoch)
        await self._release(obj, epoch=epoch)
        return None

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
        obj.cycle = None
        obj.initial = False

    async def _save(
        self, obj: Tracked, patch: Patch, *, delay: float | None, epoch: int
    ) -> float | None:
        if patch:
            await apply_patch(self.ctx, obj, patch, epoch=epoch)
        return delay

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
            handlers = [h for h in deduplicated(self.ctx.handlers.events) if matches(h, cause)]
            outcomes: dict[str, Outcome] = await execute(
                handlers, cause, Progress.start(handlers), self._event_terms
            )
            deliver_results(outcomes, cause.patch)
            if cause.patch and event_type != "DELETED":
                await apply_patch(self.ctx, obj, cause.patch, epoch=-1)

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
