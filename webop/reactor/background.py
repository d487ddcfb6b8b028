"""The daemons and timers of one object, and the stages in which they stop.

:mod:`webop.reactor.decision` decides which must run, :mod:`webop.reactor.schedules` runs them.
Functions here are sync, and called by events and timers of the event loop, without polling (chapter
"Daemons", "Termination").
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

from webop.handling.call_options import HandlingStatus
from webop.handling.handlers import BackgroundHandler
from webop.handling.invocation import is_async
from webop.handling.stopping import DaemonStoppingReason, Stopper
from webop.handling.threads import await_thread
from webop.objects.body import Body, build_object_reference
from webop.settings import BackgroundSettings

logger = logging.getLogger(__name__)


class Background:
    """The daemons and timers of one object.

    Attributes:
        raw: the newest known state of the object.
        body: the live view of it, which all of them share.
        tasks: those that run or are stopping, by the ids of their handlers.
        finished: ids of those that returned and must not start again.
        postponed: ids of those whose initial delay is over: it applies only once.
        changed_at: when the object was last changed, by the loop's clock.
        standing: the state of their calls.
    """

    __slots__ = ("body", "changed_at", "finished", "postponed", "raw", "standing", "tasks")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.body = Body(raw)
        self.tasks: dict[str, BackgroundTask] = {}
        self.finished: frozenset[str] = frozenset()
        self.postponed: frozenset[str] = frozenset()
        self.changed_at = asyncio.get_running_loop().time()
        self.standing = HandlingStatus()

    def show(self, raw: dict[str, Any]) -> None:
        """Show daemons and timers a newer state of the object."""
        self.raw = raw
        self.body.replace(raw)
        self.changed_at = asyncio.get_running_loop().time()

    def without_body(self) -> Background | None:
        """Return what must be kept when none runs, if anything; abandoned ones keep the body."""
        if not self.finished and not self.postponed:
            return None
        rest = Background({})
        rest.finished = self.finished
        rest.postponed = self.postponed
        return rest

    def stop(self, reason: DaemonStoppingReason) -> list[asyncio.Task[None]]:
        """Ask all of them to stop; return the tasks to wait for."""
        running = list(self.tasks.values())
        for item in running:
            item.stop(reason)
        return [item.task for item in running if item.task is not None]

    def cancel(self) -> list[str]:
        """Cancel all that still run when the operator stops; return their names."""
        for item in self.tasks.values():
            item.stopper.note(DaemonStoppingReason.DAEMON_CANCELLED)
            if item.task is not None:
                item.task.cancel()
        return [str(item) for item in self.tasks.values()]


class BackgroundTask:
    """One daemon or timer of one object, and the stages of its stopping.

    1. Set the flag ``stopped`` and wait ``cancellation_backoff`` seconds; without it, wait a moment
       (``settings.background.instant_exit_…``), in which a handler that checks the flag can end.
    2. With a ``cancellation_timeout``: cancel an async daemon, and wait that many seconds.
    3. Then abandon it, and release the object. Without a timeout, wait until it ends, and log this
       every ``cancellation_polling`` seconds.

    ``on_end`` is called with the reasons when the object no longer has it.
    """

    __slots__ = (
        "_alarm",
        "_background",
        "_name",
        "_on_end",
        "_settings",
        "handler",
        "stopper",
        "task",
    )

    def __init__(
        self,
        background: Background,
        handler: BackgroundHandler,
        settings: BackgroundSettings,
        *,
        name: str,
        on_end: Callable[[DaemonStoppingReason], None],
    ) -> None:
        self.handler = handler
        self.stopper = Stopper()
        self.task: asyncio.Task[None] | None = None
        self._background = background
        self._name = name
        self._on_end = on_end
        self._settings = settings
        self._alarm: asyncio.Handle | None = None
        background.tasks[handler.id] = self

    def __str__(self) -> str:
        return f"{self.handler} of {self._name}"

    @property
    def _reference(self) -> dict[str, Any]:
        """The ``extra`` that adds the reference of the object to a log message."""
        return {"k8s_ref": build_object_reference(self._background.body)}

    def start(
        self, spawn: Callable[..., asyncio.Task[None]], run: Coroutine[Any, Any, None]
    ) -> None:
        """Start it in a task group; react to its end at once."""
        self.task = task = spawn(run, name=f"{self.handler.id} of {self._name}")
        task.add_done_callback(self._end)

    def stop(self, reason: DaemonStoppingReason) -> None:
        """Begin the stages; if they have begun, only add a reason."""
        is_first = not self.stopper
        self.stopper.set(reason)
        if not is_first:
            return
        delay = getattr(self.handler, "cancellation_backoff", None)
        if delay is None:
            delay = self._settings.instant_exit_timeout
        if delay is None:
            self._linger(self._settings.instant_exit_zero_time_cycles or 0)
        else:
            self._alarm = asyncio.get_running_loop().call_later(delay, self._cancel)

    def _linger(self, cycles: int) -> None:
        """Continue with the next stage after some cycles of the event loop."""
        if cycles > 0:
            self._alarm = asyncio.get_running_loop().call_soon(self._linger, cycles - 1)
        else:
            self._cancel()

    def _cancel(self) -> None:
        timeout = getattr(self.handler, "cancellation_timeout", None)
        loop = asyncio.get_running_loop()
        if timeout is None:
            self._alarm = loop.call_later(self._find_polling(), self._report_waiting)
            return
        if self.task is not None and is_async(self.handler.fn):
            self.stopper.note(DaemonStoppingReason.DAEMON_CANCELLED)
            self.task.cancel()
        self._alarm = loop.call_later(timeout, self._abandon)

    def _report_waiting(self) -> None:
        logger.info("%s has not ended yet; waiting for it.", self, extra=self._reference)
        self._alarm = asyncio.get_running_loop().call_later(
            self._find_polling(), self._report_waiting
        )

    def _find_polling(self) -> float:
        polling: float | None = getattr(self.handler, "cancellation_polling", None)
        return self._settings.cancellation_polling if polling is None else polling

    def _abandon(self) -> None:
        self.stopper.note(DaemonStoppingReason.DAEMON_ABANDONED)
        logger.warning(
            "%s still runs after its cancellation_timeout=%g s. webop no longer waits for it. "
            "Check `stopped` in its loop.",
            self,
            getattr(self.handler, "cancellation_timeout", None) or 0,
            extra=self._reference,
        )
        self._leave()
        message = f"{self} did not end in time: its resources may leak."
        warnings.warn(message, ResourceWarning, stacklevel=1)

    def _end(self, task: asyncio.Task[None]) -> None:
        if not self.stopper and not task.cancelled():  # a lost Lease cancels it
            self._background.finished |= {self.handler.id}
        self.stopper.note(DaemonStoppingReason.DONE)
        if self._alarm is not None:
            self._alarm.cancel()
        await_thread(task, self._leave)

    def _leave(self) -> None:
        """Remove it from the object, and process the object, which can wait for this."""
        if self._background.tasks.get(self.handler.id) is self:
            del self._background.tasks[self.handler.id]
            self._background.standing.failures.pop(self.handler.id, None)
            self._on_end(self.stopper.reason)
