"""What handlers want changed in their objects, and how it gets there (PAT, RST)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import webop
from tests.kit.causes import FailedTest, UnreadableError
from tests.kit.operators import (
    DIFFBASE,
    Calls,
    Objects,
    RunOperator,
    build_settings,
    get_annotations,
)
from tests.kit.waiting import eventually


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


@pytest.mark.feature("PAT-03", "PAT-04", "PAT-08", "PAT-14", "D-05")
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
    [
        KeyError("boo"),
        TypeError("boo"),
        ZeroDivisionError("boo"),
        UnreadableError(5),
        FailedTest("boo"),
        SystemExit("boo"),
    ],
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


@pytest.mark.feature("PAT-03")
async def test_two_handlers_can_want_the_same_function(
    run_operator: RunOperator, objects: Objects
) -> None:
    def count(body: webop.RawBody) -> None:
        body.setdefault("status", {})["items"] = len(body["spec"]["items"])

    @webop.on.create("widgets", id="quick")
    async def quick(patch: webop.Patch, **_: Any) -> None:
        patch.spec["items"] = ["a"]
        patch.fns.append(count)

    @webop.on.create("widgets", id="slow")
    async def slow(patch: webop.Patch, **_: Any) -> None:
        await objects.wait("one", lambda body: body.get("status"))
        patch.spec["items"] = ["a", "b"]
        patch.fns.append(count)

    async with run_operator():
        body = await objects.make("one")
    assert body["spec"] == {"items": ["a", "b"]}
    assert body["status"] == {"items": 2}


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


@pytest.mark.feature("PAT-01", "RST-02")
async def test_records_in_the_status_do_not_say_that_all_is_done_before_it_is(
    with_status: Objects, run_relayed: RunOperator, calls: Calls
) -> None:
    is_away = True
    tried = asyncio.Event()

    @webop.on.create("gadgets", id="fn")
    async def fn(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        patch.metadata.labels["done"] = "yes"
        patch.status["phase"] = "done"

    async def refuse(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or not request.url.path.endswith("/one") or not is_away:
            return None
        tried.set()
        return httpx.Response(503)

    settings = build_settings()
    settings.persistence.progress_storage = webop.StatusProgressStorage()
    settings.persistence.diffbase_storage = webop.StatusDiffBaseStorage()
    async with run_relayed(settings, meddle=refuse):
        await with_status.create("one")
        await tried.wait()
    is_away = False
    async with run_relayed(settings, meddle=refuse):
        body = await with_status.wait("one", lambda body: "status" in body)
    assert body["metadata"]["labels"] == {"done": "yes"}
    assert calls.handlers("one") == ["fn", "fn"]


async def test_records_in_the_status_of_a_deleted_object_are_removed_after_a_failed_attempt(
    with_status: Objects, run_relayed: RunOperator
) -> None:
    has_failed = False

    @webop.on.delete("gadgets", id="fn", backoff=0)
    async def fn(retry: int, **_: Any) -> None:
        if not retry:
            raise webop.TemporaryError("again", delay=0)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal has_failed
        if has_failed or b'"finalizers":["tests.webop.dev/other"]' not in request.content:
            return None
        has_failed = True
        return httpx.Response(503)

    settings = build_settings()
    settings.persistence.progress_storage = webop.StatusProgressStorage()
    async with run_relayed(settings, meddle=meddle):
        await with_status.create("one", finalizers=["tests.webop.dev/other"])
        await with_status.wait("one", lambda body: len(body["metadata"]["finalizers"]) == 2)
        await with_status.delete("one")
        await with_status.wait("one", lambda body: len(body["metadata"]["finalizers"]) == 1)
        await with_status.wait("one", lambda body: not body["status"]["kopf"]["progress"])
        await with_status.patch("one", {"metadata": {"finalizers": []}})
    assert has_failed


async def test_a_value_that_waits_for_a_write_that_fails_does_not_wait_for_a_slow_handler(
    run_relayed: RunOperator, objects: Objects
) -> None:
    is_writing, released = asyncio.Event(), asyncio.Event()

    @webop.on.create("widgets", id="quick")
    async def quick(**_: Any) -> None:
        pass

    @webop.on.create("widgets", id="slow")
    async def slow(**_: Any) -> None:
        await released.wait()

    @webop.daemon("widgets", id="daemon")
    async def daemon(patch: webop.Patch, **_: Any) -> None:
        await is_writing.wait()
        patch.status["progress"] = 1
        await patch.apply()

    async def fail(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or b"quick" not in request.content or is_writing.is_set():
            return None
        is_writing.set()
        await asyncio.sleep(0.3)  # until the daemon waits for this write
        return httpx.Response(503)

    async with run_relayed(meddle=fail):
        await objects.create("one")
        await objects.wait("one", lambda body: body.get("status") == {"progress": 1})
        released.set()
        await objects.wait_handled("one")
