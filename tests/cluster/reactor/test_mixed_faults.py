"""Two things that go wrong at once: failing writes, and changes, daemons or events meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import fail
from tests.kit.operators import Calls, Objects, RunOperator, build_settings, do_nothing, is_no_fence
from tests.kit.waiting import eventually

QUICK = {"networking": {"error_backoffs": [0.3]}, "batching": {"error_delays": [0.3]}}


def is_patch_with(request: httpx.Request, text: str) -> bool:
    return request.method == "PATCH" and text.encode() in request.content


async def spoil_metadata(patch: webop.Patch) -> None:
    patch["metadata"] = "not a mapping"


async def spoil_by_cycle(patch: webop.Patch) -> None:
    content: dict[str, Any] = {}
    content["again"] = content
    patch["status"] = content


async def test_an_api_server_that_does_not_know_the_kind_yet_does_not_mean_that_objects_are_gone(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """It has just started; the object is read because of a conflict."""
    reads = 0

    @webop.on.create("widgets", id="fn")
    async def fn(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        patch.status["a"] = 1

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal reads
        if not request.url.path.endswith("/a"):
            return None
        if request.method == "PATCH" and not reads:
            return fail(409)
        if request.method == "GET":
            reads += 1
            return httpx.Response(404, text="404 page not found") if reads == 1 else None
        return None

    async with run_relayed(build_settings(**QUICK), meddle=meddle):
        await objects.make("a")
        raw = await objects.get("a")
    assert raw["status"] == {"a": 1}
    assert calls.handlers("a") == ["fn"]


async def test_a_finalizer_refused_by_409_is_tried_again(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """A conflict that is not about the version of the object: such as of a webhook."""
    refused = 0
    webop.on.create("widgets", id="fn")(calls.noting("fn"))
    webop.on.delete("widgets", id="del")(do_nothing)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal refused
        if is_patch_with(request, '"finalizers"') and request.url.path.endswith("/a"):
            refused += 1
            if refused == 1:
                return fail(409)
        return None

    async with run_relayed(build_settings(**QUICK), meddle=meddle):
        await objects.create("a")
        await eventually(lambda: len(calls.of("a")) == 1, timeout=5)
    assert refused == 2


@pytest.mark.parametrize("spoil", [spoil_metadata, spoil_by_cycle])
async def test_a_senseless_patch_of_an_event_handler_harms_no_other_object(
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    spoil: Any,
) -> None:
    @webop.on.event("widgets", id="ev")
    async def ev(name: str, patch: webop.Patch, **kwargs: Any) -> None:
        if name == "bad":
            calls.note("ev", {"name": name, "spec": {}})
            await spoil(patch)

    @webop.on.create("widgets", id="fn")
    async def fn(name: str, **kwargs: Any) -> None:
        if name == "good":
            calls.note("begun", {"name": name, "spec": {}})
            await asyncio.sleep(1)
            calls.note("ended", {"name": name, "spec": {}})

    async with run_operator():
        await objects.create("good")
        await calls.wait("good", "begun")
        await objects.create("bad")
        await calls.wait("bad")
        await calls.wait("good", "ended")
        await objects.wait_handled("good")
        await objects.pass_fence()
    assert calls.handlers("good") == ["begun", "ended"]
    assert "has failed" not in caplog.text


async def test_the_time_that_the_server_asks_for_is_waited_even_if_the_object_changes(
    run_relayed: RunOperator, objects: Objects
) -> None:
    moments: list[float] = []
    webop.on.update("widgets", id="fn")(do_nothing)
    webop.on.create("widgets", id="fn")(do_nothing)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and request.url.path.endswith("/a"):
            moments.append(time.monotonic())
            if moments[-1] - moments[0] < 1:
                await asyncio.sleep(0.2)
                return fail(429, {"Retry-After": "1"})
        return None

    async with run_relayed(meddle=meddle):
        await objects.create("a", {"x": 0})
        await eventually(lambda: len(moments) > 0)
        while time.monotonic() < moments[0] + 1:
            await objects.patch("a", {"spec": {"x": time.time()}})
            await asyncio.sleep(0.05)
        await objects.wait_handled("a")
    early = [moment for moment in moments if moment - moments[0] < 0.9]
    assert len(early) == 1


async def test_what_is_written_between_two_handlers_is_not_written_again_over_what_users_do(
    run_operator: RunOperator, objects: Objects
) -> None:
    done = asyncio.Event()

    @webop.on.create("widgets", id="quick")
    async def quick(patch: webop.Patch, **_: Any) -> None:
        patch.metadata.labels["owner"] = "operator"

    @webop.on.create("widgets", id="slow")
    async def slow(**_: Any) -> None:
        await done.wait()

    async with run_operator():
        await objects.create("a")
        await objects.wait("a", lambda raw: "owner" in raw["metadata"].get("labels", {}))
        await objects.patch("a", {"metadata": {"labels": {"owner": "user"}}})
        done.set()
        raw = await objects.wait_handled("a")
    assert raw["metadata"]["labels"]["owner"] == "user"


async def test_what_event_handlers_want_is_written_later_even_if_the_object_does_not_change(
    run_operator: RunOperator, run_relayed: RunOperator, objects: Objects
) -> None:
    refused = asyncio.Event()
    webop.on.create("widgets", id="created")(do_nothing)
    async with run_operator():
        await objects.create("one")
        await objects.change("one", {"status": {"resumed": "yes"}})

    @webop.on.resume("widgets", id="resumed")
    async def resumed(**_: Any) -> str:
        return "yes"

    @webop.on.event("widgets", id="event", when=is_no_fence)
    async def event(patch: webop.Patch, **_: Any) -> None:
        patch.status["event"] = "seen"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if is_patch_with(request, "seen") and not refused.is_set():
            refused.set()
            return fail(503)
        return None

    async with run_relayed(meddle=meddle):
        await objects.wait("one", lambda body: "event" in body["status"], timeout=5)
