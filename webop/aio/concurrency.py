"""Run coroutines concurrently, so that all of them end together; wait for a limited time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def find_running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def run_concurrently(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results, as ``asyncio.gather()`` does; but if one fails, the others end first.

    Unlike there, the cancellation of the caller is not lost if one fails at the same moment.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
    return [task.result() for task in tasks]


@contextlib.asynccontextmanager
async def running(coroutine: Coroutine[Any, Any, Any], *, name: str) -> AsyncIterator[None]:
    """Run a coroutine in a task during a block; cancel it and wait for its end after it."""
    task = asyncio.create_task(coroutine, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def wait_and_clear(event: asyncio.Event, limit: float | None) -> None:
    """Wait for an event, for at most so many seconds, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            await event.wait()
    event.clear()
