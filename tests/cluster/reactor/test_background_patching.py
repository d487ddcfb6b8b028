"""What daemons and timers write into their objects: patches, functions, results (PAT)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import Calls, Kind, Objects, RunOperator, build_settings
from tests.kit.timeline import Timeline
from tests.kit.waiting import eventually
from webop.client.api import Client


def set_conditions(body: webop.RawBody) -> None:
    """Add a condition, as the manual does."""
    conditions = body.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [cond for cond in conditions if cond.get("type") != "Whatever"]
    conditions.append({"type": "Whatever", "status": "True"})


def declare(plural: str, fn: Any, *, is_timer: bool) -> None:
    """Declare a function as a timer, or as a daemon that asks for being called again."""
    if is_timer:
        webop.timer(plural, id="fn", interval=0.1)(fn)
        return

    async def run(**kwargs: Any) -> None:
        await fn(**kwargs)
        raise webop.TemporaryError("again", delay=0.1)

    webop.daemon(plural, id="fn")(run)


@pytest.mark.feature("TMR-20", "DMN-27", "PAT-03", "PAT-04", "PAT-05", "PAT-06", "PAT-08", "D-05")
@pytest.mark.parametrize(("has_status", "is_timer"), [(False, True), (True, False)])
async def test_a_patch_is_applied_after_each_iteration_and_cleared(
    run_operator: RunOperator,
    client: Client,
    widgets: Kind,
    gadgets: Kind,
    webop_namespace: str,
    *,
    has_status: bool,
    is_timer: bool,
) -> None:
    kind = gadgets if has_status else widgets
    objects = Objects(client, kind, webop_namespace)
    numbers = itertools.count(1)
    leftovers: list[bool] = []

    async def update(patch: webop.Patch, **_: Any) -> None:
        leftovers.append(bool(patch))
        patch.status["replicas"] = next(numbers)
        patch.metadata.labels["x"] = "y"
        patch.fns.append(set_conditions)

    declare(kind.plural, update, is_timer=is_timer)
    async with run_operator():
        await objects.create("one", {"a": 0})
        first = await objects.wait("one", lambda b: (b.get("status") or {}).get("conditions"))
        count = first["status"]["replicas"]
        await objects.wait("one", lambda body: body["status"]["replicas"] >= count + 2)
        body = await objects.get("one")
    assert body["status"]["conditions"] == [{"type": "Whatever", "status": "True"}]
    assert body["metadata"]["labels"]["x"] == "y"
    assert not any(leftovers[:3])


def put_garbage(body: webop.RawBody) -> None:
    body["spec"]["garbage"] = object()


def put_text(body: webop.RawBody) -> None:
    body["spec"] = "not a mapping"  # type: ignore[typeddict-item]  # the schema refuses it


def fail(body: webop.RawBody) -> None:
    raise KeyError(body["kind"])


def spoil(patch: webop.Patch, number: int) -> None:
    """Make one mistake after the other."""
    if number <= 3:
        patch.fns.append([put_garbage, fail, put_text][number - 1])
    elif number == 4:
        patch["spec"] = "not a mapping either"
    elif number == 5:
        patch.status["garbage"] = object()
    elif number == 6:
        patch.status["fine"] = "yes"


@pytest.mark.feature("DMN-27", "TMR-20", "PAT-12")
@pytest.mark.parametrize("is_timer", [False, True])
async def test_mistakes_in_a_patch_do_not_stop_a_timer_or_a_daemon(
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    *,
    is_timer: bool,
) -> None:
    async def fn(patch: webop.Patch, **kwargs: Any) -> None:
        assert not patch  # what is refused is not carried over
        calls.note("fn", kwargs)
        spoil(patch, len(calls.of("one")))

    declare("widgets", fn, is_timer=is_timer)
    async with run_operator():
        await objects.create("one", {"a": 1})
        await calls.wait("one", count=8)
        body = await objects.get("one")
    assert body["spec"] == {"a": 1}
    assert body["status"] == {"fine": "yes"}
    assert "that JSON cannot represent" in caplog.text


@pytest.mark.feature("TMR-19", "DMN-26")
async def test_a_result_that_is_there_already_is_not_written_again(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    results: list[Any] = [{"a": 1, "b": None}, {"a": 1}, 1, True, True, "x", None, "x", ["x"]]

    @webop.timer("widgets", id="fn", interval=0.15)
    async def fn(body: webop.Body, **kwargs: Any) -> Any:
        calls.note("fn", kwargs, version=body.meta.resource_version)
        return results[min(len(calls), len(results)) - 1]

    async with run_operator():
        await objects.create("one")
        noted = await calls.wait("one", count=len(results) + 3)
        body = await objects.get("one")
    versions = [call["version"] for call in noted]
    is_written = [a != b for a, b in itertools.pairwise(versions)]
    expected = [True, False, True, True, False, True, False, False, True, False, False]
    assert is_written[1:] == expected[1:]  # the first time, the handled state is written too
    assert body["status"] == {"fn": ["x"]}


@pytest.mark.feature("CFG-54", "TMR-20")
async def test_pauses_after_failed_writes_of_a_timer_do_not_grow_if_writes_succeed_in_between(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """A long handler of the object is running all the time."""
    released, numbers, sent = asyncio.Event(), itertools.count(), 0
    webop.on.create("widgets", id="long")(calls.noting("long", released))

    @webop.timer("widgets", id="fn", interval=0.05)
    async def fn(patch: webop.Patch, **_: Any) -> None:
        patch.spec["n"] = next(numbers)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal sent
        if request.method != "PATCH" or b'"n"' not in request.content:
            return None
        sent += 1
        return httpx.Response(503) if sent % 2 else None

    settings = build_settings(networking={"error_backoffs": [0.1, 0.1, 0.1, 20]})
    async with run_relayed(settings, meddle=meddle):
        await objects.create("one")
        await eventually(lambda: sent > 12, timeout=5)
        released.set()


@pytest.mark.feature("TMR-19")
async def test_a_result_that_a_timer_has_changed_in_place_is_written(
    run_operator: RunOperator, objects: Objects
) -> None:
    @webop.timer("widgets", id="fn", interval=0.1)
    async def fn(status: webop.Status, **_: Any) -> list[int]:
        found: list[int] = status.get("fn", [])
        found.append(len(found))
        return found

    async with run_operator():
        await objects.create("one")
        await objects.wait("one", lambda body: body.get("status", {}).get("fn") == [0, 1, 2])


@pytest.mark.feature("TMR-19", "TMR-06")
async def test_a_result_that_changes_resets_the_idle_time(
    run_operator: RunOperator, objects: Objects, timeline: Timeline
) -> None:
    @webop.timer("widgets", id="steady", idle=0.5, interval=0.1)
    async def steady(labels: webop.Labels, **_: Any) -> int | None:
        timeline.note(f"steady {labels.get('of')}")
        return 1 if labels.get("of") == "steady" else None

    @webop.timer("widgets", id="changing", idle=0.5, interval=0.1, labels={"of": "changes"})
    async def changing(**_: Any) -> int:
        timeline.note("changing")
        return len(timeline.moments)

    async with run_operator(build_settings()):
        await objects.create("one", labels={"of": "steady"})
        await objects.create("two", labels={"of": "changes"})
        await timeline.wait("changing", 4)
        await timeline.wait("steady steady", 6)
    assert all(gap > 0.45 for gap in timeline.measure_gaps("changing")), timeline
    # Only the first result is a change.
    assert all(gap < 0.45 for gap in timeline.measure_gaps("steady steady")[1:]), timeline


@pytest.mark.feature("DMN-27")
@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_running_daemon_can_write_its_status_without_a_word_in_the_log(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture, *, is_sync: bool
) -> None:
    leftovers: list[bool] = []

    def change(patch: webop.Patch, number: int) -> None:
        patch.status["number"] = number
        patch.fns.append(set_conditions)

    def run_sync(patch: webop.Patch, stopped: webop.DaemonStopped, **_: Any) -> None:
        for number in range(1, 4):
            change(patch, number)
            patch.apply()
            leftovers.append(bool(patch))
        stopped.wait()

    async def run_async(patch: webop.Patch, stopped: webop.DaemonStopped, **_: Any) -> None:
        for number in range(1, 4):
            change(patch, number)
            await patch.apply()
            leftovers.append(bool(patch))
        await stopped.wait()

    webop.daemon(objects.kind.plural, id="writer")(run_sync if is_sync else run_async)
    caplog.set_level("DEBUG", "webop")
    async with run_operator():
        await objects.create("one")
        body = await objects.wait("one", lambda b: (b.get("status") or {}).get("number") == 3)
        said = [record.message for record in caplog.records if record.levelname != "DEBUG"]
    assert leftovers == [False] * 3
    assert body["status"]["conditions"] == [{"type": "Whatever", "status": "True"}]
    assert not [text for text in said if "writer" in text or "atch" in text], said


async def test_a_daemon_goes_on_when_the_api_server_refuses_what_it_writes(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.daemon(objects.kind.plural, id="fn")
    async def fn(patch: webop.Patch, stopped: webop.DaemonStopped, **_: Any) -> None:
        patch.metadata.labels["x"] = "not a label!"
        await patch.apply()
        patch.metadata.labels["x"] = "label"
        await patch.apply()
        await stopped.wait()

    async with run_operator():
        await objects.create("one")
        await objects.wait("one", lambda body: body["metadata"].get("labels") == {"x": "label"})
    assert "not a label!" in caplog.text
