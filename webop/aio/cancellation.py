"""Cancellation: handlers can swallow that of webop, and can cancel themselves.

The work on objects runs in a :class:`WorkerGroup`, each call of an async handler in a separate
task (:func:`contain`). So only webop cancels the tasks of webop, and what else ends a call is a
failure of the handler. Code that calls functions of users treats their errors with
:func:`convert_exception`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

logger = logging.getLogger(__name__)


class WorkerGroup:
    """Tasks that end together, like a task group, but within a limited time.

    An error of one task does not end the others; it is logged.

    Attributes:
        context: each task gets a copy: the context of its creator can belong to another object.
    """

    def __init__(self) -> None:
        self.context = contextvars.copy_context()
        self._tasks: set[asyncio.Task[Any]] = set()

    def create_task(
        self,
        coroutine: Coroutine[Any, Any, Any],
        *,
        name: str,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        """Start a task, in a context that the caller can prepare."""
        context = context or self.context.copy()
        task = asyncio.create_task(coroutine, name=name, context=context)
        self.add(task)
        return task

    def add(self, task: asyncio.Task[Any]) -> None:
        """Let a task end together with the others."""
        self._tasks.add(task)
        task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            logger.error("The task %s failed: %r", task.get_name(), exc, exc_info=exc)

    async def end(self, timeout: float) -> set[asyncio.Task[Any]]:
        """Cancel all tasks, wait for their end, and return those that do not end in time.

        After 80 % of the time, the remaining tasks are cancelled again: the first cancellation may
        have interrupted a handler, and the task now writes its outcome.
        """
        for share in (0.8, 0.2):
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(set(self._tasks), timeout=timeout * share)
        return set(self._tasks)


def count_cancellations() -> int:
    """Return how often the current task was cancelled, even if the exceptions were lost."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def contain(
    fn: Callable[..., Awaitable[Any]], kwargs: Mapping[str, Any]
) -> tuple[Any, BaseException | None]:
    """Call an async handler; return exceptions that would end more than its task."""
    call = fn(**kwargs)
    del kwargs  # daemons run for long
    try:
        return await call, None
    except (SystemExit, GeneratorExit) as exc:
        return None, exc


def unwrap(done: tuple[Any, BaseException | None]) -> Any:
    """Return the result of a call; raise an error if it has tried to end more than its task."""
    result, failure = done
    if failure is not None:
        raise RuntimeError(_describe(failure)) from failure
    return result


def convert_exception(exc: BaseException) -> Exception:
    """Return any exception of a user's function as an ``Exception`` with a readable text.

    Coroutines must not convert a ``GeneratorExit``, which Python can raise in them.

    Raises:
        BaseException: Ctrl-C, or the end of this task.
    """
    if isinstance(exc, KeyboardInterrupt):
        raise exc
    if isinstance(exc, asyncio.CancelledError) and count_cancellations():
        raise exc
    try:
        if isinstance(exc, Exception) and (str(exc) or repr(exc)):
            return exc
        error = RuntimeError(_describe(exc))
    except Exception as failure:  # noqa: BLE001  the class of the error is the user's
        kind, why = type(exc).__name__, type(failure).__name__
        error = RuntimeError(f"{kind} was raised, but its text cannot be read: {why}.")
    error.__cause__ = exc
    return error


def _describe(exc: BaseException) -> str:
    return f"The handler raised {exc!r}. Handlers cannot stop the operator."
