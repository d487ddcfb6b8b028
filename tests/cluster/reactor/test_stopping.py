"""What is finished is stored once as the operator stops, also if slower handlers are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import Calls, Objects, RunOperator, build_settings, is_no_fence

HASTY: Any = {"batching": {"exit_timeout": 0.1}}


async def test_the_exit_takes_no_longer_than_its_timeout_and_five_seconds_if_the_api_server_hangs(
    run_relayed: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, never = asyncio.Event(), asyncio.Event()
    webop.on.create("widgets", id="first")(calls.noting("first", hanging))

    @webop.on.create("widgets", id="second")
    async def second(name: str, **kwargs: Any) -> None:
        calls.note("second", {**kwargs, "name": name})
        await (hanging if name == "writes-already" else never).wait()

    @webop.daemon("widgets", id="daemon", labels={"daemon": "yes"})
    async def daemon(stopped: webop.DaemonStopped, patch: webop.Patch, **_: Any) -> None:
        await stopped.wait()
        patch.metadata.labels["daemon"] = "ended"

    async def hang(request: httpx.Request) -> httpx.Response | None:
        if hanging.is_set():
            requests.append(request)
            await never.wait()
        return None

    requests: list[httpx.Request] = []
    names = ("writes-already", "is-cancelled", "is-cancelled-as-its-daemon-writes")
    settings = build_settings(batching={"exit_timeout": 1})
    loop = asyncio.get_running_loop()
    async with run_relayed(settings, meddle=hang) as running:
        for name in names:
            await objects.create(name, labels={"daemon": "yes"} if "daemon" in name else {})
            await calls.wait(name, "first")
        hanging.set()
        for name in names:
            await calls.wait(name, "second")
        began = loop.time()
        await running.stop()
        duration = loop.time() - began
    never.set()
    assert len(requests) >= 3, "all have tried to write"
    assert duration < 6.5
    assert "swallow" not in caplog.text, "the handlers are not to blame"


@pytest.mark.feature("CFG-21", "CON-04")
async def test_a_handler_that_runs_as_the_operator_stops_ends_and_is_not_called_again(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.create("widgets", id="fn", when=is_no_fence)
    async def fn(**kwargs: Any) -> None:
        calls.note("begun", kwargs)
        await asyncio.sleep(0.5)
        calls.note("ended", kwargs)

    async with run_operator():
        await objects.create("one")
        await calls.wait("one")
    async with run_operator():
        await objects.wait_handled("one")
        await objects.pass_fence()
    assert calls.handlers("one") == ["begun", "ended"]
