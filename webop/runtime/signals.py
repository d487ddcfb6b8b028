"""Stop signals for standalone operators and for apps in servers; the cancellation of tasks.

A standalone operator handles the signals. ASGI servers have their own handlers: uvicorn closes its
port at once, while load balancers and kube-proxies still send requests for seconds. So the app gets
the signal first, and the server only after the app has been not ready for long enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

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


@contextlib.contextmanager
def listening_to_signals(listener: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call a function at SIGINT, SIGTERM and SIGHUP; several in one loop are all called.

    SIGHUP keeps its handler if it has one, and stays ignored under ``nohup``. A second SIGINT or
    SIGTERM ends the process at once, also if the event loop is blocked.

    Use it in the main thread. After the last block, the previous handlers are restored. But if a
    signal has ended the blocks, the next signal ends the process at once: something hangs.
    """
    numbers = [signal.SIGINT, signal.SIGTERM, *_find_hangup()]
    with _Listening.calling(listener, numbers):
        yield


@contextlib.contextmanager
def retiring_at_signals(retire: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Call a function at SIGTERM, and pass the signal to the previous handler when it has returned.

    A second SIGTERM is passed on at once. The functions of several apps in one loop are called
    concurrently; the signal is passed on when all have returned. SIGINT (Ctrl-C) is not delayed.
    SIGHUP counts as SIGTERM, unless it is handled already, or ignored as under ``nohup``.
    Do nothing outside of the main thread, or if there is no previous handler.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(signal.getsignal(signal.SIGTERM)):
        yield
        return
    with _Deferral.calling(retire, [signal.SIGTERM, *_find_hangup()]):
        yield


def _find_hangup() -> list[signal.Signals]:
    """Return SIGHUP, as if the terminal is closed, unless it is handled or ignored."""
    return [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []


class _SignalHandler:
    """Handles stop signals for the functions of one event loop."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._functions: list[Callable[..., Any]] = []
        self._is_signaled = False
        self.loop = asyncio.get_running_loop()
        self._previous: dict[signal.Signals, Any] = {n: signal.getsignal(n) for n in numbers}
        _handled.update(self._previous)
        for number in self._previous:
            signal.signal(number, self._handle)

    @classmethod
    @contextlib.contextmanager
    def calling(
        cls, function: Callable[..., Any], numbers: Iterable[signal.Signals]
    ) -> Iterator[None]:
        """Call a function at signals during a block, together with others of the loop."""
        present = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        if not isinstance(present, cls) or present.loop is not asyncio.get_running_loop():
            present = cls(numbers)
        elif not present._functions:
            present._is_signaled = False  # of an operator before
        present._functions.append(function)
        try:
            yield
        finally:
            present._functions.remove(function)
            if not present._functions:
                present._end()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; Python calls this between any two instructions of the main thread."""
        if self.loop.is_closed():
            self._end()
            signal.raise_signal(number)
        elif not self._is_signaled:
            self._is_signaled = True
            # Not in the context of the handler that runs now: what it starts ends with its Lease.
            begin, context = self._begin, contextvars.Context()
            self.loop.call_soon_threadsafe(begin, signal.Signals(number), context=context)
        elif number != signal.SIGHUP:  # shells and the kernel both send it
            self._repeat(number, frame)

    def _begin(self, number: signal.Signals) -> None:
        raise NotImplementedError

    def _repeat(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        """Restore the previous handlers."""
        _handled.difference_update(self._previous)
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, previous or signal.SIG_DFL)


class _Listening(_SignalHandler):
    """Calls functions; the next signal ends the process."""

    def _begin(self, number: signal.Signals) -> None:
        for function in list(self._functions):
            function(number)

    def _repeat(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        os._exit(128 + number)

    def _end(self) -> None:
        if not self._is_signaled or self.loop.is_closed():
            super()._end()


class _Deferral(_SignalHandler):
    """Awaits functions before it passes the signal to the server; the next one at once."""

    _task: asyncio.Task[None] | None = None

    def _begin(self, number: signal.Signals) -> None:  # noqa: ARG002
        self._task = self.loop.create_task(self._retire_first(), name="retirement")

    def _repeat(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._previous[signal.SIGTERM](signal.SIGTERM, frame)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()  # the app has ended
        super()._end()

    async def _retire_first(self) -> None:
        retirements = [retire() for retire in self._functions]
        for result in await asyncio.gather(*retirements, return_exceptions=True):
            if isinstance(result, Exception):
                logger.error("The shutdown delay was cut short by an error.", exc_info=result)
        self._repeat(signal.SIGTERM, None)
