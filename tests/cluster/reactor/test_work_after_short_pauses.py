"""After a short pause, an object is handled at once, whatever could not be written before it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

import webop
from tests.kit.http_relay import fail
from tests.kit.operators import Calls, Objects, RunOperator, build_settings
from tests.kit.peering_objects import Boss
from tests.kit.waiting import eventually


async def test_a_change_after_a_short_pause_is_stored_without_waiting_for_a_former_write(
    run_relayed: RunOperator, objects: Objects, boss: Boss, calls: Calls
) -> None:
    sent: list[httpx.Request] = []

    @webop.on.create("widgets", id="write")
    async def write(patch: webop.Patch, **_: Any) -> None:
        if not sent:
            patch.spec["x"] = "old"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or b'"old"' not in request.content:
            return None
        sent.append(request)
        return fail(503)

    settings = build_settings(networking={"error_backoffs": [4.5, 4.5]})
    async with run_relayed(settings, meddle=meddle, standalone=False, identity="me"):
        await objects.create("one")
        await eventually(lambda: sent)
        await boss.pause()
        await eventually(lambda: len(sent) == 2, "the last attempt")
        await boss.resume()
        began = asyncio.get_running_loop().time()
        await objects.wait_handled("one")
        assert asyncio.get_running_loop().time() - began < 2
