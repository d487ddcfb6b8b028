"""With own_writes=True, a reconciler that writes nothing is not called again."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

import webop
from tests.kit.http_relay import fail
from tests.kit.operators import DIFFBASE, Calls, Objects, RunOperator, is_no_fence
from tests.kit.waiting import eventually


async def test_records_that_the_api_server_denies_do_not_call_a_reconciler_each_second(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    seen: list[Any] = []

    @webop.on.create("widgets", id="fn", when=is_no_fence)
    async def fn(**kwargs: Any) -> None:
        calls.note("fn", kwargs)

    @webop.reconcile("widgets", own_writes=True, when=is_no_fence)
    async def build(because: Any, **_: Any) -> None:
        seen.append(because)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and DIFFBASE.encode() in request.content:
            return fail(422, causes=[{"field": "metadata.annotations", "reason": "Invalid"}])
        return None

    async with run_relayed(meddle=meddle):
        await objects.create("one")
        await calls.wait("one", "fn")
        await eventually(lambda: seen)
        await asyncio.sleep(4.5)
    assert len(seen) <= 2, seen
