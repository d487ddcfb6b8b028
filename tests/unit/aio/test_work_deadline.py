"""Tasks behind a fence take no step after its end, whatever has kept them from an earlier one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from webop.aio.cancellation import WorkerGroup
from webop.aio.work_deadline import Fence, fence_child_tasks, read_clock
from webop.context.pausing import Pausing
from webop.handlers.stopping import DaemonStoppingReason, Stopper, SyncDaemonStopped

_LEASE = 0.15  # seconds


class Steps:
    """What tasks have done, by the clock of fences."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def __call__(self) -> None:
        self.moments.append(read_clock())

    async def go_on(self) -> None:
        while True:
            self()
            await asyncio.sleep(0.01)


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def pausing() -> Pausing:
    pausing = Pausing()
    pausing.fence = Fence()
    pausing.fence.ends_at = read_clock() + 60
    return pausing


@contextlib.asynccontextmanager
async def doing(pausing: Pausing, coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have something done behind the fence, and see that it ends in time."""
    async with asyncio.timeout(5):
        task = pausing.spawn(WorkerGroup(), coroutine, name="work")
        await asyncio.sleep(0.05)
        assert pausing.fence is not None
        pausing.fence.ends_at = read_clock() + _LEASE  # only now: a busy machine begins late
        yield
        await asyncio.wait({task})


async def time_out(steps: Steps) -> None:
    """Take a step at each time out, which must not be taken for the end."""
    while True:
        try:
            async with asyncio.timeout(0.02):
                await asyncio.sleep(10)
        except TimeoutError:
            steps()


async def start_others(steps: Steps) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(steps.go_on(), name="child")
        await asyncio.wait_for(asyncio.gather(steps.go_on(), steps.go_on()), 10)


@pytest.mark.parametrize("work", [Steps.go_on, time_out, start_others])
async def test_a_task_and_its_children_take_no_step_after_the_loop_was_blocked_beyond_the_end(
    pausing: Pausing, steps: Steps, work: Callable[[Steps], Coroutine[Any, Any, None]]
) -> None:
    fence_child_tasks(asyncio.get_running_loop())
    fence_child_tasks(asyncio.get_running_loop())  # once is enough
    async with doing(pausing, work(steps)):
        taken = len(steps.moments)
        time.sleep(2 * _LEASE)  # noqa: ASYNC251 - as if the process was stopped
    assert 0 < taken == len(steps.moments)


async def test_cleaning_up_is_possible_but_cannot_wait_for_anything(pausing: Pausing) -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            cleaned.append("at once")
            await asyncio.sleep(0)
            cleaned.append("later")

    async with doing(pausing, work()):
        time.sleep(2 * _LEASE)  # noqa: ASYNC251
        pausing.cancel()
    assert cleaned == ["at once"]


async def test_sync_daemons_see_the_end_even_if_nobody_tells_them(pausing: Pausing) -> None:
    flags: list[SyncDaemonStopped] = []

    async def start() -> None:
        flags.append(SyncDaemonStopped(Stopper()))

    async with doing(pausing, start()):
        (flag,) = flags
        assert not flag
        assert not flag.is_set()
        time.sleep(2 * _LEASE)  # noqa: ASYNC251
        assert bool(flag)
        assert flag.is_set()
        assert flag.wait(0)
        assert not flag.is_set(DaemonStoppingReason.OPERATOR_EXITING)
    assert not SyncDaemonStopped(Stopper())  # without a fence
