"""Timers: intervals, idling, postponing, retries (chapter "Timers"), in scaled-down times."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import webop
from tests.kit.operators import FINALIZER, Calls, Objects, RunOperator
from tests.kit.timeline import Timeline
from webop.reactor.daemons import Daemon

LATE = 0.35  # seconds; how late a busy machine may be


def is_about(actual: float, expected: float, late: float = LATE) -> bool:
    return expected - 0.02 <= actual <= expected + late


@pytest.mark.feature("TMR-01", "TMR-09", "TMR-22", "TMR-24", "TMR-25", "DMN-04", "KWA-16")
@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_timer_is_called_as_long_as_its_object_exists(
    run_operator: RunOperator, objects: Objects, timeline: Timeline, *, is_sync: bool
) -> None:
    flags: dict[str, webop.DaemonStopped] = {}

    def note(name: str, stopped: webop.DaemonStopped, **_: Any) -> None:
        assert not stopped
        flags[name] = stopped
        timeline.note(name)

    async def note_async(**kwargs: Any) -> None:
        note(**kwargs)

    fn: Any = note if is_sync else note_async
    webop.timer("widgets", id="fn", interval=0.3)(fn)
    async with run_operator():
        await objects.pass_fence()  # the watch is up
        began = time.monotonic()
        await objects.create("one", {"a": 1})
        assert await timeline.wait("one") - began < 1
        await objects.create("two")
        await timeline.wait("one", 5)
        await timeline.wait("two", 3)
        assert FINALIZER in (await objects.get("one"))["metadata"]["finalizers"]
        await objects.remove("one")
        count = len(timeline.of("one"))
        await timeline.wait("two", len(timeline.of("two")) + 2)
        assert len(timeline.of("one")) == count
    assert all(is_about(gap, 0.3) for gap in timeline.measure_gaps("one")), timeline
    reasons = webop.DaemonStoppingReason
    assert flags["one"].is_set(reasons.RESOURCE_DELETED)
    assert flags["two"].is_set(reasons.OPERATOR_EXITING)


@pytest.mark.feature("TMR-02", "TMR-03", "TMR-04", "TMR-18", "D-03", "D-48")
@pytest.mark.parametrize(
    ("is_sharp", "duration", "expected"),
    [
        (False, 0.3, 0.8),  # the interval begins when the call ends
        (True, 0.3, 0.5),  # what is left of the interval
        (True, 0.7, 1.0),  # the next multiple
    ],
)
async def test_the_time_that_a_call_takes_counts_only_for_sharp_timers(
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    duration: float,
    expected: float,
    *,
    is_sharp: bool,
) -> None:
    running = 0

    @webop.timer("widgets", id="fn", interval=0.5, sharp=is_sharp)
    async def fn(**_: Any) -> None:
        nonlocal running
        running += 1
        assert running == 1, "it never overlaps with itself"
        timeline.note("begun")
        await asyncio.sleep(duration)
        running -= 1

    async with run_operator():
        await objects.create("one")
        await timeline.wait("begun", 4)
    gaps = timeline.measure_gaps("begun")
    assert is_about(min(gaps), expected, 0.15), gaps  # others can be late


@pytest.mark.feature("TMR-18")
async def test_different_timers_of_an_object_overlap(
    run_operator: RunOperator, objects: Objects, timeline: Timeline
) -> None:
    other = asyncio.Event()

    @webop.timer("widgets", id="long", interval=0.1)
    async def long(**_: Any) -> None:
        await other.wait()
        timeline.note("long")

    @webop.timer("widgets", id="short", interval=0.1)
    async def short(**_: Any) -> None:
        timeline.note("short")
        if len(timeline.of("short")) == 3:
            other.set()

    async with run_operator():
        await objects.create("one")
        await timeline.wait("long")


@pytest.mark.feature("TMR-05", "TMR-07", "TMR-08", "D-47")
async def test_an_idling_timer_is_called_once_after_each_change_that_settles(
    run_operator: RunOperator, objects: Objects, calls: Calls, timeline: Timeline
) -> None:
    @webop.timer("widgets", id="fn", idle=0.6)
    async def fn(spec: webop.Spec, **kwargs: Any) -> None:
        timeline.note("called")
        calls.note("fn", {**kwargs, "spec": spec})

    async with run_operator():
        await objects.create("one", {"a": 0})
        created = time.monotonic()
        for value in (1, 2, 3):
            await asyncio.sleep(0.25)
            await objects.patch("one", {"spec": {"a": value}})
        changed = time.monotonic()
        assert is_about(await timeline.wait("called") - changed, 0.6), (created, timeline)
        await asyncio.sleep(1.3)  # two more idle times, in which nothing changes
        assert len(timeline.of("called")) == 1
        await objects.patch("one", {"spec": {"a": 4}})
        changed = time.monotonic()
        assert is_about(await timeline.wait("called", 2) - changed, 0.6)
    assert [call["spec"]["a"] for call in calls.of("one")] == [3, 4]


@pytest.mark.feature("TMR-05", "TMR-08", "D-47")
async def test_a_timer_without_an_interval_follows_the_changes_and_rests_in_between(
    run_operator: RunOperator, objects: Objects, timeline: Timeline
) -> None:
    @webop.timer("widgets", id="eager", idle=0)
    async def eager(spec: webop.Spec, **_: Any) -> None:
        timeline.note(f"eager {spec.get('a')}")

    webop.timer("widgets", id="once")(timeline.noting("once"))
    async with run_operator():
        await objects.create("one", {"a": 0})
        await timeline.wait("eager 0")
        await timeline.wait("once")
        await objects.patch("one", {"spec": {"a": 1}})
        await timeline.wait("eager 1")
        spent = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - spent < 0.3
    assert len(timeline.of("eager 1")) <= 2  # that it is handled is a change too
    assert len(timeline.of("once")) == 1


@pytest.mark.feature("TMR-10", "TMR-11", "TMR-12", "D-04")
async def test_the_first_call_can_be_postponed(
    run_operator: RunOperator, objects: Objects, timeline: Timeline
) -> None:
    given: dict[str, set[str]] = {}

    def find_delay(body: webop.Body, **kwargs: Any) -> int:
        timeline.note("asked")
        given["delay"] = {"body", *kwargs}
        return int(body["spec"]["minDelay"])

    def fail_to_tell(**_: Any) -> float:
        raise ValueError("who knows")

    @webop.timer("widgets", id="chosen", interval=0.1, initial_delay=find_delay)
    async def chosen(body: webop.Body, **kwargs: Any) -> None:
        timeline.note("chosen")
        given["fn"] = {"body", *kwargs}

    webop.timer("widgets", id="idle", initial_delay=0.5, interval=0.1, idle=0.2)(
        timeline.noting("idle")
    )

    @webop.timer("widgets", id="lost", interval=1, initial_delay=fail_to_tell)
    def lost(**_: Any) -> None:
        timeline.note("lost")

    async with run_operator():
        await objects.create("one", {"minDelay": 1})
        asked = await timeline.wait("asked")
        assert is_about(await timeline.wait("lost") - asked, 0)
        assert is_about(await timeline.wait("idle") - asked, 0.5)
        assert is_about(await timeline.wait("chosen") - asked, 1)
        await timeline.wait("chosen", 4)
        await timeline.wait("idle", 4)
    for name in ("chosen", "idle"):
        assert all(is_about(gap, 0.1) for gap in timeline.measure_gaps(name))
    assert len(timeline.of("asked")) == 1
    assert given["delay"] == given["fn"] - {"client"}


@pytest.mark.feature("TMR-13", "TMR-15", "TMR-16", "TMR-17", "KWA-10")
async def test_retries_have_delays_of_their_own_and_then_the_interval_follows(
    run_operator: RunOperator, objects: Objects, timeline: Timeline, calls: Calls
) -> None:
    options: Any = {"errors": webop.ErrorsMode.TEMPORARY, "interval": 1.0, "backoff": 0.5}

    @webop.timer("widgets", id="fn", **options)
    def monitor(name: str, retry: int, started: Any, runtime: Any, **_: Any) -> None:
        timeline.note("called")
        kwargs = {"name": name, "retry": retry}
        calls.note("fn", kwargs, started=started, seconds=runtime.total_seconds())
        if retry == 1:
            raise webop.TemporaryError("sooner", delay=0.2)
        if retry < 3:
            raise Exception  # noqa: TRY002  as in the manual

    async with run_operator():
        await objects.create("one")
        noted = await calls.wait("one", count=6)
    assert [call["retry"] for call in noted] == [0, 1, 2, 3, 0, 1]
    gaps = timeline.measure_gaps("called")[:5]
    expected = [0.5, 0.2, 0.5, 1.0, 0.5]
    assert all(is_about(*pair) for pair in zip(gaps, expected, strict=True)), gaps
    first, second = noted[:4], noted[4:]
    assert len({call["started"] for call in first}) == 1
    assert second[0]["started"] > first[0]["started"]
    assert is_about(first[3]["seconds"], 1.2)
    assert second[0]["seconds"] < 0.2


@pytest.mark.feature("TMR-14", "TMR-15", "D-42", "D-51", "ERR-09")
@pytest.mark.parametrize(
    ("options", "expected"),
    [({"errors": webop.ErrorsMode.PERMANENT}, 1), ({"retries": 2, "backoff": 0.05}, 2)],
)
async def test_a_timer_that_fails_for_good_stops_until_there_is_a_new_operator(
    run_operator: RunOperator, objects: Objects, timeline: Timeline, options: Any, expected: int
) -> None:
    @webop.timer("widgets", id="fn", interval=0.05, **options)
    async def fn(**_: Any) -> None:
        timeline.note("failing")
        raise ValueError("a mistake")

    @webop.timer("widgets", id="stopped", interval=0.05)
    async def permanent(**_: Any) -> None:
        timeline.note("permanent")
        raise webop.PermanentError("never again")

    @webop.timer("widgets", id="tick", interval=0.1, errors=webop.ErrorsMode.IGNORED)
    async def tick(**_: Any) -> None:
        timeline.note("ignored")
        raise ValueError("a mistake that does not matter")

    async with run_operator():
        await objects.create("one", {"a": 0})
        await timeline.wait("ignored", 5)
        await objects.patch("one", {"spec": {"a": 1}})
        await timeline.wait("ignored", 10)
    assert len(timeline.of("failing")) == expected
    assert len(timeline.of("permanent")) == 1
    async with run_operator():
        await timeline.wait("permanent", 2)
        await timeline.wait("failing", 2 * expected)


async def test_an_error_of_webop_is_a_failed_attempt_of_a_timer_or_daemon(
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_broken = True

    async def save(self: Daemon, *_: Any, **__: Any) -> None:
        self.cause.patch.clear()
        if is_broken:
            raise ZeroDivisionError

    monkeypatch.setattr(Daemon, "save", save)

    @webop.daemon("widgets", id="daemon", backoff=0.2)
    async def daemon(retry: int, **_: Any) -> str:
        timeline.note(f"daemon {retry}")
        return "done"

    @webop.timer("widgets", id="timer", backoff=0.2, interval=0.5)
    async def timer(retry: int, patch: webop.Patch, **_: Any) -> None:
        assert not patch
        timeline.note(f"timer {retry}")
        patch.spec["a"] = 1

    async with run_operator():
        await objects.create("one", {"a": 0})
        await timeline.wait("daemon 2")
        await timeline.wait("timer 2")
        is_broken = False
        await timeline.wait("timer 0", 4)
        count = len([name for name in timeline.list_names() if "daemon" in name])
        await timeline.wait("timer 0", 5)
        assert len([name for name in timeline.list_names() if "daemon" in name]) == count
    assert "Bug in webop: an attempt of Timer 'timer' failed. Retrying in 0.2 s." in caplog.text
    assert all(is_about(gap, 0.2) for gap in timeline.measure_gaps("daemon 1")[:2])
