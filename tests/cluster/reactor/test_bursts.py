"""Many objects at once: handlers do not run ahead of what is written, and nothing else waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

import webop
from tests.kit.http_relay import Relay
from tests.kit.obstacles import hang, webhook_on_updates
from tests.kit.operators import Objects, RunOperator, build_settings, do_nothing
from tests.kit.waiting import eventually
from webop.calls.threads import count_calls


@pytest.mark.feature("CFG-52", "EVT-12")
async def test_handlers_do_not_run_on_while_no_write_succeeds(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    """A webhook is down, for example: patches fail, all else works."""
    caplog.set_level("INFO", logger="webop.reactor.queue")
    called: set[str] = set()

    @webop.on.create("widgets", id="fn")
    async def fn(name: str, **_: Any) -> None:
        called.add(name)

    async with webhook_on_updates(objects, "https://127.0.0.1:1/", timeoutSeconds=2) as mend:
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(150)))
        settings = build_settings(networking={"error_backoffs": [0.2], "request_timeout": 5})
        async with run_operator(settings):
            await eventually(lambda: "Their handlers wait until a write succeeds" in caplog.text)
            await asyncio.sleep(1)
            assert len(called) < 60
            await mend()
            await eventually(lambda: len(called) == 150, timeout=60)
            await objects.wait_handled("w149")
    assert "Can write widgets.tests.webop.dev again." in caplog.text


@pytest.mark.feature("EVT-12", "PEE-01")
async def test_slow_writes_of_one_kind_hold_up_neither_another_kind_nor_the_lease(
    run_operator: RunOperator,
    objects: Objects,
    with_status: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each update of a widget takes a second: its webhook hangs, and is ignored after that."""
    calls: Counter[str] = Counter()

    @webop.on.create("widgets", id="fn")
    @webop.on.create("gadgets", id="fn")
    async def fn(name: str, **_: Any) -> None:
        calls[name] += 1

    leadership = {
        "lease_name": "slow",
        "lease_namespace": objects.namespace,
        "lease_duration": 9,
        "renew_deadline": 7,  # the slow kind takes twenty
        "retry_period": 0.5,
    }
    async with (
        hang() as url,
        webhook_on_updates(objects, url, timeoutSeconds=1, failurePolicy="Ignore") as mend,
    ):
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(200)))
        caplog.set_level("INFO", "webop.coordination")
        async with run_operator(build_settings(leadership=leadership)):
            await eventually(lambda: len(calls) >= 30, "the slow kind is at work")
            for number in range(3):
                began = time.monotonic()
                await with_status.make(f"g{number}")
                assert time.monotonic() - began < 5, "the other kind takes twenty"
                await asyncio.sleep(1)
            assert len(calls) < 200
            await mend()
            await eventually(lambda: len(calls) == 203, timeout=60)
            await objects.wait_handled("w199")
    assert set(calls.values()) == {1}
    assert "Leadership is lost" not in caplog.text


@pytest.mark.feature("ASY-02", "EVT-12")
async def test_sync_handlers_that_wait_for_threads_hold_up_neither_other_kinds_nor_take_memory(
    run_operator: RunOperator, objects: Objects, with_status: Objects
) -> None:
    released = threading.Event()
    begun: set[str] = set()

    @webop.on.create("widgets", id="slow")
    def slow(name: str, **_: Any) -> None:
        begun.add(name)
        released.wait(60)

    webop.on.create("gadgets", id="quick")(do_nothing)
    try:
        async with run_operator(build_settings(execution={"max_workers": 3})):
            await asyncio.gather(*(objects.create(f"w{number}") for number in range(300)))
            await eventually(lambda: len(begun) == 3)
            await with_status.make("g")
            tasks = [task for task in asyncio.all_tasks() if "_work" in repr(task.get_coro())]
            assert len(tasks) < 200
            released.set()
            await eventually(lambda: len(begun) == 300, timeout=60)
            await objects.wait_handled("w299")
    finally:
        released.set()


@pytest.mark.feature("ASY-02", "EVT-12")
async def test_no_more_than_a_thousand_objects_wait_for_threads_of_event_handlers_and_indexers(
    relayed: Relay, run_relayed: RunOperator, objects: Objects, with_status: Objects
) -> None:
    released = threading.Event()

    @webop.on.event("widgets")
    @webop.index("gadgets", id="slow")
    def slow(**_: Any) -> None:
        released.wait(60)

    async def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        if objects.namespace in request.url.path:
            meta = {"annotations": {"k8s.io/initial-events-end": "true"}, "resourceVersion": "1"}
            yield orjson.dumps({"type": "BOOKMARK", "object": {"metadata": meta}}) + b"\n"
            for number in range(700):
                uid = f"{request.url.path}/{number}"
                meta = {"name": f"w{number}", "uid": uid, "resourceVersion": "2"}
                yield orjson.dumps({"type": "ADDED", "object": {"metadata": meta}}) + b"\n"
        await asyncio.Event().wait()

    relayed.watch = watch
    settings = build_settings(execution={"max_workers": 1})
    try:
        async with run_relayed(settings):
            await eventually(lambda: count_calls(settings.execution) > 1000)
            await asyncio.sleep(1)
            assert count_calls(settings.execution) < 1100
            released.set()
            await eventually(lambda: not count_calls(settings.execution))
    finally:
        released.set()
