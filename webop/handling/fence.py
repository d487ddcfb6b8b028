"""The end of the right to act: no task runs a step after it, whatever has delayed the step.

A process can be stopped at any instruction (SIGSTOP, a suspended machine, a loop that is blocked)
and continue when others have taken over. A timer that cancels its tasks is too late then: the
timer and the tasks are due at the same time. So the tasks themselves are fenced: the clock is read
before each step of a task.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

# This one advances while the machine sleeps, as the clocks of the other replicas do.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def read_clock() -> float:
    """Return the seconds since some moment; they pass while the machine sleeps, too."""
    return time.clock_gettime(_CLOCK)


class Fence:
    """A moment after which no work may be done; each renewal of the lease postpones it.

    Args:
        clock: what the moment is measured by.

    Attributes:
        ends_at: the moment, by the clock.
        is_crossing: whether a step is running that began in time; it cannot be stopped.
        threads: the calls in threads, or waiting for one, which cannot be stopped either.
    """

    __slots__ = ("clock", "ends_at", "is_crossing", "threads")

    def __init__(self, clock: Callable[[], float] = read_clock) -> None:
        self.clock = clock
        self.ends_at = 0.0
        self.is_crossing = False
        self.threads: set[Future[Any]] = set()

    @property
    def rest(self) -> float:
        """The seconds that are left; negative if it is over."""
        return self.ends_at - self.clock()

    @property
    def has_overrun(self) -> bool:
        """Whether it is over in the middle of a step."""
        return self.is_crossing and self.rest <= 0

    def count(self, call: Future[Any]) -> None:
        """Count a call in a thread until it ends, which it may do in the thread."""
        self.threads.add(call)
        call.add_done_callback(self.threads.discard)


current_fence: contextvars.ContextVar[Fence | None] = contextvars.ContextVar(
    "current_fence", default=None
)
"""The fence of the present task; tasks and threads that it starts inherit it."""


class Fenced(Coroutine[Any, Any, T]):
    """A coroutine that runs no step after the moment (PEP 492).

    ``asyncio.CancelledError`` is raised into it then, and again at each step that it tries. Its
    task counts as cancelled, so that no time-out mistakes the error for its own and continues.
    """

    __slots__ = ("_coroutine", "_fence", "_is_stopped")

    def __init__(self, coroutine: Coroutine[Any, Any, T], fence: Fence) -> None:
        self._coroutine = coroutine
        self._fence = fence
        self._is_stopped = False

    def __getattr__(self, name: str) -> Any:
        """Look like the coroutine to those who inspect tasks, as anyio does."""
        return getattr(self._coroutine, name)

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError("A fenced coroutine must run as a separate task.")

    def send(self, value: Any) -> Any:
        """Run the next step."""
        return self._step(self._coroutine.send, value)

    def throw(self, *args: Any) -> Any:
        """Run the next step with an exception."""
        return self._step(self._coroutine.throw, *args)

    def close(self) -> None:
        """Close the coroutine."""
        self._coroutine.close()

    def _step(self, step: Callable[..., Any], *args: Any) -> Any:
        fence = self._fence
        if fence.ends_at <= fence.clock():
            return self._stop()
        before, fence.is_crossing = (
            fence.is_crossing,
            True,
        )  # eager tasks begin in a step of another
        try:
            return step(*args)
        finally:
            fence.is_crossing = before

    def _stop(self) -> Any:
        task = asyncio.current_task()
        if task is not None and not self._is_stopped:
            self._is_stopped = True
            task.cancel()
        return self._coroutine.throw(asyncio.CancelledError())


async def pass_fence() -> None:
    """Go on only if it is not over: a step in which the process was stopped begins nothing more."""
    fence = current_fence.get()
    if fence is not None and fence.rest <= 0:
        await asyncio.sleep(0)  # the next step is refused


def fence_offspring(loop: asyncio.AbstractEventLoop) -> None:
    """Fence the tasks that fenced tasks start, too: those of gather(), task groups, and so on.

    Other tasks of the loop are not affected; a task factory that is already set stays in use.
    """
    present: Any = loop.get_task_factory()
    if getattr(present, "is_fencing", False):
        return

    def create(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> Any:
        context = kwargs.get("context")
        fence = current_fence.get() if context is None else context.get(current_fence)
        if fence is not None and not isinstance(coroutine, Fenced):
            coroutine = Fenced(coroutine, fence)
        if present is None:
            return asyncio.Task(coroutine, loop=loop, **kwargs)
        return present(loop, coroutine, **kwargs)

    create.is_fencing = True  # type: ignore[attr-defined]
    loop.set_task_factory(create)
