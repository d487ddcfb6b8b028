"""The daemons and timers of an object: one loop runs them, and they stop in stages.

:mod:`webop.reactor.decision` decides which must run; :func:`start` starts one. Flow:
:meth:`Daemon.run` → :func:`webop.calls.execution.attempt` → the user's function; then its result
and its patch are written. Chapters "Daemons" and "Timers".
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from webop.aio.backoff import format_pause
from webop.aio.cancellation import convert_exception
from webop.calls.error_policy import Outcome
from webop.calls.execution import attempt
from webop.calls.progress import HandlerState, digest_essence, now
from webop.calls.shared_options import CallOptions
from webop.handlers.causes import BackgroundCause
from webop.handlers.model import BackgroundHandler, TimerHandler
from webop.handlers.retries import choose_backoff
from webop.handlers.stopping import (
    AsyncDaemonStopped,
    DaemonStoppingReason,
    Stopper,
    SyncDaemonStopped,
)
from webop.objects.body import Body
from webop.objects.fields import clone
from webop.reactor.entry import Entry
from webop.reactor.resource_context import ResourceContext
from webop.reactor.writer import ATTEMPTS, take, write

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class Daemon:
    """One running daemon or timer of one object.

    Attributes:
        ctx: the context of the work on the object.
        obj: the object.
        handler: the declaration with the user's function.
        stopper: the flag that asks it to stop.
        cause: the arguments of the calls, with the patch.
        task: where it runs.
        changed_at: since when it is idle, by the loop's clock: the last change of the object's
            essence, or of anything by its own calls. Noted only for timers with ``idle=``.
        essence: the digest of the object's essence.
    """

    ctx: ResourceContext
    obj: Entry
    handler: BackgroundHandler
    stopper: Stopper = field(default_factory=Stopper)
    cause: BackgroundCause = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    changed_at: float = 0.0
    essence: str = ""
    _change: asyncio.Future[None] | None = None
    _alarm: asyncio.TimerHandle | None = None
    _stages: Iterator[float] | None = None

    def __post_init__(self) -> None:
        described = self.ctx.describe(self.obj, self.obj.view or Body({}))
        is_sync = not self.handler.is_async
        stopped = (SyncDaemonStopped if is_sync else AsyncDaemonStopped)(self.stopper)
        self.cause = BackgroundCause(**described, stopped=stopped)
        self.cause.patch.writer = self._save_from_thread if is_sync else self.save
        self.note_change()

    def __str__(self) -> str:
        return f"{self.handler} of {self.obj}"

    async def run(self) -> None:
        """Run it until it ends or is stopped.

        A timer with a schedule begins a new cycle after a success, a daemon ends. Errors of webop
        count as failed attempts: they end neither::

            initial delay ─▶ idle ─▶ call ─▶ write ─┬─▶ end
                              ▲       ▲             │
                              │       ├─ pause ◀────┤ a retry
                              └─ interval ◀─────────┘ a new cycle
        """
        state: HandlerState | None = None
        await self._await_begin()
        while not self.stopper:
            if state is None:
                await self._await_idleness()
                state = HandlerState(now())
                continue  # it can be stopped
            began, seen = asyncio.get_running_loop().time(), self.changed_at
            outcome = await self._call_and_write(state)
            if not outcome.final:
                state = state.with_outcome(outcome)
                await self.stopper.sleep(outcome.delay or 0)
            elif self._is_over(outcome):
                return
            else:
                state = None
                await self._await_next_cycle(began, seen)

    async def _await_begin(self) -> None:
        """Wait for the initial delay: once per object and process."""
        delay = self.handler.initial_delay
        if delay is None or self.handler.id in self.obj.past:
            return
        if callable(delay):
            kwargs = self.cause.kwargs | {"param": self.handler.param, "retry": 0}
            try:
                delay = float(delay(**kwargs, started=now(), runtime=timedelta(0)))
            except BaseException as exc:
                convert_exception(exc)  # raises Ctrl-C and the end of this task
                text = "Cannot compute the initial delay of %s. Using 0 s."
                self.cause.logger.exception(text, self.handler)
                delay = 0
        await self.stopper.sleep(delay)
        if not self.stopper:
            self._remember(has_finished=False)

    async def _await_idleness(self) -> None:
        """Wait until the object has not changed for the time ``idle``."""
        idle, loop = self._idle, asyncio.get_running_loop()
        while idle is not None and (rest := self.changed_at + idle - loop.time()) > 0:
            await self.stopper.sleep(rest)
            if self.stopper:
                return

    async def _await_next_cycle(self, began: float, seen: float) -> None:
        """Sleep until the next regular call of a timer; without an interval, until a change."""
        handler, loop = self.handler, asyncio.get_running_loop()
        interval = getattr(handler, "interval", None)
        if interval is None:
            while self.changed_at == seen and not self.stopper:
                self._change = loop.create_future()
                await self.stopper.sleep(None, self._change)
        elif interval and getattr(handler, "sharp", False):
            await self.stopper.sleep(interval - (loop.time() - began) % interval)
        else:
            await self.stopper.sleep(interval)

    async def _call_and_write(self, state: HandlerState) -> Outcome:
        """Call the handler once, then write its result and its patch."""
        patch = self.cause.patch
        if isinstance(self.handler, TimerHandler) and not self.obj.unwritten:
            self.cause.status_before = clone(self.cause.body.get("status"))
        try:
            options = CallOptions(
                self.ctx.operator.settings,
                counters=self.ctx.operator.counters,
                status=self.obj.open_status(),
            )
            outcome = await attempt(self.handler, self.cause, state, options)
            self.cause.status_before = None
            is_last = self._is_over(outcome)
            if is_last and not self.stopper:  # also if it is cancelled before its patch is written
                self._remember(has_finished=True)
            if patch:
                await self.save(1, is_last=is_last)
        except GeneratorExit:
            raise
        except BaseException as exc:
            failure = convert_exception(exc)
            patch.clear()
            self._remember(has_finished=False)
            default = self.ctx.operator.settings.execution.default_backoff
            pause = choose_backoff(self.handler.backoff, default, state.retries)
            text = "Bug in webop: an attempt of %s failed. Retrying in %s s. Please report this."
            self.cause.logger.exception(text, self.handler, format_pause(pause))
            return Outcome(final=False, delay=pause, exception=failure)
        return outcome

    def _is_over(self, outcome: Outcome) -> bool:
        """Return whether no call follows: a new cycle needs a schedule, and no failure."""
        interval = getattr(self.handler, "interval", None)
        has_schedule = interval is not None or self._idle is not None
        return outcome.final and (outcome.exception is not None or not has_schedule)

    async def save(self, attempts: int = ATTEMPTS, *, is_last: bool = False) -> None:
        """Write the patch, which is empty then.

        Functions that could not be applied yet come back into it ("Patching"), unless no call
        follows.

        Args:
            attempts: how often functions are called again if the object changes meanwhile.
            is_last: whether no call follows.
        """
        patch, obj, ctx = self.cause.patch, self.obj, self.ctx
        fns, version = [*patch.fns], obj.version
        take(ctx, obj, patch)
        if not await write(ctx, obj, ATTEMPTS if is_last else attempts) and not is_last:
            unwritten = obj.open_unwritten()
            patch.fns.extend(fn for fn in unwritten.changes.fns if fn in fns)
            unwritten.changes.fns[:] = [fn for fn in unwritten.changes.fns if fn not in fns]
        if obj.version != version:  # what a timer writes itself is a change for it
            self.changed_at = asyncio.get_running_loop().time()

    def _save_from_thread(self) -> None:
        """Call :meth:`save` for a sync function, and wait for it."""
        asyncio.run_coroutine_threadsafe(self.save(), self.task.get_loop()).result()

    @property
    def _idle(self) -> float | None:
        return getattr(self.handler, "idle", None)

    def note_change(self) -> None:
        """Note a newer state of the object: an idle time begins again if the essence has changed.

        The status does not count: its writers would starve the timers.
        """
        if self._idle is None:
            return
        try:
            essence = digest_essence(self.ctx.build_essence(self.cause.body))
        except Exception:  # noqa: BLE001  of a storage of the user; the next work on it logs it
            essence = ""
        if essence != self.essence or not essence:
            self.essence = essence
            self.changed_at = asyncio.get_running_loop().time()
            if self._change is not None and not self._change.done():
                self._change.set_result(None)

    def _remember(self, *, has_finished: bool) -> None:
        self.obj.past = {**self.obj.past, self.handler.id: has_finished}

    def is_stopping_for(self, reason: DaemonStoppingReason) -> bool:
        """Return whether it has been told to stop for this reason."""
        return bool(self.stopper.reason & reason)

    def stop(self, reason: DaemonStoppingReason) -> None:
        """Begin to stop it in stages; if it is stopping, only add a reason."""
        self.stopper.set(reason)
        if self._stages is None:
            self._stages = self._stop_in_stages()
            self._enter_next_stage()

    def _stop_in_stages(self) -> Iterator[float]:
        """Stop a daemon that was asked to; return the seconds after each stage.

        1. Wait for ``cancellation_backoff``; without it, a moment in which a handler that checks
           the flag can end (``settings.background.instant_exit_…``).
        2. With a ``cancellation_timeout``: cancel an async daemon, and wait for that time.
        3. Then abandon it, and release the object. Without a timeout, wait until it ends.
        """
        settings = self.ctx.operator.settings.background
        backoff = getattr(self.handler, "cancellation_backoff", None)
        timeout = getattr(self.handler, "cancellation_timeout", None)
        polling = getattr(self.handler, "cancellation_polling", None)
        if backoff is None:
            backoff = settings.instant_exit_timeout
        if backoff is None:
            yield from [0.0] * (settings.instant_exit_zero_time_cycles or 0)
        else:
            yield backoff
        if timeout is None:
            while True:
                yield settings.cancellation_polling if polling is None else polling
                extra = self.ctx.refer_to(self.obj)
                logger.info("%s has not ended yet; waiting for it.", self, extra=extra)
        if self.handler.is_async:
            self.cancel()
        yield timeout
        while (
            self.obj.shard in self.ctx.operator.ownership.leaving
        ):  # the next owner would start it
            yield settings.cancellation_polling
        self.stopper.note(DaemonStoppingReason.DAEMON_ABANDONED)
        logger.warning(
            "%s still runs after its cancellation_timeout=%g s. webop no longer waits for it. "
            "Check `stopped` in its loop.",
            self,
            timeout,
            extra=self.ctx.refer_to(self.obj),
        )
        self._leave()
        message = f"{self} did not end in time: its resources may leak."
        warnings.warn(message, ResourceWarning, stacklevel=1)

    def _enter_next_stage(self) -> None:
        delay = None if self._stages is None else next(self._stages, None)
        if delay is not None:
            self._alarm = asyncio.get_running_loop().call_later(delay, self._enter_next_stage)

    def cancel(self) -> None:
        """Cancel its task."""
        self.stopper.note(DaemonStoppingReason.DAEMON_CANCELLED)
        self.task.cancel()

    def end(self, _: asyncio.Task[None]) -> None:
        """React to the end of its task."""
        self.stopper.note(DaemonStoppingReason.DONE)
        if self._alarm is not None:
            self._alarm.cancel()
        self._leave()

    def _leave(self) -> None:
        """Remove it from the object, which can wait for this."""
        obj, key = self.obj, self.handler.id
        if obj.daemons.get(key) is self:
            obj.daemons = {other: one for other, one in obj.daemons.items() if other != key}
            if obj.status is not None:
                obj.status.failures.pop(key, None)
            obj.stream.wake(obj)


def start(
    ctx: ResourceContext, obj: Entry, raw: Mapping[str, Any], handler: BackgroundHandler
) -> None:
    """Start a daemon or a timer for an object, in the task group of its stream."""
    if obj.view is None or not obj.daemons:
        obj.show(clone(raw))
    daemon = Daemon(ctx, obj, handler)
    obj.daemons = {**obj.daemons, handler.id: daemon}
    daemon.task = obj.stream.spawn(daemon.run(), name=f"{handler.id} of {obj}")
    daemon.task.add_done_callback(daemon.end)
