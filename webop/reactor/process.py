"""Process one object after a change.

Flow: :meth:`Processor.process` → :func:`webop.reactor.cycle.handle_change` →
:func:`webop.handling.execute.execute` → the user's function.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from webop.client.events import get_uid
from webop.errors import APIError
from webop.handling.call_options import CallOptions
from webop.handling.causes import ChangeCause, EventCause, ResourceCause
from webop.handling.execute import deliver_results, execute
from webop.handling.filters import matches
from webop.handling.handler_states import Progress
from webop.handling.handlers import ErrorsMode, EventHandler, Reason
from webop.handling.indexes import index_object
from webop.handling.invocation import is_async
from webop.handling.registry import deduplicated
from webop.handling.threads import Pool
from webop.objects.body import Body, RawEvent, RawEventType
from webop.objects.patch import Patch
from webop.posting import LocalObjectLogger
from webop.reactor.cycle import handle_change
from webop.reactor.decision import Decision, decide
from webop.reactor.resource_context import ResourceContext
from webop.reactor.schedules import start_in_background
from webop.reactor.tracking import Pending, Tracked, Work
from webop.reactor.writing import (
    Failure,
    classify,
    postpone,
    put_finalizers,
    read,
    release,
    save,
    save_pending,
    write_later,
)
from webop.tracing import NOT_TRACED, Description, open_span

logger = logging.getLogger(__name__)

_HEAD_START = 0.05  # seconds; for event handlers, before the change is handled
_STATES_INDEXED = 3  # at most, before the handlers of an object are called


class Processor:
    """The work on the objects of one resource; see :class:`webop.reactor.dispatcher`."""

    def __init__(self, ctx: ResourceContext, *, spawn: Callable[..., asyncio.Task[None]]) -> None:
        self.ctx = ctx
        self._spawn = spawn
        settings = ctx.operator.settings
        self._event_options = CallOptions(
            settings,
            default_errors=ErrorsMode.IGNORED,
            counters=ctx.operator.counters,
            may_continue=lambda: ctx.operator.pausing.is_active,
        )
        self._index_options = replace(self._event_options, success_level=logging.DEBUG)

    @property
    def event_pool(self) -> Pool | None:
        """The threads of event handlers, if any of them is sync."""
        has_sync = any(not is_async(handler.fn) for handler in self.ctx.handlers.events)
        return self.ctx.operator.settings.execution if has_sync else None

    def decide(self, obj: Tracked) -> Decision | None:
        """Return what must be done about the newest state of an object; None for nothing.

        Raises:
            Exception: a filter has failed.
        """
        decision = decide(self.ctx, obj)
        obj.needs_resume &= decision is not None
        return decision

    async def read(self, obj: Tracked) -> dict[str, Any] | None:
        """Read a state that was dropped from memory; None if the object is gone.

        Raises:
            APIError: it cannot be read.
        """
        return await read(self.ctx, obj)

    async def index(self, raw: dict[str, Any]) -> None:
        """Update the indexes with a state of an object; log errors of indexers."""
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
        await index_object(handlers, cause, get_uid(raw), indexes, self._index_options)

    async def index_newest(self, obj: Tracked) -> None:
        """Put the newest state of an object into the indexes.

        If states arrive faster than they can be indexed, handlers stop waiting: they can see a
        newer state than the indexes.
        """
        obj.indexing = obj.indexing or asyncio.Lock()
        async with obj.indexing:
            for _ in range(_STATES_INDEXED):
                if not obj.is_unindexed:
                    break
                obj.is_unindexed = False
                if obj.raw is not None and not obj.is_gone:
                    await self.index(obj.raw)

    def withdraw(self, obj: Tracked) -> None:
        """Remove an object that is gone or no longer watched from the indexes."""
        if self.ctx.handlers.indexers:
            self.ctx.operator.indices.discard(obj.uid)

    def forget(self, uid: str) -> None:
        """Drop everything else about an object that is gone."""
        self.ctx.operator.memos.forget(uid)

    async def process(self, obj: Tracked, decision: Decision | None) -> float | None:
        """Process the newest state of an object; decide again if the decision is outdated.

        Returns:
            The seconds until the next work even if nothing changes; None for none.

        Raises:
            Exception: of the API server, a filter, or the framework; see :meth:`on_error`.
        """
        ctx, work, delay = self.ctx, obj.open_work(), None
        if obj.event_task is not None:
            await asyncio.wait({obj.event_task}, timeout=_HEAD_START)
        if not work.is_denied:
            await save_pending(ctx, obj)
            if (rest := obj.backoff_left()) or obj.suspected_deleted:
                return rest
        if obj.controller.is_stopped and not work.is_released:
            return None  # a handler that begins now may not end in time
        if decision is None or decision.cause.body.raw is not obj.raw:
            decision = self.decide(obj)
        if decision is None:
            await save_pending(ctx, obj)
        else:
            cause, finalizers = decision.cause, decision.finalizers
            self._adjust_background(obj, decision)
            if cause.reason is Reason.DELETE and work.is_released:
                await release(ctx, obj)
            elif finalizers is not None:
                added = len(finalizers) > len(cause.body.meta.finalizers)
                cause.logger.debug("Adding the finalizer." if added else "Removing the finalizer.")
                await put_finalizers(ctx, obj, cause.body, finalizers)
            elif decision.has_changes:
                delay = await self._handle_change(ctx, obj, work, decision)
            else:
                obj.needs_resume = False
        if not (obj.has_pending and obj.backoff_left()):
            work.backoff, work.paused_until, work.trouble = None, 0.0, ("", "")
        return delay

    async def _handle_change(
        self, ctx: ResourceContext, obj: Tracked, work: Work, decision: Decision
    ) -> float | None:
        """Call the handlers that are due, and write their outcomes and patches."""
        cause = decision.cause
        with open_span(_describe, cause, work) or NOT_TRACED as span:
            with ctx.slots.running_handlers():
                delay = await handle_change(ctx, obj, work, decision)
            await save(ctx, obj, Pending(cause.patch, cause.own))
            if work.is_released:
                await release(ctx, obj)
            if span is not None:
                span.conclude("done" if delay is None else "retry")
        return delay

    def _adjust_background(self, obj: Tracked, decision: Decision) -> None:
        """Stop and start daemons and timers; they start only after the finalizer was added."""
        running = {} if obj.background is None else obj.background.tasks
        for key in decision.stopped:
            if key in running:
                running[key].stop(decision.why)
        if decision.finalizers is None and self.ctx.operator.pausing.is_active:
            for handler in decision.spawned:
                start_in_background(self.ctx, obj, handler, spawn=self._spawn)
            obj.daemons_started = True

    async def show_event(self, obj: Tracked, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Call the handlers of raw events; their errors are logged and ignored (HND-27)."""
        ctx, body = self.ctx, Body(raw)
        event: RawEvent = {"type": event_type, "object": raw}  # type: ignore[typeddict-item]
        cause = EventCause(
            logger=LocalObjectLogger(body=body, settings=ctx.operator.settings),
            memo=ctx.operator.memos.recall(obj.uid),
            indices=ctx.operator.indices,
            resource=ctx.resource,
            body=body,
            patch=Patch(body=body, has_generations=ctx.has_status),
            type=event_type,
            event=event,
        )
        handlers = [h for h in deduplicated(ctx.handlers.events) if _is_for(h, cause)]
        progress = Progress.start(handlers)
        options = self._event_options
        if event_type == "DELETED":  # there is no later event
            options = replace(options, may_continue=lambda: True)
        deliver_results(await execute(handlers, cause, progress, options), cause.patch)
        if not cause.patch or event_type == "DELETED":
            return
        try:
            level = ctx.slots.choose_level
            pending = Pending(cause.patch, Patch())
            await save(ctx, obj, pending, choose_level=lambda _: level("denied to events"))
        except APIError as exc:
            text = "Cannot write the patch of event handlers yet: %s"
            cause.logger.log(level("events"), text, exc)
            write_later(ctx, obj, exc)

    def on_error(self, obj: Tracked, exc: Exception) -> float | None:
        """Choose the pause of an object after an error outside of its handlers; log the error once.

        During the pause, only the handlers of raw events are called.
        """
        delay, work = postpone(self.ctx, obj, exc), obj.open_work()
        hope = "No retry before its next change." if delay is None else f"Retrying in {delay:g} s."
        is_expected = isinstance(exc, APIError)
        is_away = is_expected and classify(exc) is not Failure.DENIED
        known, work.trouble = work.trouble, (type(exc).__name__, repr(exc))
        level = logging.ERROR if work.trouble != known else logging.DEBUG
        logger.log(
            self.ctx.slots.choose_level("away") if is_away else level,
            "%s %s",
            exc if is_expected else " ".join([f"{exc!r}.", *getattr(exc, "__notes__", ())]),
            hope,
            exc_info=None if is_expected else exc,
            extra=self.ctx.refer_to(obj),
        )
        return delay


def _describe(cause: ChangeCause, work: Work) -> Description:
    """Return the description of a handling cycle for traces."""
    reason = cause.reason.value
    attributes = {**cause.identify(), "webop.reason": reason}
    parent = None if work.cycle is None else work.cycle.trace
    return Description(f"{reason} {cause.resource.plural_name}", attributes, parent=parent)


def _is_for(handler: EventHandler, cause: EventCause) -> bool:
    """Check the filters of an event handler; if they fail, only this handler misses the event."""
    try:
        return matches(handler, cause)
    except Exception:
        cause.logger.exception("The filter of %s has failed.", handler)
        return False
