"""Objects whose states are not kept in memory are read for the indexes, also after failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import Relay, fail
from tests.kit.operators import Calls, Objects, RunOperator
from tests.kit.peering_objects import Boss
from tests.kit.waiting import eventually
from webop.reactor import bodies

_COUNT = 300  # of more than 100 waiting objects, only the text is kept


async def test_handlers_begin_though_an_object_could_not_be_read_for_the_indexes_at_once(
    run_relayed: RunOperator, objects: Objects, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_LIMIT", 0)  # in place of 48 MB of objects
    failed: list[str] = []

    @webop.index("widgets", id="names")
    async def names(name: str, **_: Any) -> dict[str, None]:
        await asyncio.sleep(0.01)
        return {name: None}

    webop.on.create("widgets", id="fn")(calls.noting("fn"))

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "GET" or "/widgets/" not in request.url.path or failed:
            return None
        failed.append(request.url.path)
        return fail(503)

    await asyncio.gather(*(objects.create(f"w{n}") for n in range(_COUNT)))
    async with run_relayed(meddle=meddle):
        await calls.wait("w0", "fn")
    assert failed


async def test_handlers_go_on_after_a_pause_though_an_object_that_a_list_is_behind_of_was_not_read(
    run_relayed: RunOperator,
    relayed: Relay,
    objects: Objects,
    boss: Boss,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="webop.coordination.peering")
    is_sent, is_listed = asyncio.Event(), asyncio.Event()
    failed, watches = list[str](), list[str]()

    @webop.index("widgets", id="names")
    async def names(name: str, **_: Any) -> dict[str, None]:
        return {name: None}

    webop.on.create("widgets", id="fn")(calls.noting("fn"))

    def count_watches() -> int:
        return sum("/widgets" in path for path in watches)

    async def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        is_late = "Resuming" in caplog.text and "/widgets" in request.url.path
        watches.append(request.url.path)
        async for data in relayed.pass_watch_on(request):
            if is_late and not is_listed.is_set():
                is_listed.set()
                await objects.wait_handled("one")
                await asyncio.sleep(0.5)  # until the response has been accepted
            yield data

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/one"):
            return None
        if request.method == "PATCH" and not is_sent.is_set():
            is_sent.set()
            await is_listed.wait()
        elif request.method == "GET" and not failed:
            failed.append(request.url.path)
            return fail(503)
        return None

    relayed.watch = watch
    async with run_relayed(meddle=meddle, standalone=False, identity="me"):
        await objects.create("one")
        await is_sent.wait()
        before = count_watches()
        await boss.pause()
        await eventually(lambda: count_watches() > before, "the watch of the pause")  # not late
        await boss.resume()
        await eventually(lambda: failed)
        await objects.create("two")
        await calls.wait("two", "fn")
