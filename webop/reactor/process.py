"""What is done about one object when it has changed: the whole story on one screen.

Flow: :meth:`Processor.process` → :func:`webop.reactor.cycles.handle_change` →
:func:`webop.handling.execute.execute` → the user's function.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from webop.errors import APIError, LoginError
from webop.handling.causes import EventCause, ResourceCause
from webop.handling.execute import deliver_results, execute
from webop.handling.filters import matches
from webop.handling.handlers import ErrorsMode, EventHandler, Reason
from webop.handling.indexing import index_object
from webop.handling.progress import Progress
from webop.handling.registry import deduplicated
from webop.handling.terms import Terms
from webop.objects.body import Body, RawEvent, RawEventType
from webop.objects.patch import Patch
from webop.posting import LocalObjectLogger
from webop.reactor.cycles import handle_change
from webop.reactor.planning import Plan, ResourceContext, make_plan
from webop.reactor.schedules import start_in_background
from webop.reactor.tracking import NOTHING, Pending, Tracked, get_uid
from webop.reactor.writing import (
    Failure,
    choose_level,
    find_pause,
    judge,
    put_finalizers,
    read,
    release,
    save,
    save_pending,
)

logger = logging.getLogger(__name__)

_HEAD_START = 0.05  # seconds; for handlers of an event, before the change is handled


class Processor:
    """The work on the objects of one resource; see :class:`webop.reactor.dispatcher`."""

    def __init__(self, ctx: ResourceContext, *, spawn: Callable[..., asyncio.Task[None]]) -> None:
        self.ctx = ctx
        self.wants_every_event = bool(ctx.handlers.events)
        self.has_indexes = bool(ctx.handlers.indexers)
        self._spawn = spawn
        settings = ctx.operator.settings
        self._event_terms = Terms(settings, default_errors=ErrorsMode.IGNORED)
        self._index_terms = replace(self._event_terms, success_level=logging.DEBUG)

    def plan(self, obj: Tracked) -> Plan | None:
        """Return what is to be done about the newest state of an object; None if nothing is.

        Raises:
            Exception: a filter has failed.
        """
        plan = make_plan(self.ctx, obj)
        if plan is None:
            obj.initial = False
        return plan

    async def read(self, obj: Tracked) -> dict[str, Any] | None:
        """Return a state that had to be dropped from memory; None if it cannot be had."""
        try:
            return await read(self.ctx, obj)
        except (APIError, LoginError) as exc:
            said, extra = "An event of %s is skipped: %s", self.ctx.refer_to(obj)
            logger.warning(said, obj, exc, extra=extra)
            return None

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

    async def process(self, obj: Tracked, plan: Plan | None) -> float | None:
        """Do what is to be done about the newest state of an object.

        Guarantees: errors of the API server, of filters, and of the framework itself end here.
        The object is worked on again after a pause; what happens to it until then is only shown
        to the handlers of raw events.

        Args:
            obj: the object.
            plan: what is to be done, if that is known already.

        Returns:
            The seconds after which to come back even if nothing changes; None if there is no need.
        """
        try:
            if obj.text is not None:  # the state had to be dropped from memory
                raw = await read(self.ctx, obj)
                obj.text = None
                if raw is not None and obj.raw is None:  # or else something newer has come
                    obj.accept(obj.event_type, raw)
                    obj.is_dirty = False
            if obj.is_unindexed:
                obj.is_unindexed = False
                if obj.raw is not None and not obj.is_gone:
                    await self.index(obj.raw)
            if obj.spying is not None:
                await asyncio.wait({obj.spying}, timeout=_HEAD_START)
            pending = (obj.work or NOTHING).pending
            if pending is not None and not pending.is_denied:
                await save_pending(self.ctx, obj)
            if plan is None or plan.cause.body.raw is not obj.raw:
                plan = self.plan(obj)
            delay = None
            if plan is None:
                await save_pending(self.ctx, obj)
            else:
                delay = await self._carry_out(obj, plan)
        except Exception as exc:  # noqa: BLE001  one object must not stop the others
            return self._rest(obj, exc)
        if obj.work is not None:
            obj.work.backoff, obj.work.paused_until = None, 0.0
        return delay

    async def _carry_out(self, obj: Tracked, plan: Plan) -> float | None:
        """Call the handlers, record their progress, and write it all down in one patch."""
        cause, work = plan.cause, obj.open_work()
        running = {} if obj.background is None else obj.background.tasks
        for key in plan.stopped:
            if key in running:
                running[key].stop(plan.why)
        if plan.finalizers is None and self.ctx.operator.duty.is_active:
            for handler in plan.spawned:
                start_in_background(self.ctx, obj, handler, spawn=self._spawn)
            obj.is_provided = True
        if cause.reason is Reason.DELETE and work.is_released:
            await release(self.ctx, obj)
        elif plan.finalizers is not None:
            added = len(plan.finalizers) > len(cause.body.meta.finalizers)
            cause.logger.debug("Adding the finalizer." if added else "Removing the finalizer.")
            await put_finalizers(self.ctx, obj, cause.body, plan.finalizers)
        elif not plan.has_changes:
            obj.initial = False
        else:
            with self.ctx.room.running_handlers():
                delay = await handle_change(self.ctx, obj, work, plan)
            await save(self.ctx, obj, Pending(cause.patch, cause.own))
            if work.is_released:
                await release(self.ctx, obj)
            return delay
        return None

    async def show_event(self, obj: Tracked, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Call the handlers of raw events; their errors are logged and forgotten (HND-27)."""
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
        progress = Progress.start(handlers)
        deliver_results(await execute(handlers, cause, progress, self._event_terms), cause.patch)
        if not cause.patch or event_type == "DELETED":
            return
        try:
            await save(self.ctx, obj, Pending(cause.patch, Patch()))
        except (APIError, LoginError) as exc:
            level = choose_level(self.ctx, obj)
            cause.logger.log(level, "The patch of event handlers is not written yet: %s", exc)
            obj.wake()

    def _rest(self, obj: Tracked, exc: Exception) -> float | None:
        """Choose the pause of an object after an error that is not of its handlers; log it."""
        delay, work = find_pause(self.ctx, obj, exc), obj.open_work()
        if delay is not None and not (work.pending is not None and work.pending.is_denied):
            work.paused_until = asyncio.get_running_loop().time() + delay
        hope = "No retry before its next change." if delay is None else f"Retrying in {delay:g} s."
        is_expected = isinstance(exc, (APIError, LoginError))
        is_away = is_expected and judge(exc) is not Failure.DENIED
        logger.log(
            choose_level(self.ctx, obj) if is_away else logging.ERROR,
            "%s %s: %s %s",
            self.ctx.resource.kind or self.ctx.resource.plural,
            obj,
            exc if is_expected else " ".join([f"{exc!r}.", *getattr(exc, "__notes__", ())]),
            hope,
            exc_info=None if is_expected else exc,
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
