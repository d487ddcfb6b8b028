"""An object that left the selectors is not released over what others have done in a pause."""

from __future__ import annotations

import asyncio
import json

import httpx

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import (
    FINALIZER,
    PREFIX,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    get_progress,
    has_finalizer,
)
from tests.kit.peering_objects import Boss

IN, OUT = {"watched": "yes"}, {"watched": None}


async def test_a_release_that_began_before_a_pause_ends_with_it(
    run_relayed: RunOperator, relayed: Relay, objects: Objects, boss: Boss
) -> None:
    settings = build_settings(watching={"reconnect_backoff": 0.05})
    settings.watching.label_selectors["widgets"] = "watched=yes"
    webop.on.create("widgets", id="create")(do_nothing)
    webop.on.delete("widgets", id="delete")(do_nothing)
    has_left, is_read, is_resumed = (asyncio.Event() for _ in range(3))

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if not has_left.is_set():
            return None
        path = request.url.path
        if request.method == "GET" and path.endswith("/a"):
            is_read.set()
            await is_resumed.wait()
        return None

    async with run_relayed(settings, meddle=meddle, standalone=False, identity="me"):
        await objects.make("a", labels=IN)
        has_left.set()
        await objects.patch("a", {"metadata": {"labels": OUT}})
        await is_read.wait()
        await boss.pause()
        # The other operator takes over: it is in the middle of an update.
        record = {"started": "2026-01-01T00:00:00+00:00", "purpose": "update", "success": True}
        theirs = {f"{PREFIX}/update": json.dumps(record), f"{PREFIX}/create": json.dumps(record)}
        await objects.patch(
            "a", {"metadata": {"labels": IN, "annotations": theirs, "finalizers": [FINALIZER]}}
        )
        relayed.hold_watches("widgets")
        await boss.resume()
        is_resumed.set()
        await asyncio.sleep(0.7)
        body = await objects.get("a")
        assert has_finalizer(body)
        assert set(get_progress(body)) == {"update", "create"}
