"""What a handler leaves at the end of the operator has a second attempt to be written."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import fail
from tests.kit.operators import Calls, Objects, RunOperator, build_settings
from tests.kit.waiting import eventually


def declare_late(calls: Calls) -> asyncio.Event:
    """Declare a handler that ends when the event is set."""
    may_end = asyncio.Event()

    @webop.on.create("widgets", id="fn")
    async def fn(**kwargs: Any) -> None:
        calls.note("fn", kwargs)
        await may_end.wait()

    return may_end


async def test_the_outcome_of_a_handler_that_ends_late_survives_one_failed_request(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    may_end, failed = declare_late(calls), list[httpx.Request]()

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or not request.url.path.endswith("/one") or failed:
            return None
        failed.append(request)
        return fail(503)

    settings = build_settings(networking={"error_backoffs": [0.1]})
    async with run_relayed(settings, meddle=meddle):
        await objects.create("one")
        await calls.wait("one", "fn")
        asyncio.get_running_loop().call_later(0.2, may_end.set)
    await objects.wait("one", lambda body: "annotations" in body["metadata"], timeout=2)
    assert failed


async def test_an_end_is_no_reason_to_write_twice_before_the_moment_that_the_api_server_named(
    run_relayed: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    sent = list[float]()

    @webop.on.create("widgets", id="fn")
    async def fn(**kwargs: Any) -> None:
        calls.note("fn", kwargs)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or not request.url.path.endswith("/one"):
            return None
        sent.append(asyncio.get_running_loop().time())
        return fail(429, headers={"Retry-After": "1"}) if len(sent) <= 2 else None

    async with run_relayed(build_settings(), meddle=meddle):
        await objects.create("one")
        await eventually(lambda: "Retrying in" in caplog.text)  # the first one has failed
    first, last, again = sent  # the second one is the last opportunity before the end
    assert last - first < 1
    assert again - last >= 1
    await objects.wait_handled("one")


@pytest.mark.parametrize("pause", [1, 6])
async def test_an_outcome_is_sent_once_although_a_daemon_could_not_write_a_moment_before(
    run_relayed: RunOperator, objects: Objects, calls: Calls, pause: float
) -> None:
    may_end, failed = declare_late(calls), list[httpx.Request]()

    @webop.daemon("widgets", id="daemon", when=lambda name, **_: name == "one")
    async def daemon(stopped: Any, patch: webop.Patch, **_: Any) -> None:
        calls.note("daemon", {"name": "one"})
        await stopped.wait()
        patch.spec["daemon"] = "stopped"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and b"stopped" in request.content and not failed:
            failed.append(request)
            asyncio.get_running_loop().call_later(0.3, may_end.set)
            return fail(503)
        return None

    settings = build_settings(networking={"error_backoffs": [pause]})
    async with run_relayed(settings, meddle=meddle):
        await objects.create("one")
        await calls.wait("one", "fn")
        await calls.wait("one", "daemon")
    await eventually(lambda: failed)
    body = await objects.get("one")
    assert "annotations" in body["metadata"], body  # else it is called again after the restart
