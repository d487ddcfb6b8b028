"""Run daemons and timers: delays, intervals, idle times, retries.

Flow: :func:`run_in_background` → :func:`webop.handling.execute.attempt` → the user's function;
then its result and its patch are written. Chapters "Timers" and "Daemons".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from webop.errors import APIConflictError, APIError
from webop.handling.call_options import CallOptions
from webop.handling.cancellation import convert_exception
from webop.handling.causes import BackgroundCause
from webop.handling.execute import attempt, deliver_results
from webop.handling.handler_states import HandlerState, now
from webop.handling.handlers import BackgroundHandler, TimerHandler
from webop.handling.invocation import is_async
from webop.handling.policy import Outcome
from webop.handling.stopping import (
    AsyncDaemonStopped,
    DaemonStoppingReason,
    Stopper,
    SyncDaemonStopped,
)
from webop.objects.fields import clone
from webop.objects.patch import Patch
from webop.posting import ObjectLogger
from webop.reactor import writing
from webop.reactor.background import Background, BackgroundTask
from webop.reactor.resource_context import ResourceContext
from webop.reactor.tracking import NOTHING, Pending, Tracked

_CHANGE_POLLING = 0.1  # seconds; between checks for a change if the idle time is 0


@dataclass(slots=True)
class Run:
    """One running daemon or timer."""

    ctx: ResourceContext
    obj: Tracked
    background: Background
    handler: BackgroundHandler
    stopper: Stopper
    cause: BackgroundCause
    options: CallOptions
    trouble: str = ""

    def deliver(self, outcome: Outcome) -> None:
        """Add the result to the patch, unless the object already has it."""
        if outcome.result is None:
            return
        patch = Patch({"status": {self.handler.id: outcome.result}})
        try:
            is_news = bool(patch.as_json_patch(self.cause.body))
        except RecursionError:  # it contains itself; the write drops it with a warning
            is_news = True
        if is_news:
            deliver_results({self.handler.id: outcome}, self.cause.patch)

    async def save(self, attempts: int = writing.ATTEMPTS, *, is_last: bool = False) -> None:
        """Write the patch and clear it; keep functions that could not be applied (PAT-06, PAT-07).

        Args:
            attempts: how often functions are called again if the object changes meanwhile.
            is_last: whether no call follows: then functions are written like the rest of the patch,
                and what is kept by the worker of the object.
        """
        patch, obj = self.cause.patch, self.obj
        known, self.trouble = self.trouble, ""

        def choose_level(reason: str) -> int:
            self.trouble = reason
            return logging.DEBUG if reason == known else logging.ERROR

        merged, later = Patch(dict(patch)), Patch(fns=patch.fns)
        patch.clear()
        if is_last:
            merged, later = Patch(merged, fns=later.fns), Patch()
        try:
            if merged:  # together with pending patches, so that neither is lost
                pending = Pending(merged, Patch())
                await writing.save(self.ctx, obj, pending, choose_level=choose_level)
            elif not (obj.work or NOTHING).is_denied:
                await writing.save_pending(self.ctx, obj)
            if later:
                await writing.patch(self.ctx, obj, later, attempts=attempts)
        except APIConflictError as exc:
            patch.fns.extend(later.fns)
            self.cause.logger.debug("%s", exc)
            if is_last:
                writing.write_later(self.ctx, obj, exc)
        except APIError as exc:
            level = logging.WARNING if str(exc) != known else logging.DEBUG
            if writing.classify(exc) is not writing.Failure.DENIED:
                patch.fns.extend(later.fns)
                level = self.ctx.slots.choose_level("background")
            self.trouble = str(exc)
            self.cause.logger.log(level, "Cannot write the patch of %s: %s", self.handler, exc)
            writing.write_later(self.ctx, obj, exc)

    def save_from_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call :meth:`save` for a sync function, and wait for it."""
        asyncio.run_coroutine_threadsafe(self.save(), loop).result()


def start_in_background(
    ctx: ResourceContext,
    obj: Tracked,
    handler: BackgroundHandler,
    *,
    spawn: Callable[..., asyncio.Task[None]],
) -> None:
    """Start a daemon or a timer for an object, in the task group of its stream."""
    operator = ctx.operator
    if obj.raw is None:
        return
    if obj.background is None:
        obj.background = Background(clone(obj.raw))
    elif not obj.background.tasks:
        obj.background.show(clone(obj.raw))
    background = obj.background

    def end(reason: DaemonStoppingReason) -> None:
        if DaemonStoppingReason.OPERATOR_PAUSING in reason:
            obj.daemons_started = False  # the pause may have ended before it
        obj.wake()

    item = BackgroundTask(
        background, handler, operator.settings.background, name=str(obj), on_end=end
    )
    stopper = item.stopper
    cause = BackgroundCause(
        logger=ObjectLogger(body=background.body, settings=operator.settings),
        memo=operator.memos.recall(obj.uid),
        indices=operator.indices,
        resource=ctx.resource,
        body=background.body,
        patch=Patch(body=background.body, has_generations=ctx.has_status),
        stopped=AsyncDaemonStopped(stopper) if is_async(handler.fn) else SyncDaemonStopped(stopper),
    )
    is_timer = isinstance(handler, TimerHandler)
    options = CallOptions(
        operator.settings,
        success_level=logging.DEBUG if is_timer else logging.INFO,
        counters=operator.counters,
        status=background.standing,
    )
    run = Run(ctx, obj, background, handler, stopper, cause, options)
    loop = asyncio.get_running_loop()
    cause.patch.writer = run.save if is_async(handler.fn) else lambda: run.save_from_thread(loop)
    item.start(spawn, run_in_background(run))


async def run_in_background(run: Run) -> None:
    """Run a daemon or a timer until it ends or is stopped.

    Guarantees: an error in webop ends only this daemon or timer; it is logged.
    """
    state: HandlerState | None = None
    try:
        await _postpone(run)
        while await _is_due(run, is_new=state is None):
            began, seen = asyncio.get_running_loop().time(), run.background.changed_at
            state = state or HandlerState(now())
            outcome = await attempt(run.handler, run.cause, state, run.options)
            run.deliver(outcome)
            is_last = outcome.final and not _is_recurring(run.handler, outcome)
            if is_last and not run.stopper:  # also if it is cancelled before its patch is written
                run.background.finished |= {run.handler.id}
            if run.cause.patch:
                await run.save(1, is_last=is_last)
            if not outcome.final:
                state = state.with_outcome(outcome)
                await run.stopper.sleep(outcome.delay or 0)
            elif isinstance(run.handler, TimerHandler) and not is_last:
                state = None
                await _await_next(run, run.handler, began=began, seen=seen)
            else:
                return
    except Exception:
        run.cause.logger.exception(
            "Bug in webop: %s ended. Please report this with the traceback.", run.handler
        )


def _is_recurring(handler: BackgroundHandler, outcome: Outcome) -> bool:
    """Return whether a new cycle follows: it needs a schedule, and no failure (D-51)."""
    if not isinstance(handler, TimerHandler) or outcome.exception is not None:
        return False
    return handler.interval is not None or handler.idle is not None


async def _is_due(run: Run, *, is_new: bool) -> bool:
    """Wait until the object is idle for long enough; return whether to continue."""
    idle = run.handler.idle if is_new and isinstance(run.handler, TimerHandler) else None
    if idle is not None:
        loop = asyncio.get_running_loop()
        while not run.stopper and (rest := run.background.changed_at + idle - loop.time()) > 0:
            await run.stopper.sleep(rest)
    return not run.stopper


async def _await_next(run: Run, handler: TimerHandler, *, began: float, seen: float) -> None:
    """Sleep until the next regular call; without an interval, until the object changes."""
    if handler.interval is None:
        while run.background.changed_at == seen and not run.stopper:
            await run.stopper.sleep(handler.idle or _CHANGE_POLLING)
    elif handler.sharp and handler.interval:
        elapsed = asyncio.get_running_loop().time() - began
        await run.stopper.sleep(handler.interval - elapsed % handler.interval)
    else:
        await run.stopper.sleep(handler.interval)


async def _postpone(run: Run) -> None:
    """Wait for the initial delay, once per object and process (TMR-10)."""
    name = run.handler.id
    if run.handler.initial_delay is None or name in run.background.postponed:
        return
    await run.stopper.sleep(_find_initial_delay(run))
    if not run.stopper:
        run.background.postponed |= {name}


def _find_initial_delay(run: Run) -> float:
    """Return the seconds before the first call; 0 if a function for them fails."""
    delay = run.handler.initial_delay
    if not callable(delay):
        return delay or 0
    kwargs = run.cause.kwargs | {"param": run.handler.param, "retry": 0}
    moment = now()
    try:
        return float(delay(**kwargs, started=moment, runtime=timedelta(0)))
    except BaseException as exc:
        convert_exception(exc)  # raises Ctrl-C and the end of this task
        run.cause.logger.exception(
            "Cannot compute the initial delay of %s. Using 0 s.", run.handler
        )
        return 0
