"""Events become work on objects: each by one worker at a time, the newest state always."""

from __future__ import annotations

import asyncio
import gc
import itertools
import secrets
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.client.virtual_time import in_virtual_time
from tests.operating import eventually
from webop.client.events import parse_version
from webop.errors import APIError
from webop.handling.stopping import DaemonStoppingReason
from webop.handling.threads import NO_POOL, Pool, call_in_thread
from webop.objects.patch import Patch
from webop.reactor.decision import Decision
from webop.reactor.dispatcher import Dispatcher
from webop.reactor.index_gate import IndexGate
from webop.reactor.slots import SharedSlots, Slots
from webop.reactor.tracking import Pending, Phase, Tracked


def build(uid: str, version: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {"uid": uid, "name": f"name-{uid}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": spec}


class Processor:
    """Notes what it is asked to do; works as long as it is told to."""

    def __init__(self, *, wants_every_event: bool = False) -> None:
        self.event_pool: Pool | None = None
        self.handlers: Any = SimpleNamespace(events=wants_every_event, indexers=False)
        self.ctx: Any = SimpleNamespace(
            refer_to=lambda obj: {"k8s_ref": {"name": obj.name}}, handlers=self.handlers
        )
        self.seen: list[tuple[str, Any, int]] = []
        self.shown: list[tuple[str, Any]] = []
        self.forgotten: list[str] = []
        self.indexed: list[str] = []
        self.withdrawn: list[str] = []
        self.inside: list[str] = []
        self.violations: list[str] = []
        self.crowd = 0
        self.needs_resume: dict[str, bool] = {}
        self.is_needed: Callable[[Tracked], bool] = lambda obj: True
        self.work: Callable[[Tracked], Any] = self.nothing
        self.delays: dict[str, list[float | None]] = {}

    async def nothing(self, obj: Tracked) -> None: ...

    def decide(self, obj: Tracked) -> Decision | None:
        decision: Any = obj.raw if self.is_needed(obj) else None
        return cast("Decision | None", decision)

    async def read(self, obj: Tracked) -> dict[str, Any] | None:
        return build(obj.uid, obj.version)

    async def show_event(self, obj: Tracked, event_type: Any, raw: dict[str, Any]) -> None:
        self.shown.append((obj.uid, event_type))
        await self.work(obj)

    async def index(self, raw: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        self.indexed.append(raw["metadata"]["uid"])

    async def index_newest(self, obj: Tracked) -> None:
        obj.is_unindexed = False
        if obj.raw is not None:
            await self.index(obj.raw)

    def withdraw(self, obj: Tracked) -> None:
        self.withdrawn.append(obj.uid)

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    def on_error(self, obj: Tracked, exc: Exception) -> float | None:
        raise exc

    async def process(self, obj: Tracked, decision: Decision | None) -> float | None:
        if obj.uid in self.inside:
            self.violations.append(f"two workers on {obj.uid}")
        self.inside.append(obj.uid)
        self.crowd = max(self.crowd, len(self.inside))
        self.needs_resume.setdefault(obj.uid, obj.needs_resume)
        self.seen.append((obj.uid, obj.event_type, obj.version))
        await self.work(obj)
        self.inside.remove(obj.uid)
        return (self.delays.get(obj.uid) or [None]).pop(0)

    def versions(self, uid: str) -> list[int]:
        return [version for seen, _, version in self.seen if seen == uid]


def open_gate() -> IndexGate:
    gate = IndexGate()
    gate.expect([])
    return gate


def make_slots(limit: int | None = None) -> Slots:
    return Slots("things", SharedSlots(), limit=limit)


def dispatch(
    processor: Any,
    *,
    limit: int | None = None,
    slots: Slots | None = None,
    gate: IndexGate | None = None,
    is_resuming: bool = True,
) -> Dispatcher:
    """Begin to dispatch, by default with an open gate and its own slots."""
    dispatcher = Dispatcher(
        processor,
        spawn=asyncio.create_task,
        gate=gate or open_gate(),
        slots=slots or make_slots(limit),
    )
    dispatcher.set_paused(None)
    if not is_resuming:  # nothing was there before
        dispatcher.begin_listing()
        dispatcher.finish_listing()
    return dispatcher


@pytest.fixture
def processor() -> Iterator[Processor]:
    """A processor that has never been asked to work on one object twice at once."""
    processor = Processor()
    yield processor
    assert processor.violations == []


@pytest.fixture
def dispatcher(processor: Processor) -> Dispatcher:
    return dispatch(processor)


async def settle() -> None:
    """Let all that is ready to run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.feature("EVT-12")
async def test_every_object_is_worked_on(dispatcher: Dispatcher, processor: Processor) -> None:
    for uid in "abc":
        dispatcher.feed("ADDED", build(uid))
    await settle()
    assert processor.seen == [("a", "ADDED", 1), ("b", "ADDED", 1), ("c", "ADDED", 1)]
    assert len(dispatcher.uids) == 3


@pytest.mark.feature("EVT-11", "EVT-12")
async def test_states_that_pile_up_are_skipped_but_the_last_one_is_not(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    released = asyncio.Event()
    processor.work = lambda obj: released.wait()
    for version in range(1, 6):
        dispatcher.feed("MODIFIED", build("a", version))
        await settle()
    released.set()
    await settle()
    assert processor.versions("a") == [1, 5]


async def test_a_state_that_comes_at_the_very_end_of_the_work_is_worked_on(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    async def work(obj: Tracked) -> None:
        if obj.version == 1:
            asyncio.get_running_loop().call_soon(dispatcher.feed, "MODIFIED", build("a", 2))

    processor.work = work
    dispatcher.feed("ADDED", build("a", 1))
    await settle()
    assert processor.versions("a") == [1, 2]


async def test_what_is_known_already_is_no_news(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    async def patch(obj: Tracked) -> None:
        if obj.version == 1:
            obj.accept_own(build("a", 7))

    processor.work = patch
    dispatcher.feed("ADDED", build("a", 1))
    await settle()
    assert processor.versions("a") == [1, 7]
    for version in (5, 6, 7):
        dispatcher.feed("MODIFIED", build("a", version))
    await settle()
    assert processor.versions("a") == [1, 7]
    dispatcher.feed("MODIFIED", build("a", 8))
    await settle()
    assert processor.versions("a") == [1, 7, 8]


async def test_an_answer_that_is_older_than_what_is_known_is_no_news(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    async def patch_late(obj: Tracked) -> None:
        dispatcher.feed("MODIFIED", build("a", 9))
        obj.accept_own(build("a", 8))
        processor.work = processor.nothing

    processor.work = patch_late
    dispatcher.feed("ADDED", build("a", 1))
    await settle()
    assert processor.versions("a") == [1, 9]


async def test_objects_without_work_take_no_worker_and_keep_no_body(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    processor.is_needed = lambda obj: False
    body = build("a", 1, marker=object())
    marker = body["spec"]["marker"]
    dispatcher.feed("ADDED", body)
    await settle()
    assert processor.seen == []
    assert len(dispatcher.uids) == 1
    del body
    gc.collect()
    holders = [item for item in gc.get_referrers(marker) if isinstance(item, dict)]
    assert not [item for item in holders if item.get("marker") is marker]


@pytest.mark.feature("EVT-02", "HND-26")
async def test_those_who_want_every_event_get_every_event(processor: Processor) -> None:
    processor.handlers.events = True
    released = asyncio.Event()
    processor.work = lambda obj: released.wait()
    dispatcher = dispatch(processor)
    for event_type, version in ((None, 1), ("MODIFIED", 2), ("MODIFIED", 3), ("DELETED", 4)):
        dispatcher.feed(event_type, build("a", version))  # type: ignore[arg-type]
    released.set()
    await settle()
    assert processor.shown == [
        ("a", None),
        ("a", "MODIFIED"),
        ("a", "MODIFIED"),
        ("a", "DELETED"),
    ]
    dispatcher.feed("DELETED", build("unknown", 5))
    await settle()
    assert processor.shown[-1] == ("unknown", "DELETED")
    assert len(dispatcher.uids) == 0


async def test_of_too_many_events_of_an_object_the_oldest_are_skipped(
    processor: Processor, caplog: pytest.LogCaptureFixture
) -> None:
    processor.handlers.events = True
    processor.is_needed = lambda obj: False
    released = asyncio.Event()
    processor.work = lambda obj: released.wait()
    dispatcher = dispatch(processor)
    for version in range(1, 101):
        dispatcher.feed("ADDED" if version == 1 else "MODIFIED", build("a", version))
        await settle()
    released.set()
    await settle()
    assert len(processor.shown) == 21
    assert processor.shown[0] == ("a", "ADDED")
    assert caplog.text.count("Events of name-a arrive faster than its handlers run") == 1
    assert [getattr(record, "k8s_ref", None) for record in caplog.records] == [{"name": "name-a"}]


async def test_a_slow_handler_of_events_delays_neither_changes_nor_deletions(
    processor: Processor,
) -> None:
    processor.handlers.events = True
    released = asyncio.Event()

    async def show(obj: Tracked, event_type: Any, raw: dict[str, Any]) -> None:
        await released.wait()

    processor.show_event = show  # type: ignore[method-assign]
    dispatcher = dispatch(processor)
    for version in range(1, 6):
        dispatcher.feed("MODIFIED", build("a", version))
        await settle()
    assert processor.versions("a") == [1, 2, 3, 4, 5]
    dispatcher.feed("DELETED", build("a", 6))
    await settle()
    assert processor.forgotten == []
    released.set()
    await settle()
    assert processor.forgotten == ["a"]


async def test_objects_that_wait_for_room_keep_no_body(processor: Processor) -> None:
    released = asyncio.Event()
    processor.work = lambda obj: released.wait()
    dispatcher = dispatch(processor)
    marked: list[Any] = []
    for number in range(200):
        body = build(f"u{number}", 1, marker=[number])
        marked.append(body["spec"]["marker"])
        dispatcher.feed(None, body)
    del body
    await settle()
    in_work = len(processor.inside)
    assert in_work < 50
    gc.collect()
    specs = [item for item in gc.get_referrers(*marked) if isinstance(item, dict)]
    held = [item for item in marked if any(item is spec.get("marker") for spec in specs)]
    assert len(held) == in_work
    dispatcher.feed("MODIFIED", build("u199", 2))  # what happens live is more urgent than a list
    released.set()
    await eventually(lambda: len({uid for uid, _, _ in processor.seen}) == 200)
    order = list(dict.fromkeys(uid for uid, _, _ in processor.seen))
    assert order.index("u150") > order.index("u50")
    assert processor.versions("u199") == [2]


async def test_a_change_is_worked_on_before_the_rest_of_a_listing(processor: Processor) -> None:
    released = asyncio.Event()
    processor.work = lambda obj: released.wait()
    dispatcher = dispatch(processor)
    for number in range(500):
        dispatcher.feed(None, build(f"u{number}"))
    dispatcher.feed("ADDED", build("live"))
    await settle()
    begun = len(processor.seen)
    released.set()
    await eventually(lambda: len(processor.seen) == 501)
    assert [uid for uid, _, _ in processor.seen].index("live") == begun


async def test_a_listing_is_worked_on_though_changes_never_end(processor: Processor) -> None:
    dispatcher = dispatch(processor, limit=1)

    async def work(obj: Tracked) -> None:
        await asyncio.sleep(0)
        if obj.uid.startswith("live"):
            dispatcher.feed("MODIFIED", build(obj.uid[:-1] + "ab"[obj.uid[-1] == "a"], next(count)))

    count = itertools.count(2)
    processor.work = work
    for uid in ("live-a", "live-b"):
        dispatcher.feed("ADDED", build(uid))
    for number in range(20):
        dispatcher.feed(None, build(f"u{number}"))
    await eventually(
        lambda: {f"u{number}" for number in range(20)} <= processor.needs_resume.keys()
    )
    assert len(processor.seen) > 60
    await dispatcher.drain(1.0)


async def test_deleted_objects_are_forgotten_after_the_work_on_them(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    released = asyncio.Event()
    processor.work = lambda obj: released.wait()
    dispatcher.feed("ADDED", build("a", 1))
    await settle()
    dispatcher.feed("DELETED", build("a", 2))
    await settle()
    assert len(dispatcher.uids) == 1
    assert processor.forgotten == []
    released.set()
    await settle()
    assert len(dispatcher.uids) == 0
    assert processor.forgotten == ["a"]
    dispatcher.feed("DELETED", build("never seen", 3))
    assert len(dispatcher.uids) == 0


async def test_what_is_missing_in_a_listing_was_deleted(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    dispatcher.begin_listing()
    for uid in "abc":
        dispatcher.feed(None, build(uid, 1))
    dispatcher.finish_listing()
    await settle()
    dispatcher.begin_listing()
    dispatcher.feed(None, build("b", 1))
    dispatcher.feed(None, build("d", 9))
    dispatcher.finish_listing()
    await settle()
    assert sorted(processor.forgotten) == ["a", "c"]
    assert processor.versions("b") == [1]
    assert len(dispatcher.uids) == 2


async def test_a_listing_that_was_broken_off_deletes_nothing(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    dispatcher.begin_listing()
    dispatcher.feed(None, build("a", 1))
    dispatcher.feed(None, build("b", 1))
    dispatcher.finish_listing()
    dispatcher.begin_listing()
    dispatcher.feed(None, build("a", 1))
    dispatcher.begin_listing()
    dispatcher.feed(None, build("b", 1))
    dispatcher.feed(None, build("a", 1))
    dispatcher.finish_listing()
    await settle()
    assert processor.forgotten == []


@pytest.mark.feature("HND-20")
async def test_only_objects_of_the_first_listing_are_older_than_the_operator(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    dispatcher.begin_listing()
    dispatcher.feed(None, build("listed"))
    dispatcher.feed("MODIFIED", build("changed before it was listed"))
    dispatcher.feed("ADDED", build("added meanwhile"))
    dispatcher.finish_listing()
    dispatcher.feed("ADDED", build("added"))
    dispatcher.begin_listing()
    dispatcher.feed(None, build("listed later"))
    dispatcher.finish_listing()
    await settle()
    assert processor.needs_resume == {
        "listed": True,
        "changed before it was listed": True,
        "added meanwhile": False,
        "added": False,
        "listed later": False,
    }


async def test_after_a_pause_objects_wait_until_the_indexes_have_all_of_them_again(
    processor: Processor,
) -> None:
    processor.handlers.indexers = True
    dispatcher = dispatch(processor)
    dispatcher.begin_listing()
    await dispatcher.take(None, build("a", 1))
    dispatcher.finish_listing()
    await settle()
    dispatcher.set_paused(DaemonStoppingReason.OPERATOR_PAUSING)
    dispatcher.set_paused(None)
    dispatcher.begin_listing()
    await dispatcher.take(None, build("a", 2))
    await settle()
    assert [version for _, _, version in processor.seen] == [1]
    dispatcher.finish_listing()
    await settle()
    assert [version for _, _, version in processor.seen] == [1, 2]


async def test_a_listing_that_goes_back_in_time_is_believed_unless_the_object_was_patched_since(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    dispatcher.begin_listing()
    dispatcher.feed(None, build("restored", 50))
    dispatcher.feed(None, build("patched", 50))
    dispatcher.finish_listing()
    await settle()
    dispatcher.begin_listing()

    async def patch(obj: Tracked) -> None:
        if obj.version == 51:
            obj.accept_own(build("patched", 60))

    processor.work = patch
    dispatcher.feed("MODIFIED", build("patched", 51))
    await settle()
    dispatcher.feed(None, build("restored", 5))
    dispatcher.feed(None, build("patched", 51))
    dispatcher.finish_listing()
    await settle()
    assert processor.versions("restored") == [50, 5]
    assert processor.versions("patched") == [50, 51, 60]


async def test_objects_are_come_back_to_after_the_delay_they_ask_for(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    processor.delays["a"] = [0.02, 0, None]
    dispatcher.feed("ADDED", build("a", 1))
    await settle()
    assert processor.versions("a") == [1]
    await eventually(lambda: len(processor.seen) == 3)
    await settle()
    assert processor.versions("a") == [1, 1, 1]


async def test_a_change_comes_before_the_delay_is_over(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    processor.delays["a"] = [1000, None]
    dispatcher.feed("ADDED", build("a", 1))
    await settle()
    dispatcher.feed("MODIFIED", build("a", 2))
    await settle()
    assert processor.versions("a") == [1, 2]


@pytest.mark.feature("CFG-18")
@pytest.mark.parametrize("limit", [1, 3])
async def test_no_more_objects_are_worked_on_at_once_than_allowed(
    processor: Processor, limit: int
) -> None:
    async def work(obj: Tracked) -> None:
        await asyncio.sleep(0)

    processor.work = work
    dispatcher = dispatch(processor, limit=limit)
    for number in range(20):
        dispatcher.feed("ADDED", build(f"u{number}"))
    for _ in range(10):
        await settle()
    assert len(processor.seen) == 20
    assert processor.crowd == limit


@pytest.mark.feature("CFG-18")
async def test_an_object_that_never_is_without_work_does_not_keep_others_waiting(
    processor: Processor,
) -> None:
    dispatcher = dispatch(processor, limit=2)

    async def work(obj: Tracked) -> None:
        await asyncio.sleep(0.05)
        if obj.uid == "busy":
            dispatcher.feed("MODIFIED", build("busy", obj.version + 1))

    processor.work = work
    processor.delays["hasty"] = [0.0] * 1000
    for uid in ("busy", "hasty", "quiet"):
        dispatcher.feed("ADDED", build(uid))
    await eventually(lambda: processor.versions("quiet") == [1])
    assert len(processor.versions("busy")) > 5
    before = [*processor.seen]
    await eventually(lambda: len(processor.seen) > len(before) + 5)
    assert {"busy", "hasty"} == {uid for uid, _, _ in processor.seen[len(before) :]}
    await dispatcher.drain(1.0)


@pytest.mark.feature("CFG-18")
async def test_an_object_whose_records_are_denied_does_not_keep_others_waiting(
    processor: Processor,
) -> None:
    dispatcher = dispatch(processor, limit=1)

    async def work(obj: Tracked) -> None:
        await asyncio.sleep(0.05)
        if obj.uid == "busy":
            if not obj.has_pending:
                obj.keep_pending(Pending(Patch(), Patch({"status": {"x": 1}}), is_denied=True))
            dispatcher.feed("MODIFIED", build("busy", obj.version + 1))

    processor.work = work
    for uid in ("busy", "quiet"):
        dispatcher.feed("ADDED", build(uid))
    await eventually(lambda: processor.versions("quiet") == [1])
    await dispatcher.drain(1.0)


async def test_an_object_that_is_done_after_a_second_waits_for_no_slot(
    processor: Processor,
) -> None:
    dispatcher = dispatch(processor, limit=1)
    released = asyncio.Event()

    async def work(obj: Tracked) -> None:
        if obj.uid == "slow":
            await asyncio.sleep(1.1)
            obj.accept_own(build("slow", 2))
        else:
            await released.wait()

    processor.work = work
    processor.is_needed = lambda obj: obj.version == 1
    for uid in ("slow", "next", "last"):
        dispatcher.feed("ADDED", build(uid))
    await eventually(lambda: processor.versions("next") == [1])
    assert dispatcher.measure()[Phase.WAITING][0] == 1
    released.set()
    await eventually(lambda: processor.versions("last") == [1])
    assert set(processor.versions("slow")) == {1, 2}


@pytest.mark.feature("CFG-18")
async def test_an_object_that_comes_as_the_last_worker_leaves_is_not_left_waiting(
    processor: Processor,
) -> None:
    dispatcher = dispatch(processor, limit=1)

    async def work(obj: Tracked) -> None:
        if obj.uid == "a":
            asyncio.get_running_loop().call_soon(dispatcher.feed, "ADDED", build("b"))

    processor.work = work
    dispatcher.feed("ADDED", build("a"))
    await settle()
    assert [uid for uid, _, _ in processor.seen] == ["a", "b"]


async def test_an_object_waits_for_the_thread_of_its_cancelled_handler(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    released = threading.Event()
    processor.work = lambda obj: call_in_thread(lambda: released.wait(10), {}, NO_POOL)
    dispatcher.feed("ADDED", build("a", 1))
    await settle()
    (worker,) = (task for task in asyncio.all_tasks() if task.get_name() == "name-a")
    worker.cancel()  # as if its Lease was lost
    await settle()
    dispatcher.feed("MODIFIED", build("a", 2))
    await settle()
    assert processor.versions("a") == [1]
    processor.inside.clear()
    released.set()
    await eventually(lambda: processor.versions("a") == [1, 2])


@pytest.mark.feature("CFG-21", "CON-04")
async def test_on_the_way_out_the_work_under_way_is_finished_and_nothing_new_is_begun(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    released = asyncio.Event()
    processor.work = lambda obj: released.wait()
    dispatcher.feed("ADDED", build("a", 1))
    await settle()
    asyncio.get_running_loop().call_later(0.02, released.set)
    draining = asyncio.create_task(dispatcher.drain(10))
    await settle()
    dispatcher.feed("MODIFIED", build("a", 2))
    dispatcher.feed("ADDED", build("b", 1))
    await draining
    await settle()
    assert processor.inside == []
    assert processor.seen == [("a", "ADDED", 1)]


@pytest.mark.feature("CFG-21")
async def test_work_that_does_not_end_is_not_waited_for_for_long(
    dispatcher: Dispatcher, processor: Processor
) -> None:
    processor.work = lambda obj: asyncio.Event().wait()
    dispatcher.feed("ADDED", build("a", 1))
    await settle()
    async with asyncio.timeout(5):
        await dispatcher.drain(0.01)


def test_versions_are_numbers_where_they_can_be() -> None:
    assert parse_version(build("a", 15)) == 15
    assert parse_version({"metadata": {"resourceVersion": "abc"}}) == 0
    assert parse_version({"metadata": {}}) == 0
    assert parse_version({}) == 0


@pytest.mark.feature("IDX-22")
async def test_objects_are_held_until_the_indexes_are_filled(processor: Processor) -> None:
    gate = IndexGate()
    dispatcher = dispatch(processor, gate=gate)
    gate.expect(["one", "two"])
    for number in range(250):
        dispatcher.feed(None, build(f"{number}"))
    gate.arrive("one")
    await settle()
    assert processor.seen == []
    gate.arrive("two")
    await eventually(lambda: len(processor.seen) == 250, "all objects are worked on")


@pytest.mark.feature("IDX-22", "IDX-23")
async def test_the_first_listing_is_indexed_on_the_way_before_its_objects_are_worked_on(
    processor: Processor,
) -> None:
    processor.handlers.indexers = True
    dispatcher = dispatch(processor)
    dispatcher.begin_listing()
    await dispatcher.take(None, build("a"))
    await dispatcher.take(None, build("b"))
    await settle()
    assert processor.indexed == ["a", "b"]
    assert processor.seen == []
    dispatcher.finish_listing()
    await settle()
    assert [uid for uid, _, _ in processor.seen] == ["a", "b"]
    await dispatcher.take("MODIFIED", build("a", 2))
    assert processor.indexed == ["a", "b"], "later states do not hold up the stream"
    await settle()
    assert processor.indexed == ["a", "b", "a"]
    assert processor.versions("a") == [1, 2]


@pytest.mark.feature("IDX-15")
async def test_what_is_gone_leaves_the_indexes_at_once(
    processor: Processor, dispatcher: Dispatcher
) -> None:
    dispatcher.begin_listing()
    dispatcher.feed(None, build("a"))
    dispatcher.feed(None, build("b"))
    dispatcher.finish_listing()
    dispatcher.feed("DELETED", build("a", 2))
    assert processor.withdrawn == ["a"]
    dispatcher.begin_listing()
    dispatcher.finish_listing()
    assert processor.withdrawn == ["a", "b"]


async def test_events_of_an_object_that_never_end_do_not_keep_those_of_others_waiting() -> None:
    processor = Processor(wants_every_event=True)
    processor.is_needed = lambda obj: False
    dispatcher = dispatch(processor)

    async def work(obj: Tracked) -> None:
        await asyncio.sleep(0.01)
        if obj.uid != "quiet":
            dispatcher.feed("MODIFIED", build(obj.uid, obj.version + 1))

    processor.work = work
    for number in range(40):
        dispatcher.feed("ADDED", build(f"busy{number}"))
    dispatcher.feed("ADDED", build("quiet"))
    await eventually(lambda: ("quiet", "ADDED") in processor.shown)
    await dispatcher.drain(1.0)


@pytest.mark.parametrize("event_type", [None, "ADDED"])
async def test_objects_that_are_gone_do_not_wait_for_a_slot(
    processor: Processor, event_type: Any
) -> None:
    slots, released = make_slots(1), asyncio.Event()
    dispatcher = dispatch(processor, slots=slots)
    processor.work = lambda obj: released.wait()
    dispatcher.feed("ADDED", build("busy"))
    await settle()
    dispatcher.feed(event_type, build("one"))
    waited = slots.has_waiting
    dispatcher.feed("DELETED", build("one", 2))
    assert (waited, slots.has_waiting) == (True, False)
    released.set()
    await settle()


async def test_objects_that_are_gone_before_the_indexes_are_filled_take_no_memory(
    processor: Processor,
) -> None:
    gate = IndexGate()
    gate.expect(["one"])
    dispatcher = dispatch(processor, gate=gate)
    for number in range(3):
        dispatcher.feed("ADDED", build(f"u{number}"))
        dispatcher.feed("DELETED", build(f"u{number}", 2))
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, Tracked)]
    assert [obj for obj in kept if obj.controller is dispatcher] == []


async def test_a_state_that_cannot_be_read_again_is_left_alone_for_as_long_as_the_pause_says(
    processor: Processor,
) -> None:
    dispatcher, released, reads = dispatch(processor, limit=1), asyncio.Event(), list[str]()
    processor.work = lambda obj: released.wait()
    dispatcher.feed("ADDED", build("busy"))
    await settle()
    for number in range(26):  # too much to keep
        dispatcher.feed("ADDED", build(f"u{number}", text=secrets.token_hex(1_000_000)))
        await settle()

    async def read(obj: Tracked) -> dict[str, Any] | None:
        reads.append(obj.uid)
        raise APIError("HTTP 503")

    processor.read = read  # type: ignore[method-assign]
    processor.on_error = lambda obj, exc: None  # type: ignore[method-assign]
    released.set()
    for _ in range(20):
        await settle()
    assert reads
    assert len(reads) == len(set(reads))


async def test_a_decision_does_not_outlast_the_read_that_is_overtaken_by_the_deletion(
    processor: Processor,
) -> None:
    dispatcher, released = dispatch(processor, is_resuming=False), asyncio.Event()
    decisions: list[Decision | None] = []

    async def process(obj: Tracked, decision: Decision | None) -> float | None:
        decisions.append(decision)
        obj.suspected_deleted = not obj.is_gone
        return 0.01 if obj.suspected_deleted else None

    async def read(obj: Tracked) -> None:
        await released.wait()

    processor.process, processor.read = process, read  # type: ignore[method-assign]
    dispatcher.begin_listing()
    await dispatcher.take(None, build("one"))
    dispatcher.finish_listing()
    await eventually(lambda: len(decisions) == 1)
    await asyncio.sleep(0.05)  # it is being read
    dispatcher.begin_listing()
    dispatcher.finish_listing()
    released.set()
    await settle()
    assert decisions[0] is not None
    assert decisions[1:] in ([None], [None, None])
    assert len(dispatcher.uids) == 0


@in_virtual_time
async def test_states_that_must_be_read_again_are_seldom_read_while_writes_and_reads_fail() -> None:
    processor, slots, reads = Processor(), make_slots(), list[str]()
    dispatcher, loop = dispatch(processor, slots=slots), asyncio.get_running_loop()

    async def read(obj: Tracked) -> dict[str, Any] | None:
        reads.append(obj.uid)
        await asyncio.sleep(0.1)
        raise APIError("HTTP 503")

    def rest(obj: Tracked, exc: Exception) -> float:
        obj.open_work().paused_until = loop.time() + 2
        return 2

    processor.read, processor.on_error = read, rest  # type: ignore[method-assign]
    for _ in range(8):
        slots.note_failure("HTTP 503")
    for number in range(26):  # too much to keep
        dispatcher.feed("ADDED", build(f"big{number}", text=secrets.token_hex(1_000_000)))
    for number in range(50):
        dispatcher.feed("ADDED", build(f"small{number}"))
    await asyncio.sleep(20)
    assert 0 < len(reads) <= 20  # one per second


async def test_what_waits_when_a_stream_ends_takes_no_room_from_the_next_streams(
    processor: Processor,
) -> None:
    slots = make_slots(limit=1)
    processor.work = lambda obj: asyncio.sleep(60)
    for _ in range(60):
        dispatcher = dispatch(processor, slots=slots)
        for number in range(50):
            raw = build(f"{number}")
            raw["spec"] = {"noise": secrets.token_hex(10_000)}
            dispatcher.feed(None, raw)
        await settle()
        await dispatcher.drain(0.001)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await settle()
        processor.inside.clear()
    assert slots.pack({"a": 1}) != b""
