"""The indexes have the newest states, also of objects that wait, and that change all the time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.operating import eventually
from tests.reactor.test_dispatcher import Processor, build, dispatch, settle
from webop.client.events import parse_version
from webop.handling.stopping import DaemonStoppingReason
from webop.reactor.dispatcher import Dispatcher
from webop.reactor.index_gate import IndexGate
from webop.reactor.process import Processor as RealProcessor
from webop.reactor.tracking import Tracked


class Indexer(Processor):
    """A processor with an index of versions, and event handlers that use it."""

    def __init__(self, *, wants_every_event: bool = False) -> None:
        super().__init__(wants_every_event=wants_every_event)
        self.handlers.indexers = True
        self.index_of_versions: dict[str, int] = {}
        self.shown_indexes: list[int | None] = []
        self.on_indexing: Callable[[], object] = lambda: None

    async def index(self, raw: dict[str, Any]) -> None:
        self.on_indexing()
        await super().index(raw)
        self.index_of_versions[raw["metadata"]["uid"]] = parse_version(raw)

    async def index_newest(self, obj: Tracked) -> None:
        await RealProcessor.index_newest(cast("RealProcessor", self), obj)

    async def show_event(self, obj: Tracked, event_type: Any, raw: dict[str, Any]) -> None:
        self.shown.append((obj.uid, event_type))
        self.shown_indexes.append(self.index_of_versions.get(obj.uid))


async def change(dispatcher: Dispatcher, uid: str, versions: range) -> None:
    for version in versions:
        dispatcher.feed("MODIFIED", build(uid, version))
        await settle()


@pytest.mark.parametrize("wants_every_event", [False, True])
async def test_states_of_an_object_that_waits_for_a_slot_are_indexed(
    wants_every_event: bool,
) -> None:
    processor, released = Indexer(wants_every_event=wants_every_event), asyncio.Event()
    dispatcher = dispatch(processor, limit=1, is_resuming=False)
    processor.work = lambda obj: released.wait()
    processor.is_needed = lambda obj: obj.uid == "busy"
    await change(dispatcher, "busy", range(1, 2))
    await change(dispatcher, "a", range(1, 5))
    assert processor.index_of_versions["a"] == 4
    assert processor.shown_indexes == ([1, 1, 2, 3, 4] if wants_every_event else [])
    released.set()
    await settle()
    assert processor.index_of_versions["a"] == 4


async def test_states_of_an_object_that_rests_after_an_error_are_indexed() -> None:
    processor = Indexer(wants_every_event=True)
    dispatcher = dispatch(processor, is_resuming=False)

    async def fail(obj: Tracked) -> None:
        obj.open_work().pause.until = asyncio.get_running_loop().time() + 600

    processor.work, processor.delays = fail, {"a": [600.0]}
    await change(dispatcher, "a", range(1, 5))
    assert processor.versions("a") == [1]
    assert processor.shown_indexes == [1, 2, 3, 4]
    await dispatcher.drain(0.1)


async def test_states_of_an_object_that_waits_for_other_indexes_are_indexed() -> None:
    processor = Indexer()
    gate = IndexGate()
    gate.expect(["others"])
    await change(dispatch(processor, gate=gate, is_resuming=False), "a", range(1, 4))
    assert processor.versions("a") == []
    assert processor.index_of_versions == {"a": 3}


@pytest.mark.parametrize("is_needed", [False, True])
@pytest.mark.parametrize("count", [3, 4, 6, 7, 9, 10])
async def test_the_last_state_of_an_object_that_changed_while_it_was_indexed_is_indexed(
    is_needed: bool, count: int
) -> None:
    processor, version = Indexer(), 1
    dispatcher = dispatch(processor, is_resuming=False)

    def change_meanwhile() -> None:
        nonlocal version
        if version < count:
            version += 1
            loop = asyncio.get_running_loop()
            loop.call_soon(dispatcher.feed, "MODIFIED", build("a", version))

    processor.on_indexing, processor.is_needed = change_meanwhile, lambda obj: is_needed
    dispatcher.feed("ADDED", build("a"))
    for _ in range(5):
        await settle()
    assert processor.index_of_versions["a"] == version
    assert not is_needed or processor.versions("a")[-1] == version


async def test_an_object_that_changes_whenever_it_is_indexed_is_worked_on() -> None:
    processor, version = Indexer(), 1
    dispatcher = dispatch(processor, is_resuming=False)

    def change_meanwhile() -> None:
        nonlocal version
        version += 1
        loop = asyncio.get_running_loop()
        loop.call_soon(dispatcher.feed, "MODIFIED", build("a", version))

    processor.on_indexing = change_meanwhile
    dispatcher.feed("ADDED", build("a"))
    for _ in range(5):
        await settle()
    assert len(processor.versions("a")) > 1
    await dispatcher.drain(0.1)


async def test_an_object_that_changes_whenever_it_is_indexed_keeps_its_place_in_the_queue() -> None:
    processor, version = Indexer(), 1
    dispatcher = dispatch(processor, limit=1, is_resuming=False)

    async def refill(obj: Tracked) -> None:
        await asyncio.sleep(0)
        for uid in {*"bcd"} - {obj.uid}:  # the queue is never empty
            dispatcher.feed("MODIFIED", build(uid, 10 + len(processor.seen)))

    def change_meanwhile() -> None:
        nonlocal version
        version += 1
        loop = asyncio.get_running_loop()
        loop.call_soon(dispatcher.feed, "MODIFIED", build("a", version))

    processor.work, processor.on_indexing = refill, change_meanwhile
    for uid in "bcd":
        dispatcher.feed("ADDED", build(uid))
    dispatcher.feed("ADDED", build("a"))
    for _ in range(10):
        await settle()
    assert len(processor.versions("b")) > 1
    assert len(processor.versions("a")) > 1
    await dispatcher.drain(0.1)


async def test_a_state_that_is_read_again_is_indexed_though_its_event_comes_later() -> None:
    processor, released = Indexer(), asyncio.Event()
    dispatcher = dispatch(processor, limit=1, is_resuming=False)
    processor.work = lambda obj: released.wait() if obj.uid == "busy" else processor.nothing(obj)
    await change(dispatcher, "busy", range(1, 2))
    for number in range(26):  # too much to keep
        dispatcher.feed("ADDED", build(f"u{number}", text=secrets.token_hex(1_000_000)))
        await settle()
    await change(dispatcher, "a", range(5, 6))

    async def read(obj: Tracked) -> dict[str, Any]:
        return build(obj.uid, 6 if obj.uid == "a" else obj.version)

    processor.read = read  # type: ignore[method-assign]
    released.set()
    await eventually(lambda: processor.versions("a") == [6])
    await change(dispatcher, "a", range(6, 7))
    assert processor.index_of_versions["a"] == 6
    await dispatcher.drain(1.0)


async def test_a_list_that_is_older_than_an_own_patch_does_not_bring_its_state_back() -> None:
    processor, tracked = Indexer(), list[Tracked]()
    dispatcher = dispatch(processor, is_resuming=False)

    async def note(obj: Tracked) -> None:
        tracked.append(obj)

    processor.work = note
    await change(dispatcher, "a", range(1, 2))
    dispatcher.set_paused(DaemonStoppingReason.OPERATOR_PAUSING)
    dispatcher.set_paused(None)
    dispatcher.begin_listing()
    tracked[0].accept_own(build("a", 3))
    await settle()
    await dispatcher.take(None, build("a", 2))
    dispatcher.finish_listing()
    await settle()
    assert processor.versions("a") == [1, 3]
    assert processor.index_of_versions["a"] == 3


async def test_a_deletion_that_waits_for_a_slow_index_as_a_pause_begins_is_not_lost() -> None:
    processor, released = Indexer(wants_every_event=True), asyncio.Event()
    dispatcher = dispatch(processor, is_resuming=False)
    released.set()

    async def index(raw: dict[str, Any]) -> None:
        await released.wait()

    async def patch(obj: Tracked) -> None:
        if obj.version == 1:
            released.clear()
            obj.accept_own(build("a", 2))

    processor.index, processor.work = index, patch  # type: ignore[method-assign]
    dispatcher.begin_listing()
    await dispatcher.take(None, build("a"))
    dispatcher.finish_listing()
    await settle()
    dispatcher.begin_listing()
    dispatcher.finish_listing()  # it is gone
    await settle()
    dispatcher.set_paused(DaemonStoppingReason.OPERATOR_PAUSING)
    released.set()
    await settle()
    dispatcher.set_paused(None)
    dispatcher.begin_listing()
    dispatcher.finish_listing()
    await settle()
    assert processor.shown == [("a", None), ("a", "DELETED")]
