"""Stop signals for standalone operators and for apps in servers; the cancellation of tasks.

A standalone operator handles the signals. ASGI servers have their own handlers: uvicorn closes its
port at once, while load balancers and kube-proxies still send requests for seconds. So the app gets
the signal first, and the server only after the app has been not ready for long enough.
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

# The terminal has been closed. Windows has no such signal.
_HANGUPS = [number for number in signal.Signals if number.name == "SIGHUP"]
_HURRY_TIMEOUT = 5.0  # seconds; for tasks that do not end even when they are cancelled twice
_handled: set[signal.Signals] = set()


def _reset_in_child() -> None:
    """Give a forked child the default handlers: ours would tell the event loop of its parent."""
    if _handled:
        signal.set_wakeup_fd(-1)
    for number in _handled:
        is_interrupt = number is signal.SIGINT
        signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    _unblock()


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _handled)


os.register_at_fork(
    before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _handled),
    after_in_parent=_unblock,
    after_in_child=_reset_in_child,
)


@contextlib.contextmanager
def listening_to_signals(listener: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call a function at SIGINT, SIGTERM and SIGHUP; several in one loop are all called.

    SIGHUP keeps its handler if it has one, and stays ignored under ``nohup``.

    Use it in the main thread. After the last block, the previous handlers are restored. But if a
    signal has ended the blocks, the next signal ends the process at once: something hangs.
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
    """The functions of one event loop that listen to signals."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.listeners: list[Callable[[signal.Signals], None]] = []
        self.is_signaled = False
        numbers = [signal.SIGINT, signal.SIGTERM, *_find_hangup()]
        self._previous = {number: signal.getsignal(number) for number in numbers}
        _handled.update(numbers)
        for number in numbers:
            loop.add_signal_handler(number, self._notify, number)

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Restore the previous handlers."""
        _handled.difference_update(self._previous)
        for number, previous in self._previous.items():
            loop.remove_signal_handler(number)
            signal.signal(number, previous or signal.SIG_DFL)

    def _notify(self, number: signal.Signals) -> None:
        if self.is_signaled and number in _HANGUPS:
            return  # shells and the kernel both send it
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
    """Call a function at SIGTERM, and pass the signal to the previous handler when it has returned.

    A second SIGTERM is passed on at once. The functions of several apps in one loop are called
    concurrently; the signal is passed on when all have returned. SIGINT (Ctrl-C) is not delayed.
    SIGHUP counts as SIGTERM, unless it is handled already, or ignored as under ``nohup``.
    Do nothing outside of the main thread, or if there is no previous handler.
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
    numbers: dict[signal.Signals, Any] = dict.fromkeys(_find_hangup(), signal.SIG_DFL)
    numbers[signal.SIGTERM] = previous
    for number in numbers:
        signal.signal(number, deferral.handle)
    _handled.update(numbers)
    try:
        yield
    finally:
        deferral.close()
        _handled.difference_update(numbers)
        for number, handler in numbers.items():
            if signal.getsignal(number) == deferral.handle:
                signal.signal(number, handler)


def _find_hangup() -> list[signal.Signals]:
    return [number for number in _HANGUPS if signal.getsignal(number) is signal.SIG_DFL]


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their end.

    If this wait is cancelled, cancel the tasks again, which cuts their cleanup short, so that none
    remain in the loop.
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
    """A signal handler that calls functions before it passes the signal to the server."""

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
        """Return whether the functions run in that loop."""
        return self._loop is loop

    @contextlib.contextmanager
    def joined_by(self, retire: Callable[[], Awaitable[None]]) -> Iterator[None]:
        """Also call another function, during a block."""
        self._retirements.append(retire)
        try:
            yield
        finally:
            self._retirements.remove(retire)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; Python calls this between any two instructions of the main thread."""
        if self._is_signaled and number in _HANGUPS:
            return  # shells and the kernel both send it
        if self._is_signaled:
            self._previous(signal.SIGTERM, frame)
        else:
            self._is_signaled = True
            self._loop.call_soon_threadsafe(self._begin)

    def close(self) -> None:
        """Cancel pending calls: the app has ended."""
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._retire_first(), name="retirement")

    async def _retire_first(self) -> None:
        retirements = [retire() for retire in self._retirements]
        for result in await asyncio.gather(*retirements, return_exceptions=True):
            if isinstance(result, Exception):
                logger.error("The shutdown delay was cut short by an error.", exc_info=result)
        self._previous(signal.SIGTERM, None)
