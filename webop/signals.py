"""Signals to stop, for operators on their own and for apps that are run by servers; and the stop.

An operator on its own listens to the signals. Servers have handlers of their own: one such as
uvicorn closes its port as soon as it is told to stop, while load balancers and kube-proxies still
send requests to it for seconds. So the app is told first, and the server only when the app has been
not ready for long enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterator
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HURRY_TIMEOUT = 5.0  # seconds; for tasks that do not end even when they are cancelled twice


@contextlib.contextmanager
def listening_to_signals(listener: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Have a function called at SIGINT and SIGTERM; of several ones in a loop, all of them.

    To be used in the main thread. What there was before is put back after the last one. If it was
    a signal that has ended them, the next signal ends the process at once: something hangs.
    """
    loop = asyncio.get_running_loop()
    listening = _loops.get(loop)
    if listening is None:
        listening = _loops[loop] = _Listening(loop)
    listening.listeners.append(listener)
    try:
        yield
    finally:
        listening.listeners.remove(listener)
        if not listening.listeners and not listening.is_signaled:
            del _loops[loop]
            listening.end(loop)


class _Listening:
    """Those in one loop who listen to signals."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.listeners: list[Callable[[signal.Signals], None]] = []
        self.is_signaled = False
        self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._tell, number)

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Put back what there was before."""
        for number, previous in self._previous.items():
            loop.remove_signal_handler(number)
            signal.signal(number, previous or signal.SIG_DFL)

    def _tell(self, number: signal.Signals) -> None:
        self.is_signaled = True
        if not self.listeners:
            os._exit(128 + number)
        for listener in list(self.listeners):
            listener(number)


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Listening] = (
    weakref.WeakKeyDictionary()
)


@contextlib.contextmanager
def retiring_at_signals(retire: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Call a function at SIGTERM, and hand the signal on when it has returned.

    The second SIGTERM is handed on at once. Of several apps in a loop, all functions are called at
    the same time, and the signal is handed on when all have returned. SIGINT, which is Ctrl-C, is
    not waited with. Nothing happens outside of the main thread, where no signals come, and where
    nobody else handles them.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    earlier = getattr(previous, "__self__", None)
    if isinstance(earlier, _Deferral) and earlier.is_for(asyncio.get_running_loop()):
        with earlier.joined_by(retire):
            yield
        return
    deferral = _Deferral(retire, previous)
    signal.signal(signal.SIGTERM, deferral.handle)
    try:
        yield
    finally:
        deferral.close()
        if signal.getsignal(signal.SIGTERM) == deferral.handle:
            signal.signal(signal.SIGTERM, previous)


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their end.

    Whoever cancels this wait is in a hurry: the tasks are cancelled again, so that their cleanup
    is cut short, and are not left behind in the loop.
    """
    for task in tasks:
        task.cancel()
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_HURRY_TIMEOUT)
        raise


class _Deferral:
    """A signal on its way from the operating system to the server."""

    def __init__(
        self,
        retire: Callable[[], Awaitable[None]],
        previous: Callable[[int, FrameType | None], Any],
    ) -> None:
        self._retirements = [retire]
        self._previous = previous
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._is_signaled = False

    def is_for(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether the functions are called in that loop."""
        return self._loop is loop

    @contextlib.contextmanager
    def joined_by(self, retire: Callable[[], Awaitable[None]]) -> Iterator[None]:
        """Have another function called with the first one, as long as the block lasts."""
        self._retirements.append(retire)
        try:
            yield
        finally:
            self._retirements.remove(retire)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take a signal: called by Python in between any two steps of whatever is running."""
        if self._is_signaled:
            self._previous(number, frame)
        else:
            self._is_signaled = True
            self._loop.call_soon_threadsafe(self._begin, number)

    def close(self) -> None:
        """Forget about it: the app has ended."""
        if self._task is not None:
            self._task.cancel()

    def _begin(self, number: int) -> None:
        self._task = self._loop.create_task(self._retire_first(number), name="retirement")

    async def _retire_first(self, number: int) -> None:
        retirements = [retire() for retire in self._retirements]
        for result in await asyncio.gather(*retirements, return_exceptions=True):
            if isinstance(result, Exception):
                logger.error("Stopping without a pause, because of an error.", exc_info=result)
        self._previous(number, None)
