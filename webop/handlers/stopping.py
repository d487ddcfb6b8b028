"""The flag that asks daemons and timers to stop (kwarg ``stopped``).

Each running daemon or timer has a :class:`Stopper`, which the reactor sets; the handler gets a
:class:`DaemonStopped`.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from concurrent.futures import Future
from typing import Any

from webop.aio.work_deadline import current_fence

DAEMONS_TIMEOUT = 5.0  # seconds; when the operator stops


class DaemonStoppingReason(enum.Flag):
    """Why a daemon must stop, and the stages of stopping; several can be true at once."""

    DONE = enum.auto()
    """The daemon has ended, whatever the reason."""
    FILTERS_MISMATCH = enum.auto()
    """The object does not match the filters any more."""
    RESOURCE_DELETED = enum.auto()
    """The object is being deleted, or is gone."""
    OPERATOR_PAUSING = enum.auto()
    """The operator pauses, as another one takes over."""
    OPERATOR_EXITING = enum.auto()
    """The operator stops."""
    DAEMON_SIGNALLED = enum.auto()
    """``stopped`` was set."""
    DAEMON_CANCELLED = enum.auto()
    """``asyncio.CancelledError`` was raised into the daemon, if it is async."""
    DAEMON_ABANDONED = enum.auto()
    """webop no longer waits for the daemon."""


NO_REASON = DaemonStoppingReason(0)


class Stopper:
    """The flag of one daemon or timer; set in the loop, read in the loop and in threads."""

    __slots__ = ("_queued", "_sleepers", "_thread_event", "reason")

    def __init__(self) -> None:
        self.reason = NO_REASON
        self._sleepers: list[asyncio.Future[None]] | None = None
        self._thread_event: threading.Event | None = None
        self._queued: Future[Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.reason)

    def set(self, reason: DaemonStoppingReason) -> None:
        """Add a reason, and wake all waiters."""
        self.reason |= reason | DaemonStoppingReason.DAEMON_SIGNALLED
        if self._thread_event is not None:
            self._thread_event.set()
        for sleeper in self._sleepers or ():
            _finish(sleeper)
        if self._queued is not None:
            self._queued.cancel()

    def prevent(self, queued: Future[Any]) -> None:
        """Cancel a call that still waits for a thread when the flag is set."""
        self._queued = queued
        if self.reason:
            queued.cancel()

    def note(self, stage: DaemonStoppingReason) -> None:
        """Record a stage of the stopping."""
        self.reason |= stage

    async def sleep(
        self, seconds: float | None, sleeper: asyncio.Future[None] | None = None
    ) -> None:
        """Sleep for some seconds (None: without limit), at most until the flag is set.

        The sleep also ends when the caller finishes the future ``sleeper``, if it is given. Other
        tasks can run even if the time is 0.
        """
        if self.reason or seconds == 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        sleeper = loop.create_future() if sleeper is None else sleeper
        if self._sleepers is None:
            self._sleepers = []
        self._sleepers.append(sleeper)
        alarm = None if seconds is None else loop.call_later(seconds, _finish, sleeper)
        try:
            await sleeper
        finally:
            self._sleepers.remove(sleeper)
            if alarm is not None:
                alarm.cancel()

    def as_thread_event(self) -> threading.Event:
        """Return the same flag for a thread."""
        if self._thread_event is None:
            self._thread_event = threading.Event()
            if self.reason:
                self._thread_event.set()
        return self._thread_event


class DaemonStopped:
    """The argument ``stopped`` of daemons and timers: true as soon as the handler must stop.

    ::

        while not stopped:
            await stopped.wait(60)  # without await if the daemon is not async

    See docs/howto/daemons.md.
    """

    __slots__ = ("_stopper",)

    def __init__(self, stopper: Stopper) -> None:
        self._stopper = stopper

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.reason}>"

    def __bool__(self) -> bool:
        return bool(self._stopper)

    @property
    def reason(self) -> DaemonStoppingReason | None:
        """Why the daemon must stop; None if it must not."""
        return self._stopper.reason or None

    def is_set(self, reason: DaemonStoppingReason | None = None) -> bool:
        """Return whether the daemon must stop, or whether it must stop for this reason."""
        present = self._stopper.reason
        return bool(present if reason is None else reason & present)

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the daemon must stop, at most for ``timeout`` seconds; return the flag.

        Async daemons must await the result: ``await stopped.wait(10)``.
        """
        raise NotImplementedError


class SyncDaemonStopped(DaemonStopped):
    """The flag for sync daemons.

    It is also true after the end of the lease, which a thread can notice before the loop does.
    """

    __slots__ = ("_event", "_fence")

    def __init__(self, stopper: Stopper) -> None:
        super().__init__(stopper)
        self._event = stopper.as_thread_event()
        self._fence = current_fence.get()

    def __bool__(self) -> bool:
        return bool(self._stopper) or (self._fence is not None and self._fence.rest <= 0)

    def is_set(self, reason: DaemonStoppingReason | None = None) -> bool:
        """Return whether the daemon must stop, or whether it must stop for this reason."""
        return bool(self) if reason is None else super().is_set(reason)

    def prevent(self, queued: Future[Any]) -> None:
        """Cancel the call of the daemon if it must stop before it has a thread."""
        self._stopper.prevent(queued)

    def wait(self, timeout: float | None = None) -> SyncDaemonStopped:
        """Block the thread until the daemon must stop, at most for ``timeout`` seconds."""
        self._event.wait(timeout)
        return self


class AsyncDaemonStopped(DaemonStopped):
    """The flag for async daemons."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> AsyncDaemonStopped:
        """Wait until the daemon must stop, at most for ``timeout`` seconds."""
        await self._stopper.sleep(timeout)
        return self


def _finish(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
