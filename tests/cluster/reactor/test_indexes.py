"""In-memory indexes: filled before any handler runs, exact ever after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import webop
from tests.kit.operators import Kind, Objects, RunOperator, do_nothing
from tests.kit.waiting import eventually
from webop.client.api import Client

Snapshot = dict[Any, list[Any]]


def dump(index: webop.Index[Any, Any]) -> Snapshot:
    """Return the content of an index as it is now."""
    return {key: sorted(store) for key, store in index.items()}


class Window:
    """Looks into an index from outside of handlers, through what a startup handler was given."""

    def __init__(self, name: str) -> None:
        self.index: Any = None

        @webop.on.startup(id="window", errors=webop.ErrorsMode.PERMANENT)
        def look(**kwargs: Any) -> None:
            self.index = kwargs[name]

    async def until(self, expected: Snapshot) -> None:
        await eventually(lambda: dump(self.index) == expected, f"{expected} in the index")


@pytest.mark.feature("IDX-26", "MEM-12")
async def test_an_index_and_memos_are_made_anew_by_each_operator(
    objects: Objects, run_operator: RunOperator
) -> None:
    indexed: list[Any] = []

    @webop.index("widgets", id="colours")
    async def colours(name: str, spec: webop.Spec, memo: Any, **_: Any) -> dict[Any, str] | None:
        indexed.append((name, dict(memo)))
        memo.known = True
        return {spec["colour"]: name} if "colour" in spec else None

    window = Window("colours")
    for name in "abc":
        await objects.create(name, {"colour": "red"})
    async with run_operator():
        await window.until({"red": ["a", "b", "c"]})
    indexed.clear()
    await objects.patch("a", {"spec": {"colour": "blue"}})
    await objects.delete("b")
    async with run_operator():
        await window.until({"red": ["c"], "blue": ["a"]})
    assert sorted(indexed) == [("a", {}), ("c", {})]  # also what has not changed


@pytest.mark.feature("IDX-22", "IDX-03", "IDX-01", "DMN-36")
async def test_indexes_are_filled_before_any_handler_runs(
    objects: Objects, with_status: Objects, run_operator: RunOperator
) -> None:
    sizes: dict[str, list[int]] = {}

    @webop.index("widgets", id="names")
    async def slow(name: str, **_: Any) -> dict[str, None]:
        await asyncio.sleep(0.01)
        return {name: None}

    def note(name: str, names: webop.Index[str, None], **_: Any) -> bool:
        sizes.setdefault(name, []).append(len(names))
        return True

    webop.on.event("widgets", id="event")(note)
    webop.on.create("widgets", id="create", when=note)(note)
    webop.on.event("gadgets", id="event")(note)
    webop.on.create("gadgets", id="create", when=note)(note)

    @webop.daemon("gadgets", id="daemon")
    async def daemon(**kwargs: Any) -> None:
        note(**kwargs)

    await asyncio.gather(*(with_status.create(f"g{n}") for n in range(5)))
    await asyncio.gather(*(objects.create(f"w{n}") for n in range(40)))
    async with run_operator():
        await eventually(lambda: len(sizes) == 45, "all objects are handled")
        await with_status.wait_handled("g0")
        await objects.wait_handled("w39")
    early = {name: found for name, found in sizes.items() if min(found) < 40}
    assert early == {}


@pytest.mark.parametrize("handler", ["event", "update"])
async def test_a_handler_finds_in_the_index_what_its_event_says(
    objects: Objects, run_operator: RunOperator, handler: str
) -> None:
    found: dict[str, list[str]] = {}

    @webop.on.event("widgets", id="event")
    @webop.on.update("widgets", id="update")
    async def note(
        name: str, spec: webop.Spec, colours: webop.Index[str, str], event: Any = None, **_: Any
    ) -> None:
        if handler == ("update" if event is None else "event"):
            found.setdefault(spec["colour"], list(colours.get(name, ())))

    @webop.index("widgets", id="colours")
    async def index(name: str, spec: webop.Spec, **_: Any) -> dict[str, str]:
        await asyncio.sleep(0.05)
        return {name: spec["colour"]}

    await objects.create("a", {"colour": "red"})
    async with run_operator():
        await objects.wait_handled("a")
        await objects.patch("a", {"spec": {"colour": "green"}})
        await eventually(lambda: "green" in found)
    assert found["green"] == ["green"]


@pytest.mark.feature("IDX-21", "IDX-03", "IDX-23", "KWA-13")
async def test_every_handler_gets_every_index_by_its_name_even_if_that_is_taken(
    objects: Objects, run_operator: RunOperator
) -> None:
    seen: dict[str, str] = {}

    def note(key: str) -> Any:
        def fn(spec: Any, **_: Any) -> None:
            seen.setdefault(key, type(spec).__name__)

        return fn

    @webop.index("widgets", id="spec")
    async def index(name: str, **_: Any) -> dict[str, None]:
        return {name: None}

    webop.on.startup()(note("startup"))
    webop.on.cleanup()(note("cleanup"))
    webop.on.event("widgets")(note("event"))
    webop.on.create("widgets")(note("create"))
    webop.daemon("widgets", id="daemon")(note("daemon"))
    webop.timer("widgets", id="timer", interval=1)(note("timer"))
    async with run_operator():
        await objects.create("a")
        await eventually(lambda: {"event", "create", "daemon", "timer"} <= seen.keys())
    expected = {"startup", "cleanup", "event", "create", "daemon", "timer"}
    assert seen == dict.fromkeys(expected, "ObjectIndex")


@pytest.mark.feature("IDX-22", "RES-18")
async def test_an_index_of_a_kind_that_is_not_in_the_cluster_holds_up_nobody(
    objects: Objects, run_operator: RunOperator, client: Client
) -> None:
    late = Kind("late.webop.dev", "latecomers", "Latecomer")
    window = Window("latest")

    @webop.index("latecomers", id="latest")
    async def latest(name: str, **_: Any) -> dict[str, str]:
        return {"all": name}

    webop.on.create("widgets", id="created")(do_nothing)
    async with run_operator():
        await objects.make("a")
        await late.define(client)
        try:
            await Objects(client, late, objects.namespace).create("b")
            await window.until({"all": ["b"]})
        finally:
            await late.undefine(client)
        await window.until({})
