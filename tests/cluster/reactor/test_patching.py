"""What handlers want changed in their objects, and how it gets there (PAT, RST)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import webop
from tests.kit.causes import FailedTest, UnreadableError
from tests.kit.operators import (
    DIFFBASE,
    Calls,
    Kind,
    Objects,
    RunOperator,
    build_settings,
    get_annotations,
)
from tests.kit.waiting import eventually
from webop.client.api import Client


@pytest.mark.feature("PAT-01", "PAT-02", "PAT-10", "KWA-11")
async def test_a_patch_is_merged_into_the_object_and_is_an_update(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.on.update("widgets", id="updated")(calls.noting("updated"))

    @webop.on.create("widgets", id="fn")
    async def fn(patch: webop.Patch, **_: Any) -> None:
        assert not patch
        patch.spec["added"] = {"x": 1}
        patch.spec["removed"] = None
        patch.metadata.labels["label"] = "v"
        patch.meta.annotations["tests.webop.dev/note"] = "v"
        patch.status["phase"] = "done"
        patch["spec"]["list"] = [1, 2]
        assert patch
        with pytest.raises(LookupError, match="only in daemons and timers"):
            await patch.apply()

    async with run_operator():
        await objects.create("one", {"removed": 1, "kept": {"y": 1}})
        await calls.wait("one", "updated")
        body = await objects.wait_handled("one")
    assert body["spec"] == {"kept": {"y": 1}, "added": {"x": 1}, "list": [1, 2]}
    assert body["status"] == {"phase": "done"}
    assert body["metadata"]["labels"] == {"label": "v"}
    assert get_annotations(body)["tests.webop.dev/note"] == "v"


@pytest.mark.feature("PAT-03", "PAT-04", "PAT-07", "PAT-08", "PAT-09", "PAT-14", "CFG-39", "D-05")
async def test_functions_change_the_freshest_state(
    run_operator: RunOperator, objects: Objects
) -> None:
    def append(body: webop.RawBody) -> None:
        items = body["spec"].setdefault("items", [])
        if "mine" not in items:
            items.append("mine")

    @webop.on.create("widgets", id="fn")
    async def fn(name: str, patch: webop.Patch, **_: Any) -> None:
        if name == "one":
            patch.fns.append(append)
            assert patch
            patch.status["too"] = "yes"
            await objects.patch("one", {"spec": {"items": ["theirs", "others"]}})

    async with run_operator():
        await objects.create("one", {"items": ["theirs"]})
        body = await objects.wait("one", lambda body: "mine" in body["spec"]["items"])
        await objects.pass_fence()
    assert body["spec"]["items"] == ["theirs", "others", "mine"]
    assert body["status"]["too"] == "yes"


def say_a(body: webop.RawBody) -> None:
    body["spec"]["x"] = "a"


def log_x(body: webop.RawBody) -> None:
    body["spec"]["log"] = body["spec"].get("x")


@pytest.mark.feature("PAT-01", "PAT-03", "PAT-10")
@pytest.mark.parametrize(
    ("patches", "expected"),
    [
        pytest.param([say_a, {"x": "b"}], {"x": "b"}, id="a value after a function"),
        pytest.param([{"x": None}, {"x": {"k": 1}}], {"x": {"k": 1}}, id="a mapping after None"),
        pytest.param([{"x": 1}, log_x, {"x": None}], {"log": 1}, id="None after a function"),
    ],
)
async def test_patches_of_several_handlers_have_the_effect_of_one_after_the_other(
    run_operator: RunOperator, objects: Objects, patches: list[Any], expected: Any
) -> None:
    def declare(number: int, wanted: Any) -> None:
        @webop.on.create("widgets", id=f"fn{number}")
        async def fn(patch: webop.Patch, **_: Any) -> None:
            if callable(wanted):
                patch.fns.append(wanted)
            else:
                patch.spec.update(wanted)

    for number, wanted in enumerate(patches):
        declare(number, wanted)
    async with run_operator():
        await objects.create("one", {"x": {"old": 0}})
        body = await objects.wait("one", lambda body: DIFFBASE in get_annotations(body))
    assert body["spec"] == expected


@pytest.mark.feature("PAT-03", "ERR-01")
@pytest.mark.parametrize(
    "exc",
    [KeyError("boo"), UnreadableError(5), FailedTest("boo"), SystemExit("boo")],
    ids=repr,
)
async def test_a_function_that_fails_is_told_of_and_holds_up_nothing(
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    exc: BaseException,
) -> None:
    def fail(body: webop.RawBody) -> None:
        raise exc

    @webop.on.create("widgets", id="created")
    async def created(name: str, patch: webop.Patch, **kwargs: Any) -> str:
        calls.note("created", {**kwargs, "name": name})
        if name == "one":
            patch.fns.append(fail)
        return "done"

    webop.on.update("widgets", id="updated")(calls.noting("updated"))
    async with run_operator(build_settings(batching={"error_delays": [0.1]})):
        body = await objects.make("one", {"a": 0})
        await eventually(lambda: type(exc).__name__ in caplog.text)
        await objects.change("one", {"spec": {"a": 1}})
        await objects.pass_fence()
    assert body["status"] == {"created": "done"}
    assert calls.handlers("one") == ["created", "updated"]


@pytest.mark.feature("PAT-13", "RST-01")
async def test_a_patch_for_an_object_that_is_gone_is_dropped(
    run_operator: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.on.create("widgets", id="fn")
    async def fn(name: str, **kwargs: Any) -> str:
        if name == "one":
            calls.note("fn", {**kwargs, "name": name})
            await objects.delete("one")
        return "result"

    async with run_operator():
        await objects.create("one")
        await calls.wait("one")
        await objects.pass_fence()
    assert len(calls.of("one")) == 1
    assert not [r for r in caplog.records if r.levelno >= 30]


def add_once(body: webop.RawBody) -> None:
    items = body["spec"].setdefault("items", [])
    if "x" not in items:
        items.append("x")
        body.setdefault("status", {})["added"] = "x"


def count(body: webop.RawBody) -> None:
    body["spec"]["n"] = body["spec"].get("n", 0) + 1
    body.setdefault("status", {})["n"] = body["spec"]["n"]


@pytest.mark.feature("PAT-03", "PAT-04", "PAT-09", "RST-09")
@pytest.mark.parametrize(
    ("fn", "spec", "status"),
    [(add_once, {"items": ["x"]}, {"added": "x"}), (count, {"n": 1}, {"n": 1})],
)
async def test_a_function_that_changes_the_object_and_its_status_is_called_once_for_both(
    run_operator: RunOperator, with_status: Objects, fn: webop.PatchFn, spec: Any, status: Any
) -> None:
    @webop.on.create("gadgets", id="fn")
    async def created(patch: webop.Patch, **_: Any) -> None:
        patch.fns.append(fn)

    async with run_operator():
        await with_status.create("one")
        body = await with_status.wait("one", lambda body: DIFFBASE in get_annotations(body))
    assert (body["spec"], body.get("status")) == (spec, status)


@pytest.mark.feature("PAT-01", "PAT-03")
async def test_a_status_that_is_rejected_does_not_hold_up_the_rest(
    with_status: Objects, run_relayed: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:

    def change(body: webop.RawBody) -> None:
        body["spec"]["y"] = 2

    @webop.on.create("gadgets", id="fn")
    async def fn(patch: webop.Patch, **_: Any) -> None:
        patch.status["phase"] = "done"
        patch.spec["x"] = 1

    @webop.on.create("gadgets", id="other")
    async def other(patch: webop.Patch, name: str, **_: Any) -> None:
        if name == "two":
            patch.fns.append(change)

    async def forbid(request: httpx.Request) -> httpx.Response | None:
        is_status = request.method == "PATCH" and request.url.path.endswith("/status")
        return (
            httpx.Response(422, json={"kind": "Status", "message": "no status"})
            if is_status
            else None
        )

    async with run_relayed(meddle=forbid):
        for name, spec in (("one", {"x": 1}), ("two", {"x": 1, "y": 2})):
            body = await with_status.make(name)
            assert body["spec"] == spec
            assert "status" not in body
    assert "no status" in caplog.text


@pytest.mark.feature("PAT-03")
async def test_a_change_of_a_function_that_is_rejected_does_not_hold_up_its_status(
    run_operator: RunOperator, with_status: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    def change(body: webop.RawBody) -> None:
        body["metadata"]["labels"] = {"label": "not valid!"}
        body["status"] = {"phase": "done"}

    @webop.on.create("gadgets", id="fn")
    async def fn(patch: webop.Patch, **_: Any) -> None:
        patch.fns.append(change)

    async with run_operator():
        body = await with_status.make("one")
    assert body["status"] == {"phase": "done"}
    assert "labels" not in body["metadata"]
    assert "not valid!" in caplog.text


@pytest.mark.parametrize("kind", ["widgets", "gadgets"])
async def test_a_patch_on_its_way_never_lands_on_another_object_of_the_same_name(
    client: Client,
    widgets: Kind,
    gadgets: Kind,
    run_relayed: RunOperator,
    webop_namespace: str,
    kind: str,
) -> None:
    objects = Objects(client, {"widgets": widgets, "gadgets": gadgets}[kind], webop_namespace)
    is_replaced = False

    @webop.on.create(kind, id="fn", labels={"second": webop.ABSENT})
    async def fn(**_: Any) -> str:
        return "for the first one"

    async def meddle(request: httpx.Request) -> None:
        nonlocal is_replaced
        if request.method == "PATCH" and "a" in request.url.path.split("/") and not is_replaced:
            await objects.delete("a")
            await objects.create("a", labels={"second": "yes"})
            is_replaced = True

    async with run_relayed(meddle=meddle):
        await objects.create("a")
        await eventually(lambda: is_replaced)
        await objects.pass_fence()
        raw = await objects.get("a")
    assert "status" not in raw
    assert "annotations" not in raw["metadata"]


@pytest.mark.feature("PAT-07", "PAT-09")
async def test_a_function_whose_patch_is_outdated_when_it_arrives_is_applied_to_the_newer_state(
    objects: Objects, run_relayed: RunOperator
) -> None:
    is_changed = False

    def append(body: webop.RawBody) -> None:
        body["spec"]["by"] = [body["spec"]["a"]]

    @webop.on.create("widgets", id="fn", labels={"x": "y"})
    async def fn(patch: webop.Patch, **_: Any) -> None:
        patch.fns.append(append)

    async def meddle(request: httpx.Request) -> None:
        nonlocal is_changed
        if b'"/spec/by"' in request.content and not is_changed:
            is_changed = True
            await objects.patch("one", {"spec": {"a": 1}})

    async with run_relayed(meddle=meddle):
        await objects.create("one", {"a": 0}, labels={"x": "y"})
        body = await objects.wait("one", lambda body: body["spec"].get("by"), timeout=5)
    assert body["spec"] == {"a": 1, "by": [1]}
