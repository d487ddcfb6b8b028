"""How daemons are stopped: the three stages, deletion held up and let go, the operator's exit."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.operators import FINALIZER, Objects, RunOperator, build_settings
from tests.kit.timeline import Timeline
from tests.kit.waiting import eventually

Declare = Callable[..., None]
Why = webop.DaemonStoppingReason

_PATIENCE = 30.0  # seconds; of stubborn daemons in tests that fail


@pytest.fixture
def flags() -> dict[str, webop.DaemonStopped]:
    """The flags of daemons by the names of their objects."""
    return {}


@pytest.fixture
def stubborn(
    timeline: Timeline, flags: dict[str, webop.DaemonStopped], released: threading.Event
) -> Declare:
    """Declares a daemon that ends when the test lets it go, whatever it is told."""

    def run_sync(name: str, stopped: webop.DaemonStopped, **_: Any) -> None:
        flags[name] = stopped
        timeline.note("begun")
        stopped.wait()
        timeline.note("told")
        released.wait(_PATIENCE)
        timeline.note("ended")

    async def run_async(name: str, stopped: webop.DaemonStopped, **_: Any) -> None:
        flags[name] = stopped
        timeline.note("begun")
        is_told, ends = False, time.monotonic() + _PATIENCE
        while not released.is_set() and time.monotonic() < ends:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                timeline.note("cancelled")
            if stopped and not is_told:
                is_told = True
                timeline.note("told")
        timeline.note("ended")

    def declare(*, is_sync: bool = False, **options: Any) -> None:
        fn = run_sync if is_sync else run_async
        labels = {"with": "daemon"}
        webop.daemon("widgets", id="fn", labels=labels, **options)(fn)

    return declare


async def create(objects: Objects, name: str = "one") -> None:
    await objects.create(name, labels={"with": "daemon"})


async def delete(objects: Objects, name: str = "one") -> float:
    """Ask for the deletion of an object; return when it was."""
    moment = time.monotonic()
    await objects.delete(name)
    return moment


@pytest.mark.feature("DMN-08", "DMN-10", "DMN-11", "DMN-12", "DMN-14", "DMN-24", "DMN-31")
@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_daemon_is_told_then_cancelled_then_abandoned(
    stubborn: Declare,
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    flags: dict[str, webop.DaemonStopped],
    released: threading.Event,
    caplog: pytest.LogCaptureFixture,
    *,
    is_sync: bool,
) -> None:
    stubborn(is_sync=is_sync, cancellation_backoff=0.6, cancellation_timeout=0.8)
    async with run_operator():
        await create(objects)
        await timeline.wait("begun")
        began = await delete(objects)
        with pytest.warns(ResourceWarning, match="did not end in time"):
            await objects.wait_gone("one")
        told = timeline.of("told")[0] - began
        gone = time.monotonic() - began
        cancelled = [moment - began for moment in timeline.of("cancelled")]
        stages = Why.DAEMON_SIGNALLED | Why.DAEMON_ABANDONED
        if not is_sync:
            stages |= Why.DAEMON_CANCELLED
        assert flags["one"].reason == Why.RESOURCE_DELETED | stages
        assert "still runs after its cancellation_timeout=" in caplog.text
        released.set()
        await timeline.wait("ended")
        await eventually(lambda: flags["one"].is_set(Why.DONE))
    assert told < 0.5
    assert 1.35 < gone < 2.3
    assert len(cancelled) == (0 if is_sync else 1)
    assert all(0.55 < moment < 1.1 for moment in cancelled)


@pytest.mark.feature("DMN-09", "DMN-13", "DMN-15", "DMN-17", "CFG-29", "D-39", "D-57", "D-43")
@pytest.mark.parametrize(
    ("options", "settings", "is_sync"),
    [
        ({"cancellation_polling": 0.2}, {}, True),
        ({"cancellation_backoff": 0.1}, {"cancellation_polling": 0.2}, False),
    ],
)
async def test_without_a_timeout_the_object_stays_until_the_daemon_ends(
    stubborn: Declare,
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    released: threading.Event,
    caplog: pytest.LogCaptureFixture,
    options: Any,
    settings: Any,
    *,
    is_sync: bool,
) -> None:
    stubborn(is_sync=is_sync, **options)
    caplog.set_level(logging.INFO)

    def count_reminders() -> int:
        return caplog.text.count("has not ended yet")

    async with run_operator(build_settings(background=settings)):
        await create(objects)
        await timeline.wait("begun")
        await delete(objects)
        await timeline.wait("told")
        await eventually(lambda: count_reminders() >= 3, "it is told about")
        assert FINALIZER in (await objects.get("one"))["metadata"]["finalizers"]
        assert not timeline.of("cancelled")
        released.set()
        await timeline.wait("ended")
        await objects.wait_gone("one")


@pytest.mark.feature("DMN-33", "CFG-30", "CFG-31", "DMN-08")
@pytest.mark.parametrize(
    ("options", "settings", "is_cancelled"),
    [
        ({"cancellation_timeout": 5}, {}, False),  # who waits for the flag is quick enough
        ({"cancellation_timeout": 5}, {"instant_exit_zero_time_cycles": None}, True),
        ({"cancellation_timeout": 5}, {"instant_exit_timeout": 0.3}, False),
        ({"cancellation_timeout": 5, "cancellation_backoff": 0.3}, {}, False),
    ],
)
async def test_a_daemon_that_ends_when_it_is_told_to_is_not_cancelled(
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    options: Any,
    settings: Any,
    *,
    is_cancelled: bool,
) -> None:
    @webop.daemon("widgets", id="fn", **options)
    async def fn(stopped: webop.DaemonStopped, **_: Any) -> None:
        timeline.note("begun")
        try:
            await stopped.wait(100)
            timeline.note("ended")
        except asyncio.CancelledError:
            timeline.note("cancelled")
            raise

    async with run_operator(build_settings(background=settings)):
        await objects.create("one")
        await timeline.wait("begun")
        await delete(objects)
        await objects.wait_gone("one", timeout=5)
        assert timeline.list_names() == ["begun", "cancelled" if is_cancelled else "ended"]


@pytest.mark.feature("DMN-03", "EVT-10")
async def test_daemons_stop_when_their_object_is_gone_all_of_a_sudden(
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    flags: dict[str, webop.DaemonStopped],
) -> None:
    @webop.daemon("widgets", id="fn")
    async def fn(stopped: webop.DaemonStopped, spec: webop.Spec, **_: Any) -> None:
        flags["one"] = stopped
        timeline.note("begun")
        while not stopped.is_set(Why.RESOURCE_DELETED):
            await asyncio.sleep(0.01)
        timeline.note(f"ended {spec['a']}")

    @webop.daemon("widgets", id="hung", cancellation_timeout=0.1)
    async def hung(**_: Any) -> None:
        timeline.note("hung begun")
        await asyncio.sleep(1000)

    async with run_operator():
        await objects.create("one", {"a": 1})
        await timeline.wait("begun")
        await timeline.wait("hung begun")
        # Both at once: the finalizer is gone before anybody could react.
        await objects.patch("one", {"metadata": {"finalizers": ["tests.webop.dev/x"]}})
        await objects.delete("one")
        await objects.patch("one", {"metadata": {"finalizers": []}})
        await objects.wait_gone("one")
        await timeline.wait("ended 1")
        await eventually(lambda: flags["one"].is_set(Why.DONE))
