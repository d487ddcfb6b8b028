"""Events and responses that come late: they are older than what the operator has seen already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import Calls, Objects, RunOperator, is_no_fence


async def test_events_from_before_own_writes_call_no_handler_again(
    relayed: Relay, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.create("widgets", id="fn", when=is_no_fence)
    async def fn(retry: int, **kwargs: Any) -> None:
        calls.note("fn", {**kwargs, "retry": retry})
        if retry < 2:
            raise webop.TemporaryError("again", delay=0.1)

    async def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        async for data in relayed.pass_watch_on(request):
            await asyncio.sleep(0.4)
            yield data

    relayed.watch = watch
    async with run_relayed():
        await objects.make("one")
        await objects.pass_fence()
    assert [call["retry"] for call in calls.of("one")] == [0, 1, 2]


async def test_a_late_response_to_an_own_write_hides_no_newer_change(
    relayed: Relay, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    has_changed = False
    webop.on.create("widgets", id="created", when=is_no_fence)(calls.noting("created"))
    webop.on.update("widgets", id="updated")(calls.noting("updated"))

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal has_changed
        if request.method != "PATCH" or not request.url.path.endswith("/one") or has_changed:
            return None
        has_changed = True
        response = await relayed.pass_on(request)
        await objects.patch("one", {"spec": {"a": 2}})
        await objects.pass_fence()  # the watch has shown the change
        return response

    async with run_relayed(meddle=meddle):
        await objects.create("one", {"a": 1})
        await calls.wait("one", "updated")
        await objects.wait_handled("one")
    assert [call["spec"] for call in calls.of("one")] == [{"a": 1}, {"a": 2}]
