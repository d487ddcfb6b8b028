"""Coroutines that run concurrently end together."""

from __future__ import annotations

import asyncio

from tests.kit.rows import rows
from webop.aio.concurrency import run_concurrently


@rows("steps", range(5))
async def test_a_cancellation_is_not_lost_as_one_of_them_fails_at_the_same_moment(
    steps: int,
) -> None:
    failing = asyncio.Event()

    async def fail() -> None:
        await failing.wait()
        raise ValueError

    task = asyncio.create_task(run_concurrently([fail(), asyncio.Event().wait()]))
    await asyncio.sleep(0.01)
    failing.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    is_cancelled = task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() is is_cancelled
