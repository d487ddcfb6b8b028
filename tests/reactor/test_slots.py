"""The places for objects at work."""

from __future__ import annotations

import asyncio
import time

from tests.client.virtual_time import in_virtual_time
from webop.reactor.slots import SharedSlots, Slots


async def test_objects_that_take_long_to_begin_do_not_stop_the_event_loop_together() -> None:
    slots, begun, most = Slots("things", SharedSlots()), 0, 0

    def begin(_: object) -> None:
        nonlocal begun
        begun += 1
        time.sleep(0.02)  # as if a body of some megabytes was read

    for number in range(20):
        slots.wait(begin, number, is_urgent=False)
    while begun < 20:
        before = begun
        await asyncio.sleep(0)
        most = max(most, begun - before)
    assert most <= 2


async def test_workers_that_take_long_let_other_tasks_run_in_between() -> None:
    slots, order = Slots("things", SharedSlots()), list[str]()

    def compare() -> None:
        time.sleep(0.025)  # as if a body of some megabytes was compared

    async def work() -> None:
        await slots.yield_to_loop()
        order.append("work")
        compare()

    async def serve() -> None:
        while order.count("work") < 4:
            order.append("serve")
            await asyncio.sleep(0)

    await asyncio.gather(*(work() for _ in range(4)), serve())
    assert "work work" not in " ".join(order)


async def test_an_object_is_queued_once_however_often_it_waits() -> None:
    slots, begun = Slots("things", SharedSlots(), limit=1), list[str]()
    slots.enter()
    for _ in range(3):
        slots.wait(begun.append, "listed", is_urgent=False)
        slots.wait(begun.append, "changed", is_urgent=False)
        slots.wait(begun.append, "changed", is_urgent=True)
        slots.wait(begun.append, "gone", is_urgent=True)
        slots.remove("gone")
    slots.leave()
    while slots.has_waiting:
        await asyncio.sleep(0)
    assert begun == ["changed", "listed"]


@in_virtual_time
async def test_while_writes_fail_work_without_any_request_is_not_followed_by_a_pause() -> None:
    slots, begun = Slots("things", SharedSlots()), list[tuple[str, float]]()
    loop = asyncio.get_running_loop()
    start = loop.time()

    def begin(name: str) -> None:
        begun.append((name, round(loop.time() - start, 1)))
        slots.enter()
        loop.call_later(0.1, end, name)

    def end(name: str) -> None:
        if name.startswith("writes"):
            slots.note_failure("HTTP 503")
        elif name.startswith("reads"):
            slots.keep_closed()
        slots.leave()

    for _ in range(8):
        slots.note_failure("HTTP 503")
    for name in ("writes 2", "reads 2", "reads 1", "timer 2", "timer 1", "writes 1"):
        slots.wait(begin, name, is_urgent=True)
    await asyncio.sleep(60)
    expected = ["writes 1", "timer 1", "timer 2", "reads 1", "reads 2", "writes 2"]
    assert [name for name, _ in begun] == expected
    assert [at for _, at in begun] == [1.0, 3.1, 3.2, 3.3, 5.3, 7.3]
