"""The places for objects at work."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future

from webop.reactor.room import Room, Total


async def test_an_object_is_left_alone_until_the_last_of_its_threads_ends() -> None:
    room = Room("things", Total())
    first: Future[None] = Future()
    second: Future[None] = Future()
    room.block("a", first)
    room.block("a", second)
    second.set_result(None)
    assert room.is_blocked("a")
    first.set_result(None)
    assert not room.is_blocked("a")


async def test_objects_that_take_long_to_begin_do_not_stop_the_event_loop_together() -> None:
    room, begun, most = Room("things", Total()), 0, 0

    def begin(_: object) -> None:
        nonlocal begun
        begun += 1
        time.sleep(0.02)  # as if a body of some megabytes was read

    for number in range(20):
        room.wait(begin, number, is_urgent=False)
    while begun < 20:
        before = begun
        await asyncio.sleep(0)
        most = max(most, begun - before)
    assert most <= 2
