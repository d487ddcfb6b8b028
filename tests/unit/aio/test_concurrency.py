"""Tasks that start at once, where Python can do that."""

from __future__ import annotations

import asyncio
import sys

from webop.aio.concurrency import start_task


async def test_the_first_step_of_a_task_runs_at_once_from_python_3_12_on() -> None:
    found = []

    async def work() -> str:
        found.append(asyncio.current_task())
        await asyncio.sleep(0)
        return "done"

    task = start_task(asyncio.get_running_loop(), work())
    assert found == ([task] if sys.version_info >= (3, 12) else [])
    assert await task == "done"


async def test_a_task_factory_of_the_loop_stays_in_use() -> None:
    loop, made = asyncio.get_running_loop(), []

    def create(loop: asyncio.AbstractEventLoop, coroutine: object, **options: object) -> object:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)  # type: ignore[arg-type]

    loop.set_task_factory(create)  # type: ignore[arg-type]
    try:
        assert await start_task(loop, asyncio.sleep(0, "done")) == "done"
    finally:
        loop.set_task_factory(None)
    assert len(made) == 1
