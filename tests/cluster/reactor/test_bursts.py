"""Many objects at once: handlers do not run ahead of what is written, and nothing else waits."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

import webop
from tests.kit.http_relay import Relay, fail
from tests.kit.obstacles import hang, webhook_on_updates
from tests.kit.operators import (
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    is_no_fence,
)
from tests.kit.waiting import eventually
from webop.calls.threads import count_calls


@pytest.mark.feature("CFG-52", "EVT-12")
async def test_handlers_do_not_run_on_while_no_write_succeeds(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    """A webhook is down, for example: patches fail, all else works."""
    caplog.set_level("INFO", logger="webop.reactor.outages")
    called: set[str] = set()

    @webop.on.create("widgets", id="fn")
    async def fn(name: str, **_: Any) -> None:
        called.add(name)

    async with webhook_on_updates(objects, "https://127.0.0.1:1/", timeoutSeconds=2) as mend:
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(110)))
        settings = build_settings(networking={"error_backoffs": [0.2], "request_timeout": 5})
        async with run_operator(settings):
            await eventually(lambda: "Their handlers wait until a write succeeds" in caplog.text)
            await asyncio.sleep(1)
            assert len(called) < 100
            await mend()
            await eventually(lambda: len(called) == 110, timeout=60)
            await objects.wait_handled("w109")
    assert f"Can write widgets.tests.webop.dev in {objects.namespace} again." in caplog.text


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
        "renew_deadline": 7,
        "retry_period": 0.5,
    }
    async with (
        hang() as url,
        webhook_on_updates(objects, url, timeoutSeconds=1, failurePolicy="Ignore") as mend,
    ):
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(120)))
        caplog.set_level("INFO", "webop.coordination")
        async with run_operator(build_settings(leadership=leadership)):
            await eventually(lambda: len(calls) >= 30, "the slow kind is at work")
            for number in range(3):
                began = time.monotonic()
                await with_status.make(f"g{number}")
                assert time.monotonic() - began < 5, "it waits for the other kind"
                await asyncio.sleep(1)
            assert len(calls) < 120
            await mend()
            await eventually(lambda: len(calls) == 123, timeout=60)
            await objects.wait_handled("w119")
    assert set(calls.values()) == {1}
    assert "Leadership is lost" not in caplog.text


@pytest.mark.feature("ASY-02", "EVT-12")
async def test_sync_handlers_that_wait_for_threads_do_not_hold_up_other_kinds(
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
            await asyncio.gather(*(objects.create(f"w{number}") for number in range(80)))
            await eventually(lambda: len(begun) == 3)
            await with_status.make("g")
            released.set()
            await eventually(lambda: len(begun) == 80, timeout=60)
            await objects.wait_handled("w79")
    finally:
        released.set()


async def show(request: httpx.Request, count: int) -> AsyncIterator[bytes]:
    """Show objects in a watch that do not exist."""
    meta = {"annotations": {"k8s.io/initial-events-end": "true"}, "resourceVersion": "1"}
    yield orjson.dumps({"type": "BOOKMARK", "object": {"metadata": meta}}) + b"\n"
    for number in range(count):
        uid = f"{request.url.path}/{number}"
        meta = {"name": f"w{number}", "uid": uid, "resourceVersion": "2"}
        yield orjson.dumps({"type": "ADDED", "object": {"metadata": meta}}) + b"\n"
    await asyncio.Event().wait()


@pytest.mark.feature("ASY-02", "EVT-12")
async def test_no_more_than_a_thousand_objects_wait_for_threads_of_event_handlers_and_indexers(
    relayed: Relay, run_relayed: RunOperator, objects: Objects, with_status: Objects
) -> None:
    released = threading.Event()

    @webop.on.event("widgets")
    @webop.index("gadgets", id="slow")
    def slow(**_: Any) -> None:
        released.wait(60)

    relayed.watch = lambda request: show(request, 700 * (objects.namespace in request.url.path))
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


async def test_event_handlers_that_are_slow_and_busy_hold_up_no_handlers_of_other_objects(
    run_operator: RunOperator, objects: Objects
) -> None:
    """The objects of them change all the time."""
    begun = Counter[str]()

    @webop.on.event("widgets", id="slow", labels={"busy": "yes"})
    async def slow(name: str, **_: Any) -> None:
        begun[name] += 1
        await asyncio.sleep(0.3)

    async def change(name: str) -> None:
        for number in itertools.count():
            await objects.patch(name, {"spec": {"x": number}})

    webop.on.create("widgets", id="fn", labels={"busy": webop.ABSENT})(do_nothing)
    names = [f"w{number}" for number in range(40)]
    async with run_operator(), asyncio.TaskGroup() as group:
        for name in names:
            await objects.create(name, labels={"busy": "yes"})
        tasks = [group.create_task(change(name)) for name in names[:5]]
        await eventually(lambda: len(begun) == len(names))
        for number in range(5):
            began = time.monotonic()
            await objects.make(f"other-{number}")
            assert time.monotonic() - began < 2
        await eventually(lambda: min(begun[name] for name in names[:5]) > 3)
        for task in tasks:
            task.cancel()


@pytest.mark.feature("CFG-18")
async def test_no_more_objects_are_processed_at_once_than_the_limit(
    run_operator: RunOperator, objects: Objects
) -> None:
    running: list[int] = []

    @webop.on.create("widgets", id="fn", when=is_no_fence)
    async def fn(**_: Any) -> None:
        running.append(running[-1] + 1 if running else 1)
        await asyncio.sleep(0.15)  # longer than a quick handler takes
        running.append(running[-1] - 1)

    async with run_operator(build_settings(batching={"worker_limit": 3})):
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(12)))
        await eventually(lambda: len(running) == 24)
    assert max(running) == 3


async def test_failing_writes_to_one_namespace_do_not_stop_others(
    run_relayed: RunOperator, objects: Objects
) -> None:
    webop.on.create("widgets", id="fn")(do_nothing)
    other = Objects(objects.client, objects.kind, f"{objects.namespace}-other")
    namespaces = webop.Resource("", "v1", "namespaces", kind="Namespace", namespaced=False)
    await objects.client.create(namespaces, None, {"metadata": {"name": other.namespace}})
    refused: list[httpx.Request] = []

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or other.namespace in request.url.path:
            return None
        refused.append(request)
        return fail(500)

    settings = build_settings(networking={"error_backoffs": []})
    async with run_relayed(settings, namespaces=[f"{objects.namespace}*"], meddle=meddle):
        await other.make("first")
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(70)))
        await eventually(lambda: len(refused) > 20)
        for number in range(3):
            await other.make(f"w{number}")
