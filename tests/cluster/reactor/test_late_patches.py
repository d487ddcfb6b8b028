"""Patches that arrive late: the object has changed by then, or is another one."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import Kind, Objects, RunOperator, build_settings, do_nothing
from tests.kit.waiting import eventually
from webop.client.api import Client


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


@pytest.mark.feature("PAT-10", "RST-09")
async def test_a_spec_is_not_written_again_over_a_newer_one_because_the_status_was_refused(
    with_status: Objects, run_relayed: RunOperator
) -> None:
    is_refused = False
    webop.on.create("gadgets", id="first")(do_nothing)  # its record says what it has seen

    @webop.on.create("gadgets", id="second", field="spec.x")
    async def second(patch: webop.Patch, retry: int, **_: Any) -> None:
        if not retry:
            patch.spec["x"] = "ours"
            patch.status["phase"] = "done"
            raise webop.TemporaryError("again", delay=0.3)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal is_refused
        if request.method != "PATCH" or b'"phase"' not in request.content or is_refused:
            return None
        is_refused = True
        await with_status.patch("one", {"spec": {"x": "theirs"}})
        return httpx.Response(503)

    async with run_relayed(build_settings(networking={"error_backoffs": [0.1]}), meddle=meddle):
        await with_status.create("one", {"x": "first"})
        await with_status.wait("one", lambda body: body.get("status") == {"phase": "done"})
        body = await with_status.wait_handled("one")
    assert body["spec"] == {"x": "theirs"}


async def test_the_last_value_of_a_timer_is_written_when_writing_works_again(
    objects: Objects, run_relayed: RunOperator
) -> None:
    """Until then, each value is refused together with those before it."""
    is_over = asyncio.Event()

    @webop.timer("widgets", id="tick", interval=0.05, labels={"x": "y"})
    async def tick(memo: webop.Memo, patch: webop.Patch, **_: Any) -> None:
        memo.count = memo.get("count", 0) + 1
        if memo.count <= 3:
            patch.spec["ticks"] = memo.count
        else:
            is_over.set()

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        return None if is_over.is_set() or b'"ticks"' not in request.content else refusal

    refusal = httpx.Response(503)
    settings = build_settings(networking={"error_backoffs": [1]})
    async with run_relayed(settings, meddle=meddle):
        await objects.create("one", labels={"x": "y"})
        body = await objects.wait("one", lambda body: "ticks" in body["spec"])
    assert body["spec"]["ticks"] == 3


async def test_an_older_value_that_is_refused_late_does_not_overwrite_a_newer_one(
    objects: Objects, run_relayed: RunOperator
) -> None:
    """The worker of the object is still writing the first value when the timer has the second."""
    has_newer, is_over = asyncio.Event(), asyncio.Event()
    values: list[bytes] = []

    @webop.timer("widgets", id="tick", interval=0.2, labels={"x": "y"})
    async def tick(memo: webop.Memo, patch: webop.Patch, **_: Any) -> None:
        memo.count = memo.get("count", 0) + 1
        if memo.count <= 2:
            patch.spec["ticks"] = memo.count
        if memo.count == 2:
            has_newer.set()
        elif memo.count == 5:
            is_over.set()

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if b'"ticks"' not in request.content:
            return None
        values.append(request.content)
        if len(values) > 2:
            return None
        if len(values) == 2:
            await has_newer.wait()
            await asyncio.sleep(0.1)  # in which the newer one could be written
        return httpx.Response(503)

    settings = build_settings(
        networking={"error_backoffs": [0.1]}, batching={"error_delays": [0.1]}
    )
    async with run_relayed(settings, meddle=meddle):
        await objects.create("one", labels={"x": "y"})
        await is_over.wait()
        body = await objects.wait("one", lambda body: "ticks" in body["spec"])
    assert body["spec"]["ticks"] == 2
