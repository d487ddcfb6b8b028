"""What becomes of daemons when the operator ends (chapter "Daemons", "Timeouts")."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import webop
from tests.kit.operators import Objects, RunOperator
from tests.kit.timeline import Timeline

Why = webop.DaemonStoppingReason


@pytest.mark.feature("DMN-08", "DMN-09", "DMN-14", "DMN-16", "D-39")
async def test_hung_daemons_get_five_seconds_on_the_exit_unless_they_have_stages_of_their_own(
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    released: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    flags: list[webop.DaemonStopped] = []

    @webop.daemon("widgets", id="hung")
    async def hung(stopped: webop.DaemonStopped, **_: Any) -> None:
        flags.append(stopped)
        timeline.note("begun")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            timeline.note("cancelled")
            raise

    @webop.daemon("widgets", id="thread")
    def thread(**_: Any) -> None:
        timeline.note("thread begun")
        released.wait()
        timeline.note("thread ended")

    @webop.daemon("widgets", id="staged", cancellation_backoff=0.5, cancellation_timeout=2.0)
    async def staged(**_: Any) -> None:
        timeline.note("staged begun")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            timeline.note("staged cancelled")
            await asyncio.sleep(0.3)
            timeline.note("staged ended")

    @webop.daemon("widgets", id="polite")
    async def polite(stopped: webop.DaemonStopped, **_: Any) -> None:
        await stopped.wait()
        timeline.note("polite ended")

    @webop.on.cleanup()
    async def clean(**_: Any) -> None:
        timeline.note("cleaned up")

    async with run_operator() as operator:
        await objects.create("one")
        for name in ("begun", "thread begun", "staged begun"):
            await timeline.wait(name)
        began = time.monotonic()
        await operator.stop()
        ended = time.monotonic() - began
    assert "2 daemons or timers did not end within 5 s" in caplog.text
    assert timeline.of("polite ended")[0] - began < 1
    assert 0.45 < timeline.of("staged cancelled")[0] - began < 1.2
    assert 0.75 < timeline.of("staged ended")[0] - began < 2.5
    assert 4.8 < timeline.of("cancelled")[0] - began < 6.5
    assert 4.8 < ended < 7
    assert not timeline.of("thread ended")
    assert timeline.list_names()[-1] == "cleaned up"
    assert flags[0].is_set(Why.OPERATOR_EXITING)
    assert not flags[0].is_set(Why.RESOURCE_DELETED)


@pytest.mark.feature("DMN-02", "DMN-03", "DMN-18")
async def test_a_daemon_that_waits_for_its_retry_or_its_start_holds_neither_its_object_nor_the_exit(
    run_operator: RunOperator, objects: Objects, timeline: Timeline
) -> None:
    @webop.daemon("widgets", id="retried")
    def retried(**_: Any) -> None:
        timeline.note("retried")
        raise webop.TemporaryError("later", delay=1000)

    webop.daemon("widgets", id="postponed", initial_delay=1000)(timeline.noting("postponed"))
    webop.timer("widgets", id="timer", interval=1000)(timeline.noting("timer"))
    async with run_operator() as operator:
        for name in ("one", "two"):
            await objects.create(name)
        await timeline.wait("retried", 2)
        await timeline.wait("timer", 2)
        await objects.delete("two")
        await objects.wait_gone("two", timeout=5)
        began = time.monotonic()
        await operator.stop()
    assert time.monotonic() - began < 3
    assert sorted(timeline.list_names()) == ["retried"] * 2 + ["timer"] * 2
