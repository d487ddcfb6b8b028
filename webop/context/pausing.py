"""Whether this process handles objects, or is paused because another one does.

Peering and leadership decide (:mod:`webop.coordination`), and the reactor follows: a paused
operator serves webhooks and updates its indexes, but calls no handlers of objects, and runs no
daemons and timers (chapters "Peering" and "Daemons").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from webop.aio.cancellation import WorkerGroup
from webop.aio.work_deadline import Fence, Fenced, current_fence
from webop.handlers.stopping import DaemonStoppingReason

logger = logging.getLogger(__name__)

T = TypeVar("T")

_POLLING = 0.02  # seconds
_UNWINDING = 1.0  # seconds; for cancelled handlers to end

Listener = Callable[[DaemonStoppingReason | None], None]
"""Called at each change: with the reason of the pause, or with None when the operator resumes."""


class Pausing:
    """The state of the operator, active or paused, and its tasks that work on objects."""

    def __init__(self) -> None:
        self.fence: Fence | None = None  # the end of the lease: all work on objects ends there
        self._reasons: dict[str, str] = {}
        self._listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    @property
    def is_active(self) -> bool:
        """Whether to handle objects."""
        return not self._reasons

    @property
    def pause_reasons(self) -> list[str]:
        """Why it is paused, for people; empty if it is active."""
        return list(self._reasons.values())

    def pause(
        self,
        who: str,
        why: str,
        reason: DaemonStoppingReason = DaemonStoppingReason.OPERATOR_PAUSING,
    ) -> None:
        """Start no new work on objects; running work can finish.

        If the same caller pauses twice, the second reason replaces the first.
        """
        was_active = self.is_active
        self._reasons[who] = why
        if was_active:
            self._change(reason)

    def stop(self) -> None:
        """Start no new work on objects: the operator is stopping."""
        exiting = DaemonStoppingReason.OPERATOR_EXITING
        self.pause("exit", "the operator is stopping", exiting)

    def resume(self, who: str) -> None:
        """Remove the reason of this caller; become active if no other reason is left."""
        if self._reasons.pop(who, None) is not None and self.is_active:
            self._change(None)

    @contextlib.contextmanager
    def subscribed(self, listener: Listener) -> Iterator[None]:
        """Call a function at each change, before any waiting task continues."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    async def wait_until_active(self) -> None:
        """Wait while the operator is paused."""
        while not self.is_active:
            await self._changed.wait()

    @property
    def is_idle(self) -> bool:
        """Whether no task runs and, if there is a fence, no thread either."""
        has_threads = self.fence is not None and bool(self.fence.threads)
        return not has_threads and all(task.done() for task in self._tasks)

    def spawn(
        self,
        group: WorkerGroup,
        coroutine: Coroutine[Any, Any, None],
        *,
        name: str,
    ) -> asyncio.Task[None]:
        """Start a task that works on an object, in a group of tasks, behind the fence."""
        context = group.context.copy()
        if self.fence is not None:
            context.run(current_fence.set, self.fence)
            coroutine = Fenced(coroutine, self.fence)
        task = group.create_task(coroutine, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def work(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Work on an object in the current task, behind the fence."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  for the type checker
        self._tasks.add(task)
        token = current_fence.set(self.fence)
        try:
            return await (coroutine if self.fence is None else Fenced(coroutine, self.fence))
        finally:
            current_fence.reset(token)
            self._tasks.discard(task)

    def cancel(self) -> None:
        """Cancel all work on objects."""
        for task in [*self._tasks]:
            task.cancel()

    async def finish(self, limit: float) -> None:
        """Wait until all work has ended while the operator is paused; but not forever.

        Work that still runs after so many seconds is cancelled, and has a moment to end.
        """
        await self.wait_until_idle(limit)
        if not self.is_idle:
            logger.warning("The handlers have not ended in %g s. Cancelling them.", limit)
            self.cancel()
            await self.wait_until_idle(_UNWINDING)

    async def wait_until_idle(self, limit: float | None = None) -> None:
        """Wait until no work runs, for at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while not self.is_idle:  # noqa: ASYNC110  a callback for each task costs more
                    await asyncio.sleep(_POLLING)

    def _change(self, reason: DaemonStoppingReason | None) -> None:
        for listener in list(self._listeners):
            listener(reason)
        self._changed.set()
        self._changed = asyncio.Event()
