"""Task groups whose errors are caught by those who go on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from webop.handling.cancellation import TaskGroup, end_if_cancelled, is_being_cancelled


async def fail(event: asyncio.Event) -> None:
    await event.wait()
    raise ValueError


async def linger(seconds: float) -> None:
    """Take a while to end when cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "at the end"])
async def test_the_error_of_a_child_does_not_look_like_a_cancellation(is_inside: bool) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, event.set)
    errors: list[Exception] = []
    try:
        async with TaskGroup() as group:
            group.create_task(fail(event))
            lasting = group.create_task(linger(0.01))
            if is_inside:
                await asyncio.Event().wait()
    except* ValueError as failures:
        errors += failures.exceptions
    assert len(errors) == 1
    assert lasting.cancelled()
    assert not is_being_cancelled()
    end_if_cancelled()


@pytest.mark.parametrize("is_failing", [False, True], ids=["cancelled", "cancelled and failed"])
async def test_a_cancellation_from_outside_is_not_lost(is_failing: bool) -> None:
    event = asyncio.Event()
    is_going_on = False

    async def work() -> None:
        nonlocal is_going_on
        with contextlib.suppress(ExceptionGroup):
            async with TaskGroup() as group:
                group.create_task(linger(0.05))
                group.create_task(fail(event))
        end_if_cancelled()
        is_going_on = True

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    if is_failing:
        event.set()
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not is_going_on


async def test_a_group_whose_children_start_others_ends_with_the_last_one() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        if number:
            group.create_task(work(number - 1))
        ended.append(number)

    async with TaskGroup() as group:
        group.create_task(work(3))
    assert sorted(ended) == [0, 1, 2, 3]
