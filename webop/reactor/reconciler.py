"""Process one object after a change.

Flow: :meth:`Reconciler.reconcile` → :func:`webop.reactor.handling_cycle.handle_change` →
:func:`webop.calls.execution.execute` → the user's function.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from webop.calls.error_policy import Outcome
from webop.calls.execution import execute
from webop.calls.progress import Progress, fetch_states
from webop.calls.shared_options import CallOptions
from webop.client.watch_events import parse_version
from webop.context.indexes import index_object
from webop.events.loggers import LocalObjectLogger
from webop.handlers.causes import ChangeCause, EventCause, ResourceCause
from webop.handlers.filters import matches
from webop.handlers.model import ErrorsMode, EventHandler, MappingHandler, Reason
from webop.handlers.registry import deduplicated
from webop.models.validity_condition import build_validity
from webop.objects.body import Body, RawEvent, RawEventType
from webop.objects.fields import clone
from webop.objects.patch import Patch
from webop.objects.status_conditions import put_condition
from webop.reactor import daemons
from webop.reactor.decision import Decision, decide
from webop.reactor.failures import Pause
from webop.reactor.handling_cycle import handle_change
from webop.reactor.object_writer import open_writer, read
from webop.reactor.reconcile_calls import call_due, identify_content
from webop.reactor.resource_context import ResourceContext
from webop.reactor.store import NOTHING, State, WatchedObject, Work
from webop.telemetry.counters import FailedCall
from webop.telemetry.tracing import NOT_TRACED, Description, open_span

logger = logging.getLogger(__name__)


class Reconciler:
    """The work on the objects of one resource, whatever handlers it has.

    :mod:`webop.reactor.controller` says when. Handlers that are reconcilers have
    :mod:`webop.reactor.reconcile_calls`.
    """

    def __init__(self, ctx: ResourceContext, *, spawn: Callable[..., asyncio.Task[None]]) -> None:
        self.ctx = ctx
        self._spawn = spawn
        self._child_names = ctx.operator.child_names  # each event of a child needs them
        settings = ctx.operator.settings
        self._event_options = CallOptions(
            settings,
            default_errors=ErrorsMode.IGNORED,
            counters=ctx.operator.counters,
            may_continue=lambda: ctx.operator.pausing.is_active,
        )
        self._index_options = replace(self._event_options, success_level=logging.DEBUG)

    def decide(self, obj: WatchedObject) -> Decision | None:
        """Return what must be done about the newest state of an object; None for nothing.

        Raises:
            Exception: a filter has failed.
        """
        decision = decide(self.ctx, obj)
        obj.needs_resume &= decision is not None
        if (misfits := self.ctx.operator.counters.misfits) and not (decision and decision.misfit):
            misfits.pop(obj.uid, None)
        return decision

    async def read(self, obj: WatchedObject) -> dict[str, Any] | None:
        """Read a state that was dropped from memory; None if the object is gone.

        Raises:
            APIError: it cannot be read.
        """
        return await read(self.ctx, obj)

    async def index(self, obj: WatchedObject) -> None:
        """Update the indexes with the newest state of an object; log errors of indexers."""
        if obj.raw is None or obj.is_gone:
            return
        body, handlers = Body(obj.raw), self.ctx.handlers
        cause = ResourceCause(
            logger=LocalObjectLogger(body=body, settings=self.ctx.operator.settings),
            memo=self.ctx.operator.memos.recall(obj.uid),
            indices=self.ctx.operator.indices,
            resource=self.ctx.resource,
            body=body,
            patch=Patch(body=body),
        )
        await index_object(
            handlers.indexers,
            cause,
            obj.uid,
            self.ctx.operator.indices,
            self._index_options,
            is_wanted=lambda: not obj.is_gone and handlers is self.ctx.handlers,
        )

    def withdraw(self, obj: WatchedObject) -> None:
        """Remove an object that is gone or no longer watched from the indexes."""
        if self.ctx.handlers.indexers:
            self.ctx.operator.indices.discard(obj.uid)

    def forget(self, uid: str) -> None:
        """Drop everything else about an object that is gone."""
        self.ctx.operator.memos.forget(uid)
        self.ctx.operator.children.forget(uid)
        self.ctx.operator.counters.misfits.pop(uid, None)

    def may_have_left(self, obj: WatchedObject | None, raw: dict[str, Any]) -> bool:
        """Return whether an object that seems deleted perhaps has only left the selectors.

        A watch shows both alike. Here, only objects matter that are being handled, or can have the
        finalizer or records of handlers, which must be removed. A body without a version says
        nothing about that.

        Args:
            obj: the known object; None if it was not known.
            raw: its last state, as the watch shows it.
        """
        handlers, persistence = self.ctx.handlers, self.ctx.operator.settings.persistence
        if not self.ctx.build_selectors():
            return False
        if obj is not None:
            writer = (obj.work or NOTHING).writer
            if writer is not None and writer.has_removed_finalizer:
                return False
            if obj.state is State.RUNNING or obj.has_unwritten:
                return True
        if not (handlers.uses_finalizers or handlers.changes):
            return False
        body, version = Body(raw), parse_version(raw)
        if persistence.finalizer in body.meta.finalizers:
            return True
        if obj is not None and (not version or version < obj.version or obj.is_writing):
            return True  # the finalizer or a record can have been added later
        storage = persistence.progress_storage
        return bool(fetch_states(handlers.changes, body=body, storage=storage))

    async def clean_left(self, obj: WatchedObject) -> float:
        """Remove the finalizer and the progress of handlers, if it has only left the selectors.

        The patches of its handlers are written before. The daemons and timers must have ended: the
        end of the last one leads here again.

        Returns:
            The seconds until the next attempt; 0 for none: the object is forgotten, or its daemons
            must end before.

        Raises:
            APIError: the object cannot be read or written.
        """
        ctx, persistence = self.ctx, self.ctx.operator.settings.persistence
        if obj.has_daemons:
            return 0
        raw = await read(ctx, obj)
        if raw is not None and obj.may_have_left:  # else it has come back meanwhile
            work, writer = obj.open_work(), open_writer(ctx, obj)
            work.cycle = None
            recorded, storage = Body(writer.add_records(raw)), persistence.progress_storage
            progress = Progress(fetch_states(ctx.handlers.changes, body=recorded, storage=storage))
            if progress:
                owned, sent = [*progress], Body(writer.add_sent_records(raw))
                progress.purge(owned, body=sent, patch=writer.records, storage=storage)
            if not await writer.write() and (delay := obj.backoff_left()):
                return delay
            if obj.is_gone and persistence.finalizer in Body(raw).meta.finalizers:
                await writer.set_finalizer(is_wanted=False)
            text = "%s has left the selectors of %s: webop forgets it."
            logger.debug(text, obj, ctx.resource, extra=ctx.refer_to(obj))
        obj.may_have_left = False
        return 0

    async def reconcile(self, obj: WatchedObject, decision: Decision | None) -> float | None:
        """Process the newest state of an object; decide again if the decision is outdated.

        Returns:
            The seconds until the next work even if nothing changes; None for none.

        Raises:
            Exception: of the API server, a filter, or the framework; see :meth:`on_error`.
        """
        work, delay = obj.open_work(), None
        if work.pause.left or (work.writer is not None and not await work.writer.write()):
            return obj.backoff_left() or None
        if obj.is_gone or (obj.controller.holds and not work.is_deletion_handled):
            return None  # a handler that begins now may not end in time, or must wait
        ctx = self.ctx  # the kind can have changed meanwhile
        cause = None if decision is None else decision.cause
        if cause is None or cause.body.raw is not obj.raw or cause.resource is not ctx.resource:
            decision = self.decide(obj)
        if decision is not None:
            cause, is_wanted = decision.cause, decision.wants_finalizer
            self._adjust_daemons(obj, decision)
            if decision.is_mended:
                await self._write_validity(obj, cause, None)
            if cause.reason is Reason.DELETE and work.is_deletion_handled:
                pass  # the writer removes the finalizer when the last daemon has ended
            elif is_wanted is not None:
                text = "Adding the finalizer." if is_wanted else "Removing the finalizer."
                cause.logger.debug(text)
                await open_writer(ctx, obj).set_finalizer(is_wanted=is_wanted)
            elif decision.misfit is not None:
                await self._report_misfit(obj, cause, str(decision.misfit))
            elif decision.has_changes:
                delay = await self._handle_change(ctx, obj, work, decision)
            else:
                obj.needs_resume = False
            if decision.reconcilers and decision.misfit is None and is_wanted is None:
                rest = await call_due(ctx, obj, decision.reconcilers)
                delay = min((one for one in (delay, rest) if one is not None), default=None)
        if work.pause.has_failed:
            work.pause = Pause()
        return delay

    async def _handle_change(
        self, ctx: ResourceContext, obj: WatchedObject, work: Work, decision: Decision
    ) -> float | None:
        """Call the handlers that are due, and write their outcomes and patches."""
        with open_span(_describe, decision.cause, work) or NOT_TRACED as span:
            try:
                with ctx.queue.running_handlers():
                    delay = await handle_change(ctx, obj, work, decision)
                is_written = await open_writer(ctx, obj).write()
            except asyncio.CancelledError:
                await open_writer(ctx, obj).write()
                raise
            if span is not None:
                span.conclude("done" if delay is None else "retry")
        return delay if is_written else obj.backoff_left() or None

    async def _report_misfit(self, obj: WatchedObject, cause: ChangeCause, problem: str) -> None:
        """Log once why an object does not fit its model, and write it into its conditions."""
        # The reason can differ at each look, as that of a validator with the time in its text.
        state = identify_content(cause.body, has_generations=self.ctx.has_status)
        misfits, kind = self.ctx.operator.counters.misfits, cause.resource.plural_name
        if obj.uid in misfits and misfits[obj.uid][1] == state:
            return
        what = "(model)", "MisfitError", time.monotonic()
        misfits[obj.uid] = FailedCall(kind, obj.namespace, obj.name, *what), state
        text = "The object does not fit the model of its handlers, which wait until it does: %s"
        cause.logger.error(text, problem, extra={"k8s_reason": "Misfit"})
        if self.ctx.handlers.reports_misfits and cause.unconverted is None:
            await self._write_validity(obj, cause, problem)

    async def _write_validity(
        self, obj: WatchedObject, cause: ChangeCause, problem: str | None
    ) -> None:
        condition = build_validity(problem, cause.patch.generation)
        writer = open_writer(self.ctx, obj)
        writer.take(Patch(fns=[partial(put_condition, condition=condition)]))
        await writer.write()

    def _adjust_daemons(self, obj: WatchedObject, decision: Decision) -> None:
        """Stop and start daemons and timers; they start only after the finalizer was added."""
        if obj.daemons is not None:
            obj.daemons.stop(decision.why, decision.stopped)
        if decision.wants_finalizer is None and self.ctx.operator.pausing.is_active:
            for handler in decision.spawned:
                daemons.start(self.ctx, obj, handler, spawn=self._spawn)

    async def show_event(self, obj: WatchedObject) -> None:
        """Call event handlers with the newest state; their errors are logged and ignored."""
        ctx, event_type, raw = self.ctx, obj.event_type, clone(obj.raw or obj.build_tombstone())
        event: RawEvent = {"type": event_type, "object": raw}
        body = Body(raw)
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
        mappings = [h for h in handlers if isinstance(h, MappingHandler)]
        progress = Progress.start(handlers)
        options = self._event_options
        if event_type == "DELETED":  # there is no later event
            options = replace(options, may_continue=lambda: True)
        with ctx.queue.running_handlers():
            outcomes = await execute(handlers, cause, progress, options)
        for mapping in mappings:
            self._call_mapped(mapping, outcomes.get(mapping.id), cause)
        if not cause.patch or event_type == "DELETED":
            return
        writer = open_writer(ctx, obj)
        writer.take(cause.patch)
        await writer.write()

    def _call_mapped(
        self, mapping: MappingHandler, outcome: Outcome | None, cause: EventCause
    ) -> None:
        """Call the reconciler for the objects that a function of ``watches=`` has named.

        If it has failed, it can be any object: all are called.
        """
        if outcome is None:
            return
        children, namespace = self.ctx.operator.children, cause.body.meta.namespace
        kind = self.ctx.resource.plural_name
        try:
            if not outcome.message:
                children.call_named(mapping.parent, outcome.result, kind, namespace)
        except TypeError as exc:
            outcome = replace(outcome, message=str(exc))
            cause.logger.error("%s: %s", mapping, exc)  # noqa: TRY400  the text is enough
        if outcome.message:
            children.call_all_soon(mapping.parent, kind)

    def note_child(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Accept a state of a child of a reconciler, and drop what only this needs."""
        ctx, operator = self.ctx, self.ctx.operator
        is_read = ctx.handlers.reads_children
        kind = ctx.resource.plural_name
        operator.children.note(kind, event_type, raw, self._child_names, is_read=is_read)
        if not operator.settings.watching.managed_fields:
            raw["metadata"].pop("managedFields", None)

    def on_error(self, obj: WatchedObject, exc: Exception) -> float | None:
        """Begin a pause of an object after an error outside of its handlers.

        During the pause, only the handlers of raw events are called.
        """
        return obj.open_work().pause.begin(self.ctx, obj, exc)


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
