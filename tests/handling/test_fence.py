"""Tasks behind a fence take no step after its end, whatever has kept them from an earlier one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from webop.handling.duty import Duty
from webop.handling.fence import Fence, Fenced, fence_offspring, read_clock
from webop.handling.stopping import DaemonStoppingReason, Stopper, SyncDaemonStopped
from webop.handling.threads import call_in_thread
from webop.settings import ExecutionSettings

_LEASE = 0.15  # seconds


class Steps:
    """What tasks have done, by the clock of fences."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def __call__(self) -> None:
        self.moments.append(read_clock())

    def after(self, moment: float) -> int:
        return sum(taken > moment for taken in self.moments)


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def duty() -> Duty:
    duty = Duty()
    duty.fence = Fence()
    duty.fence.ends_at = read_clock() + 60
    return duty


@contextlib.asynccontextmanager
async def doing(duty: Duty, coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have something done behind the fence, and see that it ends in time."""
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        duty.spawn(group, coroutine, name="work")
        await asyncio.sleep(0.05)
        assert duty.fence is not None
        duty.fence.ends_at = read_clock() + _LEASE  # only now: a busy machine begins late
        yield


def is_at_work(duty: Duty) -> bool:
    return not duty.is_idle


async def test_a_task_takes_no_step_after_the_loop_was_blocked_beyond_the_end(
    duty: Duty, steps: Steps
) -> None:
    async def work() -> None:
        while True:
            steps()
            await asyncio.sleep(0.01)

    async with doing(duty, work()):
        taken = len(steps.moments)
        time.sleep(2 * _LEASE)  # noqa: ASYNC251 - as if the process was stopped
    assert 0 < taken == len(steps.moments)


async def test_a_time_out_that_is_due_does_not_take_the_end_for_its_own(
    duty: Duty, steps: Steps
) -> None:
    async def work() -> None:
        while True:
            try:
                async with asyncio.timeout(0.02):
                    await asyncio.sleep(10)
            except TimeoutError:
                steps()

    async with doing(duty, work()):
        taken = len(steps.moments)
        time.sleep(2 * _LEASE)  # noqa: ASYNC251
    assert 0 < taken == len(steps.moments)


async def test_an_error_of_what_is_awaited_is_no_way_around_the_end(
    duty: Duty, steps: Steps
) -> None:
    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await failing
        except ValueError:
            steps()

    async with doing(duty, work()):
        failing.set_exception(ValueError())
        time.sleep(2 * _LEASE)  # noqa: ASYNC251
    assert steps.moments == []


async def test_cleaning_up_is_possible_but_cannot_wait_for_anything(
    duty: Duty, steps: Steps
) -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            cleaned.append("at once")
            await asyncio.sleep(0)
            cleaned.append("later")

    async with doing(duty, work()):
        time.sleep(2 * _LEASE)  # noqa: ASYNC251
        duty.cancel()
    assert cleaned == ["at once"]


async def test_tasks_that_are_started_behind_the_fence_are_behind_it_too(
    duty: Duty, steps: Steps
) -> None:
    fence_offspring(asyncio.get_running_loop())
    fence_offspring(asyncio.get_running_loop())  # once is enough

    async def child() -> None:
        while True:
            steps()
            await asyncio.sleep(0.01)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child(), name="child")
            await asyncio.wait_for(asyncio.gather(child(), child()), 10)

    async with doing(duty, work()):
        taken = len(steps.moments)
        time.sleep(2 * _LEASE)  # noqa: ASYNC251
    assert 0 < taken == len(steps.moments)


async def test_other_tasks_of_the_loop_are_not_behind_the_fence(duty: Duty, steps: Steps) -> None:
    fence_offspring(asyncio.get_running_loop())

    assert duty.fence is not None
    duty.fence.ends_at = read_clock()

    async def other() -> None:
        for _ in range(3):
            steps()
            await asyncio.sleep(0)

    await asyncio.create_task(other())
    assert steps.after(duty.fence.ends_at) == 3


async def test_a_task_factory_of_the_user_is_used_on(duty: Duty) -> None:
    loop = asyncio.get_running_loop()
    made: list[Any] = []

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> Any:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **kwargs)

    loop.set_task_factory(make)
    fence_offspring(loop)
    await asyncio.create_task(asyncio.sleep(0))
    async with doing(duty, asyncio.sleep(0)):
        assert [isinstance(coroutine, Fenced) for coroutine in made] == [False, True]
    loop.set_task_factory(None)


async def test_an_end_that_is_put_off_ends_nothing(duty: Duty, steps: Steps) -> None:
    async def work() -> None:
        for _ in range(5):
            steps()
            await asyncio.sleep(0.05)

    async with doing(duty, work()):
        assert duty.fence is not None
        duty.fence.ends_at += 60
    assert len(steps.moments) == 5


async def test_a_call_in_a_thread_is_counted_until_the_thread_has_ended_it(duty: Duty) -> None:
    assert duty.fence is not None
    ended = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        pool = ExecutionSettings(executor=executor)
        async with doing(duty, call_in_thread(ended.wait, {}, pool)):
            assert len(duty.fence.threads) == 1
            duty.cancel()
            await duty.wait_until_idle()
            assert is_at_work(duty)  # nobody waits for the thread any more
            ended.set()
            while is_at_work(duty):
                await asyncio.sleep(0.01)
        await call_in_thread(ended.wait, {}, pool)  # of somebody else
        assert not duty.fence.threads


async def test_sync_daemons_see_the_end_even_if_nobody_tells_them(duty: Duty) -> None:
    flags: list[SyncDaemonStopped] = []

    async def start() -> None:
        flags.append(SyncDaemonStopped(Stopper()))

    async with doing(duty, start()):
        (flag,) = flags
        assert not flag
        assert not flag.is_set()
        time.sleep(2 * _LEASE)  # noqa: ASYNC251
        assert bool(flag)
        assert flag.is_set()
        assert flag.wait(0)
        assert not flag.is_set(DaemonStoppingReason.OPERATOR_EXITING)
    assert not SyncDaemonStopped(Stopper())  # without a fence


async def test_inspectors_of_tasks_see_the_coroutine(duty: Duty) -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        coroutine: Any = task.get_coro()
        assert coroutine.cr_running
        assert coroutine.__name__ == "work"

    async with doing(duty, work()):
        pass
