"""Signals to stop, for apps that are run by servers with signal handlers of their own.

A server such as uvicorn closes its port as soon as it is told to stop, while load balancers and
kube-proxies still send requests to it for seconds. Here, the app is told first, and the server
only when the app has been not ready for long enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def retiring_at_signals(retire: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Call a function at SIGTERM, and hand the signal on when it has returned.

    The second SIGTERM is handed on at once. Nothing happens outside of the main thread, where no
    signals come, and where nobody else handles them. SIGINT, which is Ctrl-C, is not waited with.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
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


class _Deferral:
    """A signal on its way from the operating system to the server."""

    def __init__(
        self,
        retire: Callable[[], Awaitable[None]],
        previous: Callable[[int, FrameType | None], Any],
    ) -> None:
        self._retire = retire
        self._previous = previous
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._is_signaled = False

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
        try:
            await self._retire()
        except Exception:
            logger.exception("Stopping without a pause, because of an error.")
        self._previous(number, None)
