"""Sub-handlers: how they are declared, which of them are called, and with what."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    Calls,
    Objects,
    RunOperator,
    do_nothing,
    get_progress,
    has_finalizer,
    is_no_fence,
)


class Notes(defaultdict[str, list[Any]]):
    """What has been called for objects or parents."""

    def __init__(self) -> None:
        super().__init__(list)

    def noting(self, what: str, key: str) -> Callable[..., None]:
        def fn(**_: Any) -> None:
            self[what].append(key)

        return fn


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.mark.feature("SUB-01", "SUB-02", "SUB-17", "EVT-16", "HND-24")
async def test_sub_handlers_of_a_field_handler_see_the_change_of_its_field(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.field("widgets", id="parent", field="spec.a")
    async def parent(**_: Any) -> None:
        @webop.subhandler(id="child")
        async def child(**kwargs: Any) -> None:
            calls.note("child", kwargs, diff=kwargs["diff"])

            async def grandchild(**kwargs: Any) -> None:
                calls.note("grandchild", kwargs, diff=kwargs["diff"])

            await webop.execute(fns={"grandchild": grandchild})

        @webop.subhandler(id="other", field="spec.b")
        async def other(**kwargs: Any) -> None:
            calls.note("other", kwargs, diff=kwargs["diff"])

    async with run_operator():
        await objects.make("one", {"a": {"x": 1}, "b": 1})
        calls.items.clear()
        await objects.patch("one", {"spec": {"a": {"x": 2}, "b": 2}})
        await calls.wait("one", "other")
    seen = {call["handler"]: (call["old"], call["new"], call["diff"]) for call in calls.of("one")}
    change = ({"x": 1}, {"x": 2}, (("change", ("x",), 1, 2),))
    assert seen == {"child": change, "grandchild": change, "other": (1, 2, (("change", (), 1, 2),))}


@pytest.mark.feature("SUB-02", "SUB-03", "SUB-04", "SUB-05", "SUB-15", "SUB-18")
async def test_sub_handlers_are_called_in_whatever_way_they_are_declared(
    run_operator: RunOperator, objects: Objects, notes: Notes
) -> None:
    others = webop.OperatorRegistry()
    webop.on.create("kex", id="a", registry=others)(notes.noting("sources", "a"))
    webop.on.update("kex", id="b", registry=others)(notes.noting("sources", "b"))
    webop.on.event("kex", id="c", registry=others)(notes.noting("sources", "c"))
    ready = webop.OperatorRegistry()
    webop.on.create("kex", id="ready", registry=ready)(notes.noting("sources", "ready"))
    handlers: Any = ready.select_resource_handlers()

    @webop.on.create("widgets", id="registered")
    def registered(**_: Any) -> None:
        for key in ("a", "b"):
            assert callable(webop.subhandler(id=key)(notes.noting("registered", key)))
        webop.register(functools.partial(notes.noting("registered", "c"), x=1), id="c")
        notes["registered"].append("parent")

    @webop.on.create("widgets", id="executed")
    async def executed(**_: Any) -> str:
        webop.subhandler(id="a")(notes.noting("executed", "a"))
        await webop.execute(fns={"b": notes.noting("executed", "b")})
        await webop.execute()
        webop.subhandler(id="c")(notes.noting("executed", "c"))
        return "the result"

    @webop.on.create("widgets", id="sources")
    async def sources(**_: Any) -> None:
        def task(**_: Any) -> str:
            return "named by its function"

        with pytest.raises(TypeError, match="only one"):
            await webop.execute(fns=[], handlers=[])
        await webop.execute(fns=[task])
        await webop.execute(handlers=handlers)
        await webop.execute(registry=others)

    async with run_operator():
        body = await objects.make("one")
    assert notes == {
        "registered": ["parent", "a", "b", "c"],
        "executed": ["b", "a", "c"],
        "sources": ["ready", "a"],
    }
    (name,) = body["status"].keys() - {"executed"}
    assert name.startswith("sources/")
    assert name.endswith("sources.<locals>.task")


FILTERS: dict[str, Any] = {
    "field": {"field": "spec.a"},
    "value": {"field": "spec.a", "value": 1},
    "absent": {"field": "spec.b", "value": webop.ABSENT},
    "old": {"field": "spec.a", "old": 0},
    "new": {"field": "spec.a", "new": 1},
    "unchanged": {"field": "spec.u"},
    "labelled": {"labels": {"l": "1"}},
    "unlabelled": {"labels": {"l": webop.ABSENT}},
    "when": {"when": lambda **_: False},
}


@pytest.mark.feature("SUB-11", "SUB-13", "FLT-09", "FLT-11", "FLT-12")
async def test_filters_of_sub_handlers_mean_what_they_mean_for_the_parent(
    run_operator: RunOperator, objects: Objects, notes: Notes
) -> None:
    @webop.on.create("widgets", id="parent")
    @webop.on.update("widgets", id="parent")
    def parent(name: str, reason: str, **_: Any) -> None:
        for key, options in FILTERS.items():
            webop.subhandler(id=key, **options)(notes.noting(f"{name} {reason}", key))

    async with run_operator():
        await objects.make("one", {"a": 1, "u": 1}, labels={"l": "1"})
        await objects.make("two", {"a": 0, "u": 1}, labels={"l": "1"})
        await objects.change("two", {"spec": {"a": 1}})
    # In a creation handler, the present state counts, but for old= and new=.
    assert {*notes["one create"]} == {"field", "value", "absent", "new", "unchanged", "labelled"}
    # In an update handler, the change counts.
    assert {*notes["two update"]} == {"field", "value", "old", "new", "labelled"}


@pytest.mark.feature("SUB-11", "SUB-06", "ERR-07", "ERR-11")
async def test_options_of_sub_handlers_are_their_own(
    run_operator: RunOperator, objects: Objects, notes: Notes
) -> None:
    def failing(name: str, param: Any, retry: int, **_: Any) -> None:
        notes[name].append((param, retry))
        raise ValueError("boo")

    @webop.on.create("widgets", id="parent")
    def parent(**_: Any) -> None:
        permanent = webop.ErrorsMode.PERMANENT
        webop.subhandler(id="a", param="x", errors=permanent)(failing)
        webop.subhandler(id="b", retries=1)(failing)
        webop.register(failing, id="c", retries=2, backoff=0, param="y")

    async with run_operator():
        await objects.make("one")
    assert notes["one"] == [("x", 0), (None, 0), ("y", 0), ("y", 1)]


@pytest.mark.feature("SUB-14")
async def test_outside_of_handlers_there_are_no_sub_handlers() -> None:
    with pytest.raises(LookupError, match="works only inside a handler"):
        webop.subhandler(id="x")(lambda **_: None)
    with pytest.raises(LookupError, match="works only inside a handler"):
        webop.register(lambda **_: None, id="x")
    with pytest.raises(LookupError, match="works only inside a handler"):
        await webop.execute(fns={})


@pytest.mark.feature("SUB-17", "ERR-20")
async def test_records_of_sub_handlers_of_an_interrupted_creation_go_with_the_deletion(
    run_operator: RunOperator, objects: Objects
) -> None:
    """The object stays for the finalizer of somebody else."""

    @webop.on.create("widgets", id="parent", when=is_no_fence)
    async def parent(**_: Any) -> None:
        async def retry(**_: Any) -> None:
            raise webop.TemporaryError("again", delay=0.1)

        await webop.execute(fns={"done": do_nothing, "retry": retry})

    webop.on.delete("widgets", id="deleted", when=is_no_fence)(do_nothing)
    async with run_operator():
        await objects.create("one", finalizers=["tests.webop.dev/other"])
        await objects.wait("one", lambda body: "parent.retry" in get_progress(body))
        await objects.delete("one")
        await objects.wait("one", lambda body: not has_finalizer(body))
        await objects.wait("one", lambda body: not get_progress(body), timeout=5)


class Gate:
    """A handler that retries until it is opened: for so long, the change is being handled."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.is_open = False

    async def fn(self, **kwargs: Any) -> None:
        self.calls.note("gate", kwargs)
        if not self.is_open:
            raise webop.TemporaryError("not yet", delay=0.1)

    async def wait(self) -> None:
        """Wait for retries: the other handlers have been called before them."""
        await self.calls.wait("one", "gate", len(self.calls.of("one", "gate")) + 3)


@pytest.fixture
def gate(calls: Calls) -> Gate:
    return Gate(calls)


@pytest.mark.feature("D-67", "SUB-11", "SUB-13")
@pytest.mark.parametrize("more", [{}, {"y": 2}], ids=["all", "field"])
async def test_a_sub_handler_is_called_when_its_field_is_undone_while_another_retries(
    run_operator: RunOperator, objects: Objects, gate: Gate, more: Any
) -> None:
    @webop.on.update("widgets", id="parent", when=is_no_fence)
    async def parent(**_: Any) -> None:
        webop.subhandler(id="child", field="spec.x")(gate.calls.noting("child"))
        webop.subhandler(id="gate")(gate.fn)

    async with run_operator():
        await objects.make("one", {"x": 1, "y": 1})
        await objects.patch("one", {"spec": {"x": 2, **more}})
        await gate.wait()
        await objects.patch("one", {"spec": {"x": 1}})
        await objects.pass_fence()
        await gate.wait()
        gate.is_open = True
        await objects.wait_handled("one")
    assert [call["new"] for call in gate.calls.of("one", "child")] == [2, 1]


@pytest.mark.feature("D-67", "FLT-08")
async def test_a_field_handler_is_called_when_its_field_is_removed_in_the_middle_of_a_creation(
    run_operator: RunOperator, objects: Objects, gate: Gate
) -> None:
    webop.on.field("widgets", id="f", field="spec.x")(gate.calls.noting("f"))
    webop.on.create("widgets", id="gate", when=is_no_fence)(gate.fn)
    async with run_operator():
        await objects.create("one", {"x": 1, "y": 1})
        await gate.wait()
        await objects.patch("one", {"spec": {"x": None}})
        await objects.pass_fence()
        await gate.wait()
        gate.is_open = True
        await objects.wait_handled("one")
    assert [call["new"] for call in gate.calls.of("one", "f")] == [1, None]
