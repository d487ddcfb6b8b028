"""Two things that go wrong at once: failing writes, and changes, daemons or events meanwhile."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import Relay, fail
from tests.kit.operators import (
    Calls,
    Kind,
    Objects,
    RunOperator,
    build_settings,
    eventually,
    is_no_fence,
)
from webop.client.api import Client

QUICK = {"networking": {"error_backoffs": [0.3]}, "batching": {"error_delays": [0.3]}}


def is_patch_with(request: httpx.Request, text: str) -> bool:
    return request.method == "PATCH" and text.encode() in request.content


async def spoil_metadata(patch: webop.Patch) -> None:
    patch["metadata"] = "not a mapping"


async def spoil_by_cycle(patch: webop.Patch) -> None:
    content: dict[str, Any] = {}
    content["again"] = content
    patch["status"] = content


def build_ballast(size: int) -> str:
    """Return a text that cannot be compressed by much."""
    return base64.b64encode(os.urandom(size * 3 // 4)).decode()


async def test_an_object_that_changes_while_a_retry_is_due_is_not_read_from_the_server(
    registry: webop.OperatorRegistry,
    relayed: Relay,
    run_relayed: RunOperator,
    objects: Objects,
    calls: Calls,
) -> None:
    @webop.on.create("widgets", registry=registry, id="fn", when=is_no_fence)
    async def fn(**kwargs: Any) -> None:
        calls.note("fn", kwargs)
        raise webop.TemporaryError("later", delay=1000)

    async with run_relayed():
        await objects.create("a")
        await calls.wait("a")
        await objects.pass_fence()
        for number in range(5):
            await objects.patch("a", {"metadata": {"labels": {"x": str(number)}}})
            await objects.pass_fence()
    assert relayed.list_requests("GET", "a") == []


async def test_a_change_that_comes_while_an_older_state_is_read_is_not_lost(
    registry: webop.OperatorRegistry,
    relayed: Relay,
    run_relayed: RunOperator,
    objects: Objects,
    calls: Calls,
) -> None:
    """So many large objects wait for retries that not all of them are kept in memory."""
    reading, answered, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @webop.on.create("widgets", registry=registry, id="fn", labels={"ballast": "yes"})
    async def fn(**kwargs: Any) -> None:
        calls.note("fn", kwargs)
        raise webop.TemporaryError("later", delay=1000)

    def is_fine(labels: Mapping[str, str], **_: Any) -> bool:
        if "spoiled" in labels:
            failed.set()
            raise ValueError("The filter fails.")
        return True

    @webop.on.update("widgets", registry=registry, id="up", when=is_fine)
    async def up(**kwargs: Any) -> None:
        calls.note("up", kwargs)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "GET" or not request.url.path.endswith("/a"):
            return None
        answer = await relayed.pass_on(request)
        reading.set()
        await answered.wait()
        return answer

    async with run_relayed(build_settings(batching={"error_delays": [3]}), meddle=meddle):
        await objects.create("a", {"x": 0})
        await objects.wait_handled("a")
        for number in range(34):
            ballast = {"ballast": build_ballast(1_000_000)}
            await objects.create(f"w{number}", ballast, labels={"ballast": "yes"})
        await eventually(lambda: len(calls) == 34)
        await objects.patch("a", {"metadata": {"labels": {"spoiled": "yes"}}})
        await failed.wait()
        await objects.patch("a", {"metadata": {"labels": {"spoiled": None}}})
        async with asyncio.timeout(40):
            await reading.wait()
        await objects.patch("a", {"spec": {"x": 1}})
        await objects.pass_fence()
        answered.set()
        await calls.wait("a", "up")


async def test_a_daemon_s_newer_value_is_not_overwritten_by_an_older_one_that_had_failed(
    registry: webop.OperatorRegistry, run_relayed: RunOperator, objects: Objects
) -> None:
    written = asyncio.Event()
    failures = 0

    @webop.timer("widgets", registry=registry, id="tick", interval=0.1)
    async def tick(memo: webop.Memo, patch: webop.Patch, **_: Any) -> None:
        memo.count = memo.get("count", 0) + 1
        if memo.count <= 2:
            patch.spec["ticks"] = memo.count
        if memo.count == 3:
            written.set()

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal failures
        if is_patch_with(request, '"ticks":1') and not failures:
            failures += 1
            return fail(503)
        return None

    settings = build_settings(networking={"error_backoffs": [0.5]})
    async with run_relayed(settings, meddle=meddle):
        await objects.create("a")
        await eventually(written.is_set)
        await eventually(lambda: failures == 1)
        await asyncio.sleep(1.5)
        raw = await objects.get("a")
    assert raw["spec"]["ticks"] == 2


async def test_an_api_server_that_does_not_know_the_kind_yet_does_not_mean_that_objects_are_gone(
    registry: webop.OperatorRegistry, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """It has just started; the object is read because of a conflict."""
    reads = 0

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        patch.status["a"] = 1

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal reads
        if not request.url.path.endswith("/a"):
            return None
        if request.method == "PATCH" and not reads:
            return fail(409)
        if request.method == "GET":
            reads += 1
            return httpx.Response(404, text="404 page not found") if reads == 1 else None
        return None

    async with run_relayed(build_settings(**QUICK), meddle=meddle):
        await objects.create("a")
        await objects.wait_handled("a")
        raw = await objects.get("a")
    assert raw["status"] == {"a": 1}
    assert calls.handlers("a") == ["fn"]


async def test_a_finalizer_refused_by_409_is_tried_again(
    registry: webop.OperatorRegistry, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """A conflict that is not about the version of the object: such as of a webhook."""
    refused = 0

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(**kwargs: Any) -> None:
        calls.note("fn", kwargs)

    @webop.on.delete("widgets", registry=registry, id="del")
    async def delete(**_: Any) -> None: ...

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal refused
        if is_patch_with(request, '"finalizers"') and request.url.path.endswith("/a"):
            refused += 1
            if refused == 1:
                return fail(409)
        return None

    async with run_relayed(build_settings(**QUICK), meddle=meddle):
        await objects.create("a")
        await eventually(lambda: len(calls.of("a")) == 1, timeout=5)
    assert refused == 2


async def test_timers_do_not_flood_the_log_while_no_write_succeeds(
    registry: webop.OperatorRegistry,
    run_relayed: RunOperator,
    objects: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ticks = 0
    is_failing = False

    @webop.timer("widgets", registry=registry, id="tick", interval=0.1)
    async def tick(patch: webop.Patch, **_: Any) -> None:
        nonlocal ticks
        ticks += 1
        patch.status["ticks"] = ticks

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if is_failing and request.method == "PATCH":
            return fail(503)
        return None

    async with run_relayed(meddle=meddle):
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(30)))
        await eventually(lambda: ticks > 60)
        is_failing, ticks = True, 0
        await eventually(lambda: ticks > 600)
        lines = [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]
        is_failing = False
    assert len(lines) < 100, f"{len(lines)} lines for {ticks} ticks"


async def test_sync_handlers_of_one_kind_do_not_hold_up_async_ones_of_another(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    client: Client,
    gadgets: Kind,
    calls: Calls,
) -> None:
    begun: Counter[str] = Counter()
    others = Objects(client, gadgets, objects.namespace)
    is_over = False

    @webop.on.create("widgets", registry=registry, id="slow")
    def slow(name: str, **_: Any) -> None:
        begun[name] += 1
        for _i in range(30):
            if not is_over:
                time.sleep(0.1)

    @webop.on.create("gadgets", registry=registry, id="quick")
    async def quick(**kwargs: Any) -> None:
        calls.note("quick", kwargs)

    settings = build_settings(execution={"max_workers": 2})
    async with run_operator(settings):
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(160)))
        await eventually(lambda: len(begun) == 2)
        await asyncio.sleep(0.5)
        try:
            await others.create("a")
            await eventually(lambda: len(calls) == 1, timeout=3)
        finally:
            is_over = True


@pytest.mark.parametrize("spoil", [spoil_metadata, spoil_by_cycle])
async def test_a_senseless_patch_of_an_event_handler_harms_no_other_object(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    spoil: Any,
) -> None:
    @webop.on.event("widgets", registry=registry, id="ev")
    async def ev(name: str, patch: webop.Patch, **kwargs: Any) -> None:
        if name == "bad":
            calls.note("ev", {"name": name, "spec": {}})
            await spoil(patch)

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(name: str, **kwargs: Any) -> None:
        if name == "good":
            calls.note("begun", {"name": name, "spec": {}})
            await asyncio.sleep(1)
            calls.note("ended", {"name": name, "spec": {}})

    async with run_operator():
        await objects.create("good")
        await calls.wait("good", "begun")
        await objects.create("bad")
        await calls.wait("bad")
        await calls.wait("good", "ended")
        await objects.wait_handled("good")
        await objects.pass_fence()
    assert calls.handlers("good") == ["begun", "ended"]
    assert "has failed" not in caplog.text


@pytest.mark.parametrize("spoil", [spoil_metadata, spoil_by_cycle])
async def test_a_timer_with_a_senseless_patch_goes_on(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    spoil: Any,
) -> None:
    @webop.timer("widgets", registry=registry, id="tick", interval=0.1)
    async def tick(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("tick", kwargs)
        if len(calls) == 1:
            await spoil(patch)

    async with run_operator():
        await objects.create("a")
        await eventually(lambda: len(calls) > 3, timeout=5)


async def test_no_more_objects_are_at_work_than_the_limit_after_writes_have_failed(
    registry: webop.OperatorRegistry, run_relayed: RunOperator, objects: Objects
) -> None:
    running = most = done = begun = 0
    is_failing = True

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(retry: int, **_: Any) -> None:
        nonlocal running, most, done, begun
        begun += 1
        if is_failing:
            raise webop.TemporaryError("again", delay=0.1)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1
        done += 1

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if is_failing and request.method == "PATCH":
            return fail(503)
        return None

    settings = build_settings(
        networking={"error_backoffs": [0.3]}, batching={"error_delays": [0.3], "worker_limit": 1}
    )
    async with run_relayed(settings, meddle=meddle):
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(8)))
        await eventually(lambda: begun >= 5)
        await asyncio.sleep(0.3)
        is_failing = False
        await eventually(lambda: done == 8, timeout=30)
    assert most == 1


async def test_the_time_that_the_server_asks_for_is_waited_even_if_the_object_changes(
    registry: webop.OperatorRegistry, run_relayed: RunOperator, objects: Objects
) -> None:
    moments: list[float] = []

    @webop.on.create("widgets", registry=registry, id="fn")
    @webop.on.update("widgets", registry=registry, id="fn")
    async def fn(**_: Any) -> None: ...

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and request.url.path.endswith("/a"):
            moments.append(time.monotonic())
            if moments[-1] - moments[0] < 1:
                await asyncio.sleep(0.2)
                return fail(429, {"Retry-After": "1"})
        return None

    async with run_relayed(meddle=meddle):
        await objects.create("a", {"x": 0})
        await eventually(lambda: len(moments) > 0)
        while time.monotonic() < moments[0] + 1:
            await objects.patch("a", {"spec": {"x": time.time()}})
            await asyncio.sleep(0.05)
        await objects.wait_handled("a")
    early = [moment for moment in moments if moment - moments[0] < 0.9]
    assert len(early) == 1


@pytest.mark.parametrize("kind", ["event", "timer"])
async def test_the_time_that_the_server_asks_for_is_waited_by_what_runs_beside_the_changes(
    registry: webop.OperatorRegistry, run_relayed: RunOperator, objects: Objects, kind: str
) -> None:
    moments: list[float] = []
    options: dict[str, Any] = {"registry": registry, "id": "fn"}
    decorate = webop.on.event if kind == "event" else partial(webop.timer, interval=60)

    @decorate("widgets", **options)
    async def fn(patch: webop.Patch, **_: Any) -> None:
        patch.metadata.labels["owner"] = "operator"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and b"owner" in request.content:
            moments.append(time.monotonic())
            return fail(429, {"Retry-After": "2"}) if len(moments) == 1 else None
        return None

    async with run_relayed(meddle=meddle):
        await objects.create("a")
        await objects.wait("a", lambda raw: "owner" in raw["metadata"].get("labels", {}))
    assert moments[1] - moments[0] > 1.9


async def test_what_is_written_between_two_handlers_is_not_written_again_over_what_users_do(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects
) -> None:
    done = asyncio.Event()

    @webop.on.create("widgets", registry=registry, id="quick")
    async def quick(patch: webop.Patch, **_: Any) -> None:
        patch.metadata.labels["owner"] = "operator"

    @webop.on.create("widgets", registry=registry, id="slow")
    async def slow(**_: Any) -> None:
        await done.wait()

    async with run_operator():
        await objects.create("a")
        await objects.wait("a", lambda raw: "owner" in raw["metadata"].get("labels", {}))
        await objects.patch("a", {"metadata": {"labels": {"owner": "user"}}})
        done.set()
        raw = await objects.wait_handled("a")
    assert raw["metadata"]["labels"]["owner"] == "user"


async def test_live_changes_overtake_those_that_wait_since_the_start(
    registry: webop.OperatorRegistry, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    live: list[int] = []

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(name: str, spec: webop.Spec, **kwargs: Any) -> None:
        calls.note("fn", {"name": name, "spec": spec})
        if "changed" in spec:
            live.append(len(calls))

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH":
            await asyncio.sleep(0.3)
        return None

    for begin in range(0, 300, 100):
        await asyncio.gather(*(objects.create(f"w{n:03}") for n in range(begin, begin + 100)))
    async with run_relayed(meddle=meddle):
        await eventually(lambda: len(calls) > 30)
        called = {call["name"] for call in calls}
        chosen = [f"w{n:03}" for n in range(0, 300, 30) if f"w{n:03}" not in called]
        for name in chosen:
            await objects.patch(name, {"spec": {"changed": True}})
        await eventually(lambda: len(live) == len(chosen), timeout=30)
    assert chosen[-1] == "w270"
    assert max(live) < 225


async def test_objects_whose_writes_fail_do_not_hold_up_others_of_their_kind(
    registry: webop.OperatorRegistry, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """A webhook for some objects is down: each of their patches fails after a while."""

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(**kwargs: Any) -> None:
        calls.note("fn", kwargs)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and "/bad" in request.url.path:
            await asyncio.sleep(1)
            return fail(500)
        return None

    async with run_relayed(meddle=meddle):
        await asyncio.gather(*(objects.create(f"bad{number}") for number in range(60)))
        await eventually(lambda: len(calls) > 20)
        await asyncio.sleep(3)
        for number in range(3):
            began = time.monotonic()
            await objects.create(f"good{number}")
            await calls.wait(f"good{number}")
            assert time.monotonic() - began < 20
            await asyncio.sleep(1)


async def test_what_event_handlers_want_is_written_later_even_if_the_object_does_not_change(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    run_relayed: RunOperator,
    objects: Objects,
) -> None:
    refused = asyncio.Event()

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**_: Any) -> None: ...

    async with run_operator():
        await objects.create("one")
        await objects.patch("one", {"status": {"resumed": "yes"}})
        await objects.wait_handled("one")

    @webop.on.resume("widgets", registry=registry, id="resumed")
    async def resumed(**_: Any) -> str:
        return "yes"

    @webop.on.event("widgets", registry=registry, id="event", when=is_no_fence)
    async def event(patch: webop.Patch, **_: Any) -> None:
        patch.status["event"] = "seen"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if is_patch_with(request, "seen") and not refused.is_set():
            refused.set()
            return fail(503)
        return None

    async with run_relayed(meddle=meddle):
        await objects.wait("one", lambda body: "event" in body["status"], timeout=5)
