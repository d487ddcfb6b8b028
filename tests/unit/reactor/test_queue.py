"""Which object has its turn next, and where no handlers begin while writes fail."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

import webop
from tests.kit.virtual_time import in_virtual_time
from webop.errors import APIError
from webop.reactor.bodies import Bodies
from webop.reactor.entry import Entry, Owner, State
from webop.reactor.outages import Outages
from webop.reactor.queue import REST, Held, Later, Result, WorkQueue
from webop.reactor.workers import Pace, Workers


class Queue(WorkQueue):
    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now = 100.0

    def begin(self, obj: Entry, result: Result | None = None) -> None:
        self.add(obj)
        assert self.get() is obj
        if result is not None:
            self.done(obj, result)

    def finish(self, seconds: float = 0.0) -> str:
        """Have all turns that are ready after some seconds; return the names of the objects."""
        self.now += seconds
        self.ripen()
        names = []
        while obj := self.get():
            names.append(obj.name)
            self.done(obj, REST)
        return " ".join(names)


@pytest.fixture
def queue() -> Queue:
    return Queue()


def make(name: str, namespace: str = "ns", *, is_listed: bool = False) -> Entry:
    obj = Entry(cast("Owner", None), f"uid of {name}", name, namespace)
    obj.event_type = None if is_listed else "MODIFIED"
    return obj


def test_four_of_five_turns_are_for_changed_objects_and_one_for_listed_ones(queue: Queue) -> None:
    for number in range(3):
        queue.add(make(f"L{number}", is_listed=True))
    changed = [make(f"c{number}") for number in range(9)]
    for obj in [*changed, changed[0]]:  # the one that is queued twice keeps its place
        queue.add(obj)
    assert queue.finish() == "c0 c1 c2 c3 L0 c4 c5 c6 c7 L1 c8 L2"
    assert queue.count == 0


@pytest.mark.parametrize(
    ("delays", "due"),
    [([3, 7], 103), ([7, 3], 103), ([7, 3, 5], 103), ([7, 0], None), ([0, 0, 7], None)],
)
def test_an_object_has_one_turn_and_the_earlier_time_counts(
    queue: Queue, delays: list[float], due: float | None
) -> None:
    obj = make("one")
    for delay in delays:
        queue.add(obj, after=delay)
    assert (queue.count, obj.due, queue.next_due) == (1, due, due)
    assert [queue.finish(2.9), queue.finish(0.1)] == (["", "one"] if due else ["one", ""])
    assert (queue.finish(10), queue.count, obj.due) == ("", 0, None)


@pytest.mark.parametrize(
    ("result", "is_dirty", "state", "due"),
    [
        (REST, False, State.IDLE, None),
        (REST, True, State.WAITING, None),
        (Later(4), False, State.RESTING, 104),
        (Later(0), False, State.WAITING, None),
        (Later(4), True, State.WAITING, None),
        (Held("pause"), False, State.HELD, None),
        (Held("pause"), True, State.WAITING, None),
        (Held("a hold that has ended"), False, State.WAITING, None),
    ],
)
def test_the_result_of_a_turn_says_when_the_next_one_is(
    queue: Queue, result: Result, is_dirty: bool, state: State, due: float | None
) -> None:
    queue.hold("pause")
    obj = make("one")
    queue.begin(obj)
    if is_dirty:
        queue.add(obj)
        assert queue.get() is None  # never two turns of an object at once
    queue.done(obj, result)
    assert (obj.state, obj.due, queue.count) == (state, due, int(state is not State.IDLE))


def test_a_hold_keeps_its_objects_until_it_ends_or_releases_one(queue: Queue) -> None:
    objs = [make(name) for name in ("a", "b", "c")]
    queue.hold("indexes")
    queue.hold("pause")
    assert queue.release("pause") is None
    for obj in objs:
        queue.begin(obj, Held("pause"))
        queue.hold("pause")  # again
    queue.begin(make("other"), Held("indexes"))
    assert queue.release("pause") is objs[0]
    assert (queue.finish(), queue.count) == ("a", 3)
    queue.unhold("pause")
    assert (queue.finish(), queue.count, [*queue.holds]) == ("b c", 1, ["indexes"])


def test_a_change_of_a_held_object_leads_to_a_turn_and_a_due_time_does_not(queue: Queue) -> None:
    queue.hold("pause")
    obj = make("one")
    queue.begin(obj, Held("pause"))
    queue.add(obj, after=3)
    assert queue.finish(3) == ""
    queue.add(obj)  # to be indexed, and to show its events
    assert (queue.finish(), queue.count) == ("one", 0)


def do_nothing() -> None:
    """Start no workers."""


def fail(outages: Outages, count: int, namespace: str = "ns") -> list[Entry]:
    objs = [make(f"{namespace}-{number}", namespace) for number in range(count)]
    for obj in objs:
        outages.note(obj, APIError("no answer"))
    return objs


@in_virtual_time
async def test_a_namespace_closes_at_50_objects_and_opens_when_a_write_succeeds() -> None:
    queue = Queue()
    outages, one = Outages("widgets", queue, do_nothing), make("one")
    failed = fail(outages, 49)
    outages.note(failed[0], APIError("no answer"))  # again; there are still 49 objects
    assert outages.find_hold(one) is None
    outages.note(one, APIError("no answer"))
    place = outages.find_hold(one)
    assert place is not None
    assert outages.find_hold(make("other", "healthy")) is None
    queue.begin(one, Held(place))
    outages.note(make("new"), None)
    assert outages.find_hold(one) is None
    assert (queue.finish(), queue.holds) == ("one", {})
    for obj in failed[:50]:  # as many as have succeeded; those before the opening do not count
        outages.note(obj, APIError("no answer"))
        assert outages.find_hold(one) is None
    for obj in failed[:2]:
        outages.note(obj, APIError("no answer"))
    assert outages.find_hold(one) is not None


def test_objects_that_are_due_at_once_do_not_stop_the_workers_in_the_loop_of_webop_run() -> None:
    turns: list[str] = []

    async def take_turn(obj: Entry) -> Result:
        turns.append(obj.name)
        return Later(1e-5) if turns.count(obj.name) < 20 else REST

    async def work() -> None:
        operator: Any = SimpleNamespace(settings=webop.OperatorSettings())
        workers = Workers("widgets", operator, Bodies(), Pace())
        for name in "abc":
            owner: Any = SimpleNamespace(take_turn=take_turn)
            workers.add(Entry(owner, name, name, "ns"))
        async with asyncio.timeout(5):
            while len(turns) < 60:
                await asyncio.sleep(0.01)

    uvloop.run(work())
    assert len(turns) == 60
