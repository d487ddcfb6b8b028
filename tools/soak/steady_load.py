"""Requests at a steady rate, independent of the responses."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def run_steadily(
    act: Callable[[int], Coroutine[Any, Any, None]], rate: float
) -> AsyncIterator[None]:
    """Send numbered requests during a block; at its end, wait for all responses."""
    stopping = asyncio.Event()

    async def run() -> None:
        started, count = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while not stopping.is_set():
                group.create_task(act(count))
                count += 1
                pause = started + count / rate - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), max(0.0, pause))

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        stopping.set()
        await task
