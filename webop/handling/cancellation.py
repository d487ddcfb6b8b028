"""Cancellations that get lost: a task group that ends by an error swallows them.

Whoever catches the errors of a task group and goes on has to look whether it may.
"""

from __future__ import annotations

import asyncio


def is_being_cancelled() -> bool:
    """Tell whether the present task was told to end, whatever has become of the exception."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def end_if_cancelled() -> None:
    """End the present task if it was told to end.

    Raises:
        asyncio.CancelledError: it was.
    """
    if is_being_cancelled():
        raise asyncio.CancelledError
