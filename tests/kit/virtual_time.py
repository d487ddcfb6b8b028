"""An event loop whose clock jumps over all waiting: an hour of pauses takes no time in tests.

For code that waits for the clock only. With sockets or threads, use ``AdvancingLoop``.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait for the time-out, but adds it to the clock when there is no I/O."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if not events:
            self.skipped += max(0.0, timeout)
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its clock cannot wait for threads: it calls at once what is for them."""

    def __init__(self) -> None:
        self._jumping_selector = _JumpingSelector()
        super().__init__(self._jumping_selector)

    def time(self) -> float:
        return super().time() + self._jumping_selector.skipped

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  its caller gets it
            future.set_exception(error)
        return future


class AdvancingLoop(asyncio.SelectorEventLoop):
    """A loop for sockets and threads, whose clock a test puts forward."""

    advance = 0.0

    def time(self) -> float:
        return super().time() + self.advance


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), timeout=24 * 3600))

    return run
