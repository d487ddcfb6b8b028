"""The places for objects at work."""

from __future__ import annotations

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
