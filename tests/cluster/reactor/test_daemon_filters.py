"""Filters of daemons: started when the object matches, stopped when it does not (DMN-28 to 30)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import webop
from tests.kit.operators import Objects, RunOperator, do_nothing, has_finalizer
from tests.kit.timeline import Timeline


@pytest.mark.feature("DMN-28", "DMN-31")
@pytest.mark.parametrize(
    ("options", "matching", "other"),
    [
        (
            {"labels": {"x": "1"}},
            {"metadata": {"labels": {"x": "1"}}},
            {"metadata": {"labels": {"x": None}}},
        ),
        ({"when": lambda spec, **_: spec.get("a", 0) > 0}, {"spec": {"a": 1}}, {"spec": {"a": -1}}),
        ({"field": "spec.a", "value": 1}, {"spec": {"a": 1}}, {"spec": {"a": 0}}),
    ],
)
async def test_a_daemon_runs_while_the_object_matches(
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    options: Any,
    matching: Any,
    other: Any,
) -> None:
    flags: list[webop.DaemonStopped] = []

    @webop.daemon("widgets", id="fn", **options)
    async def fn(stopped: webop.DaemonStopped, **_: Any) -> None:
        flags.append(stopped)
        timeline.note("begun")
        await stopped.wait()
        timeline.note("ended")

    async with run_operator():
        await objects.create("one", {"a": 0})
        await objects.pass_fence()
        assert timeline.list_names() == []
        assert not has_finalizer(await objects.get("one"))
        for turn in (1, 2):
            await objects.patch("one", matching)
            await timeline.wait("begun", turn)
            assert has_finalizer(await objects.get("one"))
            await objects.patch("one", other)
            await timeline.wait("ended", turn)
            await objects.wait("one", lambda body: not has_finalizer(body))
    reasons = webop.DaemonStoppingReason
    expected = reasons.FILTERS_MISMATCH | reasons.DAEMON_SIGNALLED | reasons.DONE
    assert [flag.reason for flag in flags] == [expected, expected]


@pytest.mark.feature("DMN-30")
async def test_a_daemon_that_is_ending_still_counts_as_running(
    run_operator: RunOperator, objects: Objects, timeline: Timeline
) -> None:
    released = asyncio.Event()

    @webop.daemon("widgets", id="fn", labels={"x": "1"})
    async def fn(stopped: webop.DaemonStopped, **_: Any) -> None:
        timeline.note("begun")
        await stopped.wait()
        timeline.note("told")
        await released.wait()
        timeline.note("ended")

    async with run_operator():
        await objects.create("one", {"a": 0}, labels={"x": "1"})
        await timeline.wait("begun")
        await objects.patch("one", {"metadata": {"labels": {"x": "0"}}})
        await timeline.wait("told")
        await objects.patch("one", {"metadata": {"labels": {"x": "1"}}})
        await objects.pass_fence()
        assert timeline.list_names() == ["begun", "told"]
        released.set()
        await timeline.wait("ended")
        await timeline.wait("begun", 2)  # the object matches again
        assert timeline.list_names() == ["begun", "told", "ended", "begun"]
        assert has_finalizer(await objects.get("one"))


@pytest.mark.feature("DMN-12", "DMN-25", "DMN-27")
async def test_an_abandoned_daemon_is_left_to_itself_and_keeps_what_it_has_seen(
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    caplog: pytest.LogCaptureFixture,
) -> None:
    released = asyncio.Event()

    def transform(body: webop.RawBody) -> None:
        body["spec"]["late"] = "yes"

    webop.daemon("widgets", id="done")(do_nothing)

    @webop.daemon("widgets", id="fn", labels={"x": "1"}, cancellation_timeout=0.1)
    async def fn(spec: webop.Spec, patch: webop.Patch, **_: Any) -> None:
        timeline.note("begun")
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                timeline.note("cancelled")
        timeline.note(f"ended {spec.get('a')}")
        patch.status["left"] = "alone"
        patch.fns.append(transform)

    async with run_operator():
        await objects.create("one", {"a": 1}, labels={"x": "1"})
        await timeline.wait("begun")
        await objects.patch("one", {"metadata": {"labels": {"x": None}}})
        with pytest.warns(ResourceWarning, match="did not end in time"):
            await objects.wait("one", lambda body: not has_finalizer(body))
        await objects.pass_fence()
        released.set()
        await timeline.wait("ended 1")
        await objects.wait("one", lambda body: body.get("status") == {"left": "alone"})
        await objects.pass_fence()
    assert "Bug in webop" not in caplog.text


@pytest.mark.feature("DMN-29", "TMR-21")
async def test_criteria_are_looked_at_when_the_object_changes_and_at_no_other_time(
    run_operator: RunOperator, objects: Objects, timeline: Timeline
) -> None:
    wanted = False

    def is_wanted(name: str, **_: Any) -> bool:
        if name == "one":
            timeline.note("asked")
        return wanted and name == "one"

    webop.daemon("widgets", id="fn", when=is_wanted)(timeline.live)
    async with run_operator():
        await objects.create("one", {"a": 0})
        await objects.pass_fence()
        for turn, wanted in enumerate((True, False), start=1):
            asked = len(timeline.of("asked"))
            await objects.pass_fence()  # other objects have their events meanwhile
            assert len(timeline.of("asked")) == asked
            assert timeline.of("begun" if wanted else "ended") == []
            await objects.patch("one", {"spec": {"a": turn}})
            await timeline.wait("begun" if wanted else "ended")
