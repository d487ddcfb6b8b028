"""Cancellations that get lost: a task group that ends by an error swallows them.

Code that catches the errors of a task group and continues must use the :class:`TaskGroup` of this
module, and then call :func:`end_if_cancelled`.
"""

from __future__ import annotations

import asyncio
import sys

if sys.version_info >= (3, 13):
    TaskGroup = asyncio.TaskGroup
else:
    from types import TracebackType

    class TaskGroup(asyncio.TaskGroup):
        """A task group that leaves ``cancelling()`` of its task as it was, also after errors.

        When a child fails while the end of the group is awaited, the one of the standard library
        cancels its task and never takes that back (fixed in Python 3.13). Within the block, it
        does so correctly; so the children are awaited before the block is left.
        """

        async def __aexit__(
            self,
            et: type[BaseException] | None,
            exc: BaseException | None,
            tb: TracebackType | None,
        ) -> None:
            try:
                while exc is None and self._tasks:
                    await asyncio.wait(self._tasks)
            except asyncio.CancelledError as cancelled:
                et, exc, tb = type(cancelled), cancelled, cancelled.__traceback__
            await super().__aexit__(et, exc, tb)


def is_being_cancelled() -> bool:
    """Tell whether the present task was cancelled, even if the exception was lost."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def end_if_cancelled() -> None:
    """End the present task if it was cancelled.

    Raises:
        asyncio.CancelledError: it was.
    """
    if is_being_cancelled():
        raise asyncio.CancelledError
