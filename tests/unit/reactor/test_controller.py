"""Events become work on objects: each by one worker at a time, the newest state always."""

from __future__ import annotations

import asyncio
import gc
import secrets
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kit.virtual_time import in_virtual_time
from tests.kit.waiting import eventually
from webop.calls.threads import NO_POOL, call_in_thread
from webop.client.watch_events import parse_version
from webop.errors import APIError
from webop.handlers.stopping import DaemonStoppingReason
from webop.reactor.controller import Controller, Hold
from webop.reactor.decision import Decision
from webop.reactor.object_writer import open_writer
from webop.reactor.queue import SharedSlots, WorkQueue
from webop.reactor.reconcile_calls import ReconcileState, ReconcileStates
from webop.reactor.store import WatchedObject


def build(uid: str, version: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {"uid": uid, "name": f"name-{uid}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": spec}


class Reconciler:
    """Notes what it is asked to do; works as long as it is told to."""

    def __init__(self, *, wants_every_event: bool = False) -> None:
        self.handlers: Any = SimpleNamespace(
            events=wants_every_event, indexers=False, children=(), has_only_children=False
        )
        self.ctx: Any = SimpleNamespace(
            refer_to=lambda obj: {"k8s_ref": {"name": obj.name}}, handlers=self.handlers
        )
        self.seen: list[tuple[str, Any, int]] = []
        self.shown: list[tuple[str, Any]] = []
        self.forgotten: list[str] = []
        self.indexed: list[str] = []
        self.inside: list[str] = []
        self.violations: list[str] = []
        self.crowd = 0
        self.needs_resume: dict[str, bool] = {}
        self.is_needed: Callable[[WatchedObject], bool] = lambda obj: True
        self.work: Callable[[WatchedObject], Any] = self.nothing
        self.index_work: Callable[[WatchedObject], Any] = self.nothing

    async def nothing(self, obj: WatchedObject) -> None: ...

    def decide(self, obj: WatchedObject) -> Decision | None:
        decision: Any = obj.raw if self.is_needed(obj) else None
        return cast("Decision | None", decision)

    def may_have_left(self, obj: WatchedObject | None, raw: dict[str, Any]) -> bool:
        return False

    async def read(self, obj: WatchedObject) -> dict[str, Any] | None:
        return build(obj.uid, obj.version)

    async def show_event(self, obj: WatchedObject) -> None:
        self.shown.append((obj.uid, obj.event_type))
        await self.work(obj)

    async def index(self, obj: WatchedObject) -> None:
        await asyncio.sleep(0)
        self.indexed.append(obj.uid)
        await self.index_work(obj)

    def withdraw(self, obj: WatchedObject) -> None: ...

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    def on_error(self, obj: WatchedObject, exc: Exception) -> float | None:
        raise exc

    async def reconcile(self, obj: WatchedObject, decision: Decision | None) -> None:
        if obj.uid in self.inside:
            self.violations.append(f"two workers on {obj.uid}")
        self.inside.append(obj.uid)
        self.crowd = max(self.crowd, len(self.inside))
        self.needs_resume.setdefault(obj.uid, obj.needs_resume)
        self.seen.append((obj.uid, obj.event_type, obj.version))
        await self.work(obj)
        self.inside.remove(obj.uid)

    def versions(self, uid: str) -> list[int]:
        return [version for seen, _, version in self.seen if seen == uid]


def make_queue(limit: int | None = None) -> WorkQueue:
    return WorkQueue("things", SharedSlots(), limit=limit)


def control(
    reconciler: Any,
    *,
    limit: int | None = None,
    queue: WorkQueue | None = None,
    is_resuming: bool = True,
) -> Controller:
    """Begin to control objects, by default with filled indexes of others and its own queue."""

    made = Controller(
        reconciler,
        spawn=asyncio.create_task,
        spawn_indexing=asyncio.create_task,
        queue=queue or make_queue(limit),
        on_indexed=lambda: made.unhold(Hold.INDEXES),
    )
    made.set_paused(None)
    if not is_resuming:  # nothing was there before
        list_objects(made)
    return made


def list_objects(controller: Controller, *bodies: dict[str, Any]) -> None:
    controller.begin_listing()
    for body in bodies:
        controller.apply_event(None, body)
    controller.finish_listing()


@pytest.fixture
def reconciler() -> Iterator[Reconciler]:
    """A reconciler that has never been asked to work on one object twice at once."""
    reconciler = Reconciler()
    yield reconciler
    assert reconciler.violations == []


@pytest.fixture
def controller(reconciler: Reconciler) -> Controller:
    return control(reconciler)


async def settle() -> None:
    """Let all that is ready to run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def show(controller: Controller, event_type: Any, body: dict[str, Any]) -> None:
    """Bring an event, and let all that is ready run."""
    controller.apply_event(event_type, body)
    await settle()


async def test_a_state_that_comes_at_the_very_end_of_the_work_is_worked_on(
    controller: Controller, reconciler: Reconciler
) -> None:
    async def work(obj: WatchedObject) -> None:
        if obj.version == 1:
            asyncio.get_running_loop().call_soon(controller.apply_event, "MODIFIED", build("a", 2))

    reconciler.work = work
    await show(controller, "ADDED", build("a", 1))
    assert reconciler.versions("a") == [1, 2]


async def test_what_is_known_already_is_no_news(
    controller: Controller, reconciler: Reconciler
) -> None:
    async def patch(obj: WatchedObject) -> None:
        if obj.version == 1:
            obj.accept_own(build("a", 7))

    reconciler.work = patch
    await show(controller, "ADDED", build("a", 1))
    assert reconciler.versions("a") == [1, 7]
    for version in (5, 6, 7):
        controller.apply_event("MODIFIED", build("a", version))
    await settle()
    assert reconciler.versions("a") == [1, 7]
    await show(controller, "MODIFIED", build("a", 8))
    assert reconciler.versions("a") == [1, 7, 8]


async def test_an_answer_that_is_older_than_what_is_known_is_no_news(
    controller: Controller, reconciler: Reconciler
) -> None:
    async def patch_late(obj: WatchedObject) -> None:
        controller.apply_event("MODIFIED", build("a", 9))
        obj.accept_own(build("a", 8))
        reconciler.work = reconciler.nothing

    reconciler.work = patch_late
    await show(controller, "ADDED", build("a", 1))
    assert reconciler.versions("a") == [1, 9]


async def test_objects_without_work_take_no_worker_and_keep_no_body(
    controller: Controller, reconciler: Reconciler
) -> None:
    reconciler.is_needed = lambda obj: False
    body = build("a", 1, marker=object())
    marker = body["spec"]["marker"]
    await show(controller, "ADDED", body)
    assert reconciler.seen == []
    assert len(controller.uids) == 1
    del body
    gc.collect()
    holders = [item for item in gc.get_referrers(marker) if isinstance(item, dict)]
    assert not [item for item in holders if item.get("marker") is marker]


async def test_objects_that_wait_for_room_keep_no_body(reconciler: Reconciler) -> None:
    released = asyncio.Event()
    reconciler.work = lambda obj: released.wait()
    controller = control(reconciler)
    marked: list[Any] = []
    for number in range(200):
        body = build(f"u{number}", 1, marker=[number])
        marked.append(body["spec"]["marker"])
        controller.apply_event(None, body)
    del body
    await settle()
    in_work = len(reconciler.inside)
    assert in_work < 50
    gc.collect()
    specs = [item for item in gc.get_referrers(*marked) if isinstance(item, dict)]
    held = [item for item in marked if any(item is spec.get("marker") for spec in specs)]
    assert len(held) == in_work
    controller.apply_event("MODIFIED", build("u199", 2))  # more urgent
    released.set()
    await eventually(lambda: len({uid for uid, _, _ in reconciler.seen}) == 200)
    order = list(dict.fromkeys(uid for uid, _, _ in reconciler.seen))
    assert order.index("u150") > order.index("u50")
    assert reconciler.versions("u199") == [2]


async def test_a_change_is_worked_on_before_the_rest_of_a_listing(reconciler: Reconciler) -> None:
    released = asyncio.Event()
    reconciler.work = lambda obj: released.wait()
    controller = control(reconciler)
    for number in range(500):
        controller.apply_event(None, build(f"u{number}"))
    await show(controller, "ADDED", build("live"))
    begun = len(reconciler.seen)
    released.set()
    await eventually(lambda: len(reconciler.seen) == 501)
    assert [uid for uid, _, _ in reconciler.seen].index("live") == begun


async def test_what_is_missing_in_a_listing_was_deleted(
    controller: Controller, reconciler: Reconciler
) -> None:
    list_objects(controller, build("a"), build("b"), build("c"))
    await settle()
    list_objects(controller, build("b"), build("d", 9))
    await settle()
    assert sorted(reconciler.forgotten) == ["a", "c"]
    assert reconciler.versions("b") == [1]
    assert len(controller.uids) == 2


async def test_a_listing_that_was_broken_off_deletes_nothing(
    controller: Controller, reconciler: Reconciler
) -> None:
    list_objects(controller, build("a"), build("b"))
    controller.begin_listing()
    controller.apply_event(None, build("a"))
    list_objects(controller, build("b"), build("a"))
    await settle()
    assert reconciler.forgotten == []


@pytest.mark.feature("HND-20")
async def test_only_objects_of_the_first_listing_are_older_than_the_operator(
    controller: Controller, reconciler: Reconciler
) -> None:
    controller.begin_listing()
    controller.apply_event(None, build("listed"))
    controller.apply_event("MODIFIED", build("changed before it was listed"))
    controller.apply_event("ADDED", build("added meanwhile"))
    controller.finish_listing()
    await show(controller, "ADDED", build("added"))
    list_objects(controller, build("listed later"))
    await settle()
    assert reconciler.needs_resume == {
        "listed": True,
        "changed before it was listed": True,
        "added meanwhile": False,
        "added": False,
        "listed later": False,
    }


async def test_a_listing_that_goes_back_in_time_is_believed_unless_the_object_was_patched_since(
    controller: Controller, reconciler: Reconciler
) -> None:
    list_objects(controller, build("restored", 50), build("patched", 50))
    await settle()
    controller.begin_listing()

    async def patch(obj: WatchedObject) -> None:
        if obj.version == 51:
            obj.accept_own(build("patched", 60))

    reconciler.work = patch
    await show(controller, "MODIFIED", build("patched", 51))
    controller.apply_event(None, build("restored", 5))
    controller.apply_event(None, build("patched", 51))
    controller.finish_listing()
    await settle()
    assert reconciler.versions("restored") == [50, 5]
    assert reconciler.versions("patched") == [50, 51, 60]


async def test_an_object_that_a_response_has_shown_does_not_wait_for_ever_after_a_pause(
    controller: Controller, reconciler: Reconciler
) -> None:
    """The list is behind the response, so it shows nothing new: but the wait is over."""
    waited: list[bool] = []

    async def work(obj: WatchedObject) -> None:
        waited.append(obj.awaits_list)
        obj.reconciling = ReconcileStates()  # keeps the body
        if obj.version == 50:
            controller.set_paused(DaemonStoppingReason.OPERATOR_PAUSING)
            controller.set_paused(None)
            controller.begin_listing()
            obj.accept_own(build("a", 60))

    reconciler.work = work
    list_objects(controller, build("a", 50))
    await settle()
    assert waited == [False, True]
    await show(controller, None, build("a", 51))
    assert waited == [False, True, False]
    assert reconciler.versions("a") == [50, 60, 60]


async def test_an_object_that_a_restored_backup_does_not_have_is_gone(
    controller: Controller, reconciler: Reconciler
) -> None:
    await show(controller, "ADDED", build("a", 500))
    controller.begin_listing()
    controller.finish_listing(300)
    await settle()
    assert list(controller.uids) == []


@pytest.mark.feature("CFG-18")
@pytest.mark.parametrize("limit", [1, 3])
async def test_no_more_objects_are_worked_on_at_once_than_allowed(
    reconciler: Reconciler, limit: int
) -> None:
    async def work(obj: WatchedObject) -> None:
        await asyncio.sleep(0)

    reconciler.work = work
    controller = control(reconciler, limit=limit)
    for number in range(20):
        controller.apply_event("ADDED", build(f"u{number}"))
    for _ in range(10):
        await settle()
    assert len(reconciler.seen) == 20
    assert reconciler.crowd == limit


@pytest.mark.feature("CFG-18")
async def test_an_object_whose_records_are_denied_does_not_keep_others_waiting(
    reconciler: Reconciler,
) -> None:
    controller = control(reconciler, limit=1)

    async def work(obj: WatchedObject) -> None:
        await asyncio.sleep(0.05)
        if obj.uid == "busy":
            writer = open_writer(reconciler.ctx, obj)
            writer.sent.of_webop.update({"status": {"x": 1}})
            writer.is_denied = True
            controller.apply_event("MODIFIED", build("busy", obj.version + 1))

    reconciler.work = work
    for uid in ("busy", "quiet"):
        controller.apply_event("ADDED", build(uid))
    await eventually(lambda: reconciler.versions("quiet") == [1])
    await controller.drain(1.0)


async def test_an_object_waits_for_the_thread_of_its_cancelled_handler(
    controller: Controller, reconciler: Reconciler
) -> None:
    released = threading.Event()
    reconciler.work = lambda obj: call_in_thread(
        lambda: released.wait(10), {}, NO_POOL, waits_for_end=True
    )
    await show(controller, "ADDED", build("a", 1))
    (worker,) = (task for task in asyncio.all_tasks() if task.get_name() == "name-a")
    worker.cancel()  # as if its Lease was lost
    await settle()
    await show(controller, "MODIFIED", build("a", 2))
    assert reconciler.versions("a") == [1]
    reconciler.inside.clear()
    released.set()
    await eventually(lambda: reconciler.versions("a") == [1, 2])


@pytest.mark.feature("CFG-21", "CON-04")
async def test_on_the_way_out_the_work_under_way_is_finished_and_nothing_new_is_begun(
    controller: Controller, reconciler: Reconciler
) -> None:
    released = asyncio.Event()
    reconciler.work = lambda obj: released.wait()
    await show(controller, "ADDED", build("a", 1))
    asyncio.get_running_loop().call_later(0.02, released.set)
    draining = asyncio.create_task(controller.drain(10))
    await settle()
    controller.apply_event("MODIFIED", build("a", 2))
    controller.apply_event("ADDED", build("b", 1))
    await draining
    await settle()
    assert reconciler.inside == []
    assert reconciler.seen == [("a", "ADDED", 1)]


def test_versions_are_numbers_where_they_can_be() -> None:
    assert parse_version(build("a", 15)) == 15
    assert parse_version({"metadata": {"resourceVersion": "abc"}}) == 0
    assert parse_version({"metadata": {}}) == 0
    assert parse_version({}) == 0


async def test_events_of_an_object_that_never_end_do_not_keep_those_of_others_waiting() -> None:
    reconciler = Reconciler(wants_every_event=True)
    reconciler.is_needed = lambda obj: False
    controller = control(reconciler)

    async def work(obj: WatchedObject) -> None:
        await asyncio.sleep(0.01)
        if obj.uid != "quiet":
            controller.apply_event("MODIFIED", build(obj.uid, obj.version + 1))

    reconciler.work = work
    for number in range(40):
        controller.apply_event("ADDED", build(f"busy{number}"))
    controller.apply_event("ADDED", build("quiet"))
    await eventually(lambda: ("quiet", "ADDED") in reconciler.shown)
    await controller.drain(1.0)


def break_reads(reconciler: Reconciler, reads: list[str]) -> None:
    """Let each reading of an object fail, with a pause of two seconds; note which ones are read."""

    async def read(obj: WatchedObject) -> dict[str, Any] | None:
        reads.append(obj.uid)
        await asyncio.sleep(0.1)
        raise APIError("HTTP 503")

    def rest(obj: WatchedObject, exc: Exception) -> float:
        obj.open_work().pause.until = asyncio.get_running_loop().time() + 2
        return 2

    reconciler.read, reconciler.on_error = read, rest  # type: ignore[method-assign]


@in_virtual_time
async def test_states_that_must_be_read_again_are_seldom_read_while_writes_and_reads_fail() -> None:
    reconciler, queue, reads = Reconciler(), make_queue(), list[str]()
    controller = control(reconciler, queue=queue)

    break_reads(reconciler, reads)
    for _ in range(8):
        queue.note_failure(APIError("HTTP 503"), None)
    for number in range(26):  # too much to keep
        controller.apply_event("ADDED", build(f"big{number}", text=secrets.token_hex(1_000_000)))
    for number in range(50):
        controller.apply_event("ADDED", build(f"small{number}"))
    await asyncio.sleep(20)
    assert 0 < len(reads) <= 20  # one per second


@pytest.mark.parametrize("is_indexed", [True, False])
@in_virtual_time
async def test_an_object_that_cannot_be_read_is_not_tried_without_a_pause(is_indexed: bool) -> None:
    reconciler, reads = Reconciler(), list[str]()
    reconciler.handlers.indexers = is_indexed
    reconciler.handlers.events = not is_indexed
    controller = control(reconciler, limit=1)
    released = asyncio.Event()
    reconciler.index_work = reconciler.work = lambda obj: released.wait()

    break_reads(reconciler, reads)
    list_objects(controller)
    controller.apply_event("ADDED", build("busy"))
    for number in range(26):  # too much to keep
        controller.apply_event("ADDED", build(f"big{number}", text=secrets.token_hex(1_000_000)))
    controller.apply_event("ADDED", build("small"))
    released.set()
    await asyncio.sleep(20)
    assert 0 < len(reads) <= 11 * len({*reads})  # each 2 s


async def test_what_waits_when_a_stream_ends_takes_no_room_from_the_next_streams(
    reconciler: Reconciler,
) -> None:
    queue = make_queue(limit=1)
    reconciler.work = lambda obj: asyncio.sleep(60)
    noise = secrets.token_hex(10_000)
    for _ in range(60):
        controller = control(reconciler, queue=queue)
        for number in range(50):
            raw = build(f"{number}")
            raw["spec"] = {"noise": noise}
            controller.apply_event(None, raw)
        await settle()
        await controller.drain(0.001)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await settle()
        reconciler.inside.clear()
    assert queue.bodies.park({"a": 1}) != b""


@pytest.mark.feature("EVT-02", "HND-26")
async def test_event_handlers_get_the_newest_state_before_the_change_and_each_deletion(
    reconciler: Reconciler,
) -> None:
    reconciler.handlers.events = True
    released = asyncio.Event()
    reconciler.work = lambda obj: released.wait()
    controller = control(reconciler)
    for event_type, version in (("ADDED", 1), ("MODIFIED", 2), ("MODIFIED", 3)):
        await show(controller, event_type, build("a", version))
    assert (reconciler.shown, reconciler.seen) == ([("a", "ADDED")], [])
    released.set()
    await settle()
    assert reconciler.shown == [("a", "ADDED"), ("a", "MODIFIED")]
    assert reconciler.versions("a") == [3, 3]
    controller.apply_event("DELETED", build("a", 4))
    await show(controller, "DELETED", build("unknown", 5))
    assert reconciler.shown[2:] == [("a", "DELETED"), ("unknown", "DELETED")]
    assert len(controller.uids) == 0


@pytest.mark.feature("IDX-22", "IDX-23")
async def test_listed_objects_are_indexed_at_once_before_the_handlers_of_any(
    reconciler: Reconciler,
) -> None:
    reconciler.handlers.indexers = True
    released = asyncio.Event()
    reconciler.index_work = lambda obj: released.wait()
    controller = control(reconciler)
    list_objects(controller, *(build(f"u{number}") for number in range(50)))
    await eventually(lambda: len(reconciler.indexed) == 50)  # slow indexers do not keep their slots
    assert reconciler.seen == []
    released.set()
    await settle()
    assert len(reconciler.seen) == 50
    await show(controller, "MODIFIED", build("u1", 2))
    assert reconciler.indexed[50:] == ["u1"]
    assert reconciler.versions("u1") == [1, 2]


async def test_an_object_that_is_gone_is_read_before_a_late_event_of_it_is_handled(
    reconciler: Reconciler, controller: Controller
) -> None:
    reads = list[str]()

    async def work(obj: WatchedObject) -> None:
        obj.controller.mark_gone(obj)

    async def read(obj: WatchedObject) -> None:
        reads.append(obj.uid)

    reconciler.work, reconciler.read = work, read  # type: ignore[method-assign]
    await show(controller, "ADDED", build("a", 1))
    assert (reconciler.forgotten, reads) == (["a"], [])
    for version in (2, 3):
        await show(controller, "MODIFIED", build("a", version))
    await show(controller, "DELETED", build("a", 4))
    assert (reconciler.versions("a"), reads) == ([1], ["a", "a"])
    assert len(controller.uids) == 0


@in_virtual_time
async def test_a_change_of_a_child_is_not_forgotten_while_its_parent_cannot_be_read() -> None:
    """The body of the parent is not in memory, and other objects wait for the only slot."""
    reconciler, reads = Reconciler(), list[str]()
    controller = control(reconciler, limit=1)
    parents: list[WatchedObject] = []

    async def work(obj: WatchedObject) -> None:
        obj.reconciling = ReconcileStates({"fn": ReconcileState()})
        parents.append(obj)

    reconciler.work = work
    await show(controller, "ADDED", build("a"))
    parent = parents[0]
    parent.text = b""  # as if too many bodies were kept
    read = reconciler.read
    break_reads(reconciler, reads)
    parent.call_again("fn", "children")
    await asyncio.sleep(0.05)
    controller.apply_event("ADDED", build("b"))
    parent.call_again("fn", "children")
    await asyncio.sleep(1)
    reconciler.read = read  # type: ignore[method-assign]
    await asyncio.sleep(5)
    assert (reads, reconciler.versions("a")) == (["a"], [1, 1])


async def test_event_handlers_that_got_the_response_to_an_own_write_do_not_get_its_event(
    reconciler: Reconciler,
) -> None:
    reconciler.handlers.events = True
    controller = control(reconciler)

    async def work(obj: WatchedObject) -> None:
        if obj.version == 1 and reconciler.inside:
            controller.apply_event("MODIFIED", build("a", 2))
            obj.accept_own(build("a", 3))

    reconciler.work = work
    for version in (1, 3):
        await show(controller, "MODIFIED", build("a", version))
    assert (len(reconciler.shown), reconciler.versions("a")) == (2, [1, 3])
    await show(controller, "MODIFIED", build("a", 4))
    controller.apply_event("DELETED", build("a", 5))
    await settle()
    assert [event_type for _, event_type in reconciler.shown[2:]] == ["MODIFIED", "DELETED"]
