"""What is unwritten when a pause begins is not written after it, over what others have done."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import fail
from tests.kit.operators import DIFFBASE, Calls, Objects, RunOperator, build_settings
from tests.kit.peering_objects import Boss
from tests.kit.waiting import eventually


def declare(author: str, sent: list[httpx.Request]) -> None:
    """Declare a handler or a timer that writes to the spec until the first request is sent."""

    async def write(patch: webop.Patch, **_: Any) -> None:
        if not sent:
            patch.spec["x"] = "old"

    if author == "handler":
        webop.on.create("widgets", id="write")(write)
    else:
        webop.timer("widgets", id="write", interval=3600)(write)


@pytest.mark.feature("PEE-17", "PAT-01")
@pytest.mark.parametrize("author", ["handler", "timer"])
@pytest.mark.parametrize(
    ("status", "is_on_its_way"),
    [
        pytest.param(503, False, id="refused before the pause"),
        pytest.param(503, True, id="refused after it"),
        pytest.param(409, True, id="outdated after it"),
    ],
)
async def test_an_older_value_does_not_replace_what_another_operator_has_written_in_a_pause(
    run_relayed: RunOperator,
    objects: Objects,
    boss: Boss,
    calls: Calls,
    author: str,
    status: int,
    *,
    is_on_its_way: bool,
) -> None:
    is_resumed = asyncio.Event()
    sent: list[httpx.Request] = []

    declare(author, sent)
    webop.on.update("widgets", id="fence", field="spec.fence")(calls.noting("fence"))

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or b'"old"' not in request.content or is_resumed.is_set():
            return None
        sent.append(request)
        if is_on_its_way:
            await is_resumed.wait()
        return fail(status)

    pauses = {"error_backoffs": [0.2 if is_on_its_way else 20]}
    settings = build_settings(networking=pauses)
    async with run_relayed(settings, meddle=meddle, standalone=False, identity="me"):
        await objects.create("one")
        await eventually(lambda: sent)
        if not is_on_its_way:
            await eventually(lambda: "Retrying in 20 s" in boss.log.text)
        await boss.pause()
        if not is_on_its_way:
            await eventually(lambda: len(sent) == 2, "the last attempt")
        done = {DIFFBASE: json.dumps({"spec": {"x": "new"}})}
        await objects.patch("one", {"spec": {"x": "new"}, "metadata": {"annotations": done}})
        await boss.resume()
        is_resumed.set()
        await objects.patch("one", {"spec": {"fence": "passed"}})
        await calls.wait("one", "fence")
        body = await objects.wait_handled("one")
    assert body["spec"]["x"] == "new"
