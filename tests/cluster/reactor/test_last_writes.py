"""What a replica writes when it stops in the pause after a failed write."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import Calls, Objects, RunOperator, build_settings, is_no_fence
from tests.kit.waiting import eventually


@pytest.mark.parametrize("has_lease", [False, True])
async def test_outcomes_are_written_once_more_at_a_stop_although_a_write_has_just_failed(
    run_relayed: Any, run_operator: RunOperator, objects: Objects, calls: Calls, has_lease: bool
) -> None:
    refused, is_down = asyncio.Event(), True

    webop.on.create("widgets", id="created", when=is_no_fence)(calls.noting("created"))

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if is_down and request.method == "PATCH" and "/widgets/" in request.url.path:
            refused.set()
            return httpx.Response(503)
        return None

    lease = {"lease_name": "last", "lease_namespace": objects.namespace}
    settings = build_settings(
        networking={"error_backoffs": [60]},
        batching={"error_delays": [60]},
        leadership=lease if has_lease else {},
    )
    async with run_relayed(settings, meddle=meddle):
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(5)))
        await eventually(lambda: len(calls) == 5)
        await refused.wait()
        await asyncio.sleep(0.5)  # all have failed, and wait
        is_down = False
    async with run_operator():
        for number in range(5):
            await objects.wait_handled(f"w{number}")
        await objects.pass_fence()
    assert len(calls) == 5
