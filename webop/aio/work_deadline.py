"""Fencing: after the lease has expired, no task runs another step.

A process can stop at any instruction (SIGSTOP, a suspended machine, a blocked loop) and continue
after another replica has taken over. A timer that cancels its tasks comes too late then: the timer
and the tasks are due at the same time. So each step of a fenced task reads the clock first.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

# This clock advances while the machine sleeps, like the clocks of the other replicas.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def read_clock() -> float:
    """Return seconds since a fixed moment, including the time when the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class Fence:
    """A deadline for all work; each renewal of the lease postpones it.

    Attributes:
        ends_at: the deadline, by the clock.
        is_in_step: whether a step is running that began in time; it cannot be stopped.
        threads: calls that run in threads or wait for one; they cannot be stopped either.
    """

    __slots__ = ("clock", "ends_at", "is_in_step", "threads")

    def __init__(self, clock: Callable[[], float] = read_clock) -> None:
        self.clock = clock
        self.ends_at = 0.0
        self.is_in_step = False
        self.threads: set[Future[Any]] = set()

    @property
    def rest(self) -> float:
        """The seconds until the deadline; negative after it."""
        return self.ends_at - self.clock()

    @property
    def has_overrun(self) -> bool:
        """Whether a step is running after the deadline."""
        return self.is_in_step and self.rest <= 0

    def count(self, call: Future[Any]) -> None:
        """Count a call in a thread until it ends."""
        self.threads.add(call)
        call.add_done_callback(self.threads.discard)


current_fence: contextvars.ContextVar[Fence | None] = contextvars.ContextVar(
    "current_fence", default=None
)
"""The fence of the current task; tasks and threads that it starts inherit it."""


class Fenced(Coroutine[Any, Any, T]):
    """A coroutine that runs no step after the deadline of its fence (PEP 492).

    After it, each step raises ``asyncio.CancelledError`` instead. The task counts as cancelled, so
    that no ``asyncio.timeout()`` takes the error for its own and continues.
    """

    __slots__ = ("_coroutine", "_fence", "_is_stopped")

    def __init__(self, coroutine: Coroutine[Any, Any, T], fence: Fence) -> None:
        self._coroutine = coroutine
        self._fence = fence
        self._is_stopped = False

    def __getattr__(self, name: str) -> Any:
        """Forward attributes to the coroutine, for code that inspects tasks, such as anyio."""
        return getattr(self._coroutine, name)

    def __await__(self) -> Generator[Any, Any, T]:
        """Run all steps within the current task."""
        value: Any = None
        failure: BaseException | None = None
        while True:
            try:
                found = self.send(value) if failure is None else self.throw(failure)
            except StopIteration as exc:
                result: T = exc.value
                return result
            value = failure = None
            try:
                value = yield found
            except GeneratorExit:
                self.close()
                raise
            except BaseException as exc:  # noqa: BLE001  it is thrown into the next step
                failure = exc

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
        before = fence.is_in_step  # eager tasks begin inside of a step of another task
        fence.is_in_step = True
        try:
            return step(*args)
        finally:
            fence.is_in_step = before

    def _stop(self) -> Any:
        task = asyncio.current_task()
        if task is not None and not self._is_stopped:
            self._is_stopped = True
            task.cancel()
        return self._coroutine.throw(asyncio.CancelledError())


async def check_fence() -> None:
    """End the task after the deadline, even in a step that began before it."""
    fence = current_fence.get()
    if fence is not None and fence.rest <= 0:
        await asyncio.sleep(0)  # the next step raises


def fence_child_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Fence the tasks that fenced tasks start: by gather(), task groups and so on.

    Other tasks of the loop are not affected. An existing task factory stays in use.
    """
    current: Any = loop.get_task_factory()
    if getattr(current, "is_fencing", False):
        return

    def create(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> Any:
        context = kwargs.get("context")
        fence = current_fence.get() if context is None else context.get(current_fence)
        if fence is not None and not isinstance(coroutine, Fenced):
            coroutine = Fenced(coroutine, fence)
        if current is None:
            return asyncio.Task(coroutine, loop=loop, **kwargs)
        return current(loop, coroutine, **kwargs)

    create.is_fencing = True  # type: ignore[attr-defined]
    loop.set_task_factory(create)
