"""Changes of objects in a real cluster call the handlers that are declared for them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    DIFFBASE,
    FINALIZER,
    Calls,
    Objects,
    RunOperator,
    do_nothing,
    get_annotations,
    get_progress,
    is_no_fence,
)
from tests.kit.waiting import eventually


@pytest.mark.feature("HND-15", "HND-32", "HND-33", "CON-02", "CFG-65", "EVT-05")
async def test_a_created_object_is_handled_once(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.on.create("widgets", id="fn")(calls.noting("fn"))
    async with run_operator():
        body = await objects.make("one", {"a": 1}, labels={"l": "v"})
        await objects.pass_fence()
    assert [call["reason"] for call in calls.of("one")] == ["create"]
    essence = '{"spec":{"a":1},"metadata":{"labels":{"l":"v"}}}\n'
    assert get_annotations(body)[DIFFBASE] == essence
    assert not get_progress(body)


@pytest.mark.feature("HND-29", "HND-30", "D-02", "D-45", "CFG-72")
async def test_only_essential_changes_are_updates(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.on.create("widgets", id="created")(do_nothing)

    @webop.on.update("widgets", id="fn")
    async def fn(diff: Any, **kwargs: Any) -> None:
        calls.note("fn", kwargs, path=diff[0][1])

    applied = "kubectl.kubernetes.io/last-applied-configuration"
    async with run_operator():
        await objects.make("one", {"a": 1})
        await objects.patch("one", {"status": {"x": 1}})
        await objects.patch("one", {"metadata": {"finalizers": ["tests.webop.dev/f"]}})
        await objects.patch("one", {"metadata": {"annotations": {applied: "{}"}}})
        await objects.pass_fence()
        assert not calls.of("one")
        await objects.patch("one", {"metadata": {"labels": {"l": "v"}}})
        await calls.wait("one", count=1)
        await objects.patch("one", {"metadata": {"annotations": {"n": "v"}}})
        await calls.wait("one", count=2)
        await objects.pass_fence()
    assert [call["path"] for call in calls.of("one")] == [
        ("metadata",),
        ("metadata", "annotations"),
    ]


@pytest.mark.feature("HND-17", "HND-18", "HND-34", "CFG-36", "LOG-11")
async def test_a_deletion_waits_for_its_handlers(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    may_go = asyncio.Event()

    @webop.on.create("widgets", id="created")
    async def created(meta: webop.Meta, **kwargs: Any) -> None:
        calls.note("created", kwargs, finalizers=list(meta.finalizers))

    webop.on.delete("widgets", id="deleted")(calls.noting("deleted", may_go))
    async with run_operator():
        await objects.make("one", {"a": 1}, finalizers=["tests.webop.dev/other"])
        (created_call,) = calls.of("one")
        assert created_call["finalizers"] == ["tests.webop.dev/other", FINALIZER]
        await objects.delete("one")
        await calls.wait("one", "deleted")
        await objects.pass_fence()
        assert FINALIZER in (await objects.get("one"))["metadata"]["finalizers"]
        may_go.set()
        await objects.wait(
            "one", lambda body: body["metadata"]["finalizers"] == ["tests.webop.dev/other"]
        )
        await objects.patch("one", {"metadata": {"finalizers": None}})
        await objects.wait_gone("one")
    assert calls.handlers("one") == ["created", "deleted"]


@pytest.mark.feature("HND-26", "HND-27", "EVT-01", "EVT-02", "KWA-14", "KEV-10", "D-07")
async def test_event_handlers_see_everything_and_leave_nothing_behind(
    run_operator: RunOperator, objects: Objects
) -> None:
    seen: list[Any] = []

    @webop.on.event("widgets", id="failing")
    async def failing(**_: Any) -> None:
        raise ValueError("boo")

    @webop.on.event("widgets", id="fn")
    async def fn(event: webop.RawEvent, name: str, **kwargs: Any) -> None:
        if not name.startswith("fence"):
            assert event["object"]["metadata"]["name"] == name
            seen.append((name, event["type"], kwargs["type"], event["object"]["spec"]))

    await objects.create("old", {"a": 0})
    async with run_operator():
        await eventually(lambda: seen)
        await objects.create("new", {"a": 1})
        await eventually(lambda: len(seen) == 2)
        await objects.patch("new", {"spec": {"a": 2}})
        await eventually(lambda: len(seen) == 3)
        await objects.patch("new", {"status": {"s": 1}})
        await eventually(lambda: len(seen) == 4)
        body = await objects.get("new")
        await objects.delete("new")
        await eventually(lambda: len(seen) == 5)
    assert seen == [
        ("old", None, None, {"a": 0}),
        ("new", "ADDED", "ADDED", {"a": 1}),
        ("new", "MODIFIED", "MODIFIED", {"a": 2}),
        ("new", "MODIFIED", "MODIFIED", {"a": 2}),
        ("new", "DELETED", "DELETED", {"a": 2}),
    ]
    assert "annotations" not in body["metadata"]


@pytest.mark.feature("MEM-01", "MEM-03", "MEM-04", "MEM-05", "MEM-06", "MEM-07", "MEM-08", "MEM-11")
async def test_the_handlers_of_an_object_share_a_memo_until_it_is_deleted(
    run_operator: RunOperator, objects: Objects
) -> None:
    seen: list[Any] = []

    @webop.on.startup(id="startup")
    async def startup(memo: webop.Memo, **_: Any) -> None:
        memo.started = True

    @webop.on.event("widgets", id="event")
    async def event(memo: webop.Memo, **_: Any) -> None:
        memo.events = memo.get("events", 0) + 1

    @webop.on.create("widgets", id="created")
    @webop.on.update("widgets", id="updated")
    async def changed(name: str, memo: webop.Memo, **_: Any) -> None:
        memo.changes = memo.get("changes", 0) + 1
        if not name.startswith("fence"):
            memo.shared.append(len(seen))
            seen.append(dict(memo))

    operator_memo = webop.Memo(given="outside", shared=[])
    async with run_operator(memo=operator_memo):
        await objects.make("one", {"a": 1})
        operator_memo.later = "for new objects"
        await objects.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: len(seen) == 2)
        await objects.delete("one")
        await objects.pass_fence()
        await objects.create("one", {"a": 1})
        await eventually(lambda: len(seen) == 3)
    inherited = {"given": "outside", "started": True, "shared": [0, 1, 2]}
    assert seen[0] == {**inherited, "events": 1, "changes": 1}
    assert seen[1] == {**inherited, "events": seen[1]["events"], "changes": 2}
    assert seen[1]["events"] >= 2
    assert seen[2] == {**inherited, "events": 1, "changes": 1, "later": "for new objects"}


@pytest.mark.feature("RST-01", "RST-02", "RST-03", "RST-04", "RST-06")
async def test_results_are_in_the_status_for_handlers_that_come_later(
    run_operator: RunOperator, objects: Objects
) -> None:
    seen: list[Any] = []

    @webop.on.create("widgets", id="created")
    async def created(**_: Any) -> Any:
        return {"name": "x", "items": [1, 2.5, None, True]}

    webop.on.create("widgets", id="silent")(do_nothing)

    @webop.on.update("widgets", id="updated")
    async def updated(status: webop.Status, **_: Any) -> int:
        seen.append(status["created"]["name"])
        return 5

    async with run_operator():
        await objects.make("one", {"a": 1})
        body = await objects.change("one", {"spec": {"a": 2}})
    assert seen == ["x"]
    expected = {"created": {"name": "x", "items": [1, 2.5, None, True]}, "updated": 5}
    assert body["status"] == expected


@pytest.mark.feature("KWA-20", "EVT-11")
@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_handler_sees_its_object_as_it_was_when_it_was_called(
    run_operator: RunOperator, objects: Objects, *, is_sync: bool
) -> None:
    entered, changed = threading.Event(), threading.Event()
    seen: list[tuple[Any, Any, Any]] = []

    def look(body: webop.Body, spec: webop.Spec, labels: webop.Labels) -> None:
        seen.append((body["spec"]["a"], spec["a"], labels.get("l")))

    async def fn(**kwargs: Any) -> None:
        await asyncio.to_thread(fn_sync, **kwargs)

    def fn_sync(
        name: str, body: webop.Body, spec: webop.Spec, labels: webop.Labels, **_: Any
    ) -> None:
        if name == "one" and not seen:
            look(body, spec, labels)
            entered.set()
            assert changed.wait(20)
            look(body, spec, labels)

    webop.on.create("widgets", id="fn")(fn_sync if is_sync else fn)
    async with run_operator():
        await objects.create("one", {"a": 1}, labels={"l": "1"})
        await asyncio.to_thread(entered.wait, 20)
        await objects.patch("one", {"spec": {"a": 2}, "metadata": {"labels": {"l": "2"}}})
        # The newer state is known to the operator, but its time has not come.
        await objects.pass_fence()
        changed.set()
        await objects.wait_handled("one")
    assert seen == [(1, 1, "1")] * 2


@pytest.mark.feature("EVT-02", "HND-26")
async def test_event_handlers_get_the_newest_state_of_a_batch_and_each_deletion(
    run_operator: RunOperator, objects: Objects
) -> None:
    seen: list[tuple[str | None, int]] = []
    released = asyncio.Event()

    @webop.on.event("widgets", id="fn", when=is_no_fence)
    async def fn(event: webop.RawEvent, spec: webop.Spec, **_: Any) -> None:
        seen.append((event["type"], spec["a"]))
        await released.wait()

    async with run_operator():
        await objects.create("one", {"a": 1})
        await eventually(lambda: seen)
        for number in (2, 3):
            await objects.patch("one", {"spec": {"a": number}})
        await objects.pass_fence()
        released.set()
        await eventually(lambda: len(seen) == 2)
        await objects.delete("one")
        await eventually(lambda: len(seen) == 3)
    assert seen[1:] == [("MODIFIED", 3), ("DELETED", 3)]
