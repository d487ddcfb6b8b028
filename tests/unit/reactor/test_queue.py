"""The work queue of a kind."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from tests.kit.virtual_time import in_virtual_time
from webop.errors import APIError, APIStatusError
from webop.reactor.queue import Lane, SharedSlots, WorkQueue
from webop.reactor.store import WatchedObject


class Starter:
    """A controller that only notes what begins."""

    def __init__(self, begin: Callable[[str], None]) -> None:
        self._begin = begin

    def begin(self, obj: WatchedObject) -> None:
        self._begin(obj.name)

    def make(self, name: str) -> WatchedObject:
        controller: Any = self
        return WatchedObject(controller, name, {"metadata": {"name": name}}, needs_resume=False)


def make_queue(limit: int | None = None) -> WorkQueue:
    return WorkQueue("things", SharedSlots(), limit=limit)


async def test_objects_that_take_long_to_begin_do_not_stop_the_event_loop_together() -> None:
    queue, begun, most = make_queue(1), 0, 0

    def begin(_: str) -> None:
        nonlocal begun
        begun += 1
        time.sleep(0.02)  # as if a body of some megabytes was read

    queue.acquire()
    for number in range(20):
        queue.add(Starter(begin).make(f"{number}"), Lane.LISTED)
    queue.release()
    while begun < 20:
        before = begun
        await asyncio.sleep(0)
        most = max(most, begun - before)
    assert most <= 2


async def test_workers_that_take_long_let_other_tasks_run_in_between() -> None:
    queue, order = make_queue(), list[str]()

    def compare() -> None:
        time.sleep(0.025)  # as if a body of some megabytes was compared

    async def work() -> None:
        await queue.yield_to_loop()
        order.append("work")
        compare()

    async def serve() -> None:
        while order.count("work") < 4:
            order.append("serve")
            await asyncio.sleep(0)

    await asyncio.gather(*(work() for _ in range(4)), serve())
    assert "work work" not in " ".join(order)


async def test_an_object_is_queued_once_however_often_it_waits() -> None:
    queue, begun = make_queue(1), list[str]()
    starter = Starter(begun.append)
    listed, changed, gone = map(starter.make, ("listed", "changed", "gone"))
    queue.acquire()
    for _ in range(3):
        queue.add(listed, Lane.LISTED)
        queue.add(changed, Lane.LISTED)
        queue.add(changed, Lane.CHANGED)
        queue.add(gone, Lane.CHANGED)
        queue.remove(gone)
    queue.release()
    while queue.has_waiting:
        await asyncio.sleep(0)
    assert begun == ["changed", "listed"]


@in_virtual_time
async def test_while_writes_fail_work_without_any_request_is_not_followed_by_a_pause() -> None:
    queue, begun = make_queue(), list[tuple[str, float]]()
    loop = asyncio.get_running_loop()
    start = loop.time()

    def begin(name: str) -> None:
        begun.append((name, round(loop.time() - start, 1)))
        queue.acquire()
        loop.call_later(0.1, end, name)

    def end(name: str) -> None:
        if name.startswith("writes"):
            queue.note_failure(APIError("HTTP 503"), None)
        elif name.startswith("reads"):
            queue.keep_closed()
        queue.release()

    for _ in range(8):
        queue.note_failure(APIError("HTTP 503"), None)
    names = ["writes 1", "timer 1", "timer 2", "reads 1", "reads 2", "writes 2"]
    for name in names:
        queue.add(Starter(begin).make(name), Lane.CHANGED)
    await asyncio.sleep(60)
    assert [name for name, _ in begun] == names
    assert [at for _, at in begun] == [1.0, 3.1, 3.2, 3.3, 5.3, 7.3]


async def test_failures_of_one_namespace_do_not_stop_others() -> None:
    queue, refusal = make_queue(), APIStatusError("a webhook is down", status=500)
    queue.note_write(0.1, "good")
    for _ in range(20):
        queue.note_failure(refusal, "bad")
    assert queue.is_open
    queue.note_write(0.1, "bad")
    for _ in range(20):
        queue.note_failure(refusal, "bad")
    assert not queue.is_open


async def test_no_server_stops_the_writes_to_all_namespaces() -> None:
    queue = make_queue()
    queue.note_write(0.1, "good")
    for _ in range(20):
        queue.note_failure(APIStatusError("overloaded", status=503), "bad")
    assert not queue.is_open


@in_virtual_time
async def test_handlers_that_take_long_keep_no_slot_whatever_they_wait_for() -> None:
    queue, begun = make_queue(), list[str]()
    starter = Starter(begun.append)
    for _ in range(32):
        queue.acquire()
    queue.add(starter.make("next"), Lane.CHANGED)
    with queue.running_handlers():
        assert begun == []
        await asyncio.sleep(1)
        assert begun == ["next"]
    assert not queue.is_open


@in_virtual_time
async def test_the_more_reconcilers_write_the_slower_others_start() -> None:
    queue, started = make_queue(), list[contextlib.AbstractContextManager[None]]()

    def begin(_: str) -> None:
        queue.acquire()
        started.append(queue.running_handlers(writing=len(started)))
        started[-1].__enter__()

    starter = Starter(begin)
    for number in range(9000):
        queue.add(starter.make(str(number)), Lane.LISTED)
    await asyncio.sleep(1)
    assert 64 <= len(started) <= 200
    await asyncio.sleep(59)
    assert 500 <= len(started) <= 1500  # at an even pace, there would be all
