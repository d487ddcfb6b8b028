"""The time in tests with a fake client: ``webop.now()`` and the stamps of the API server."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

import webop
from tests.kit.lamps import Lamp, build_lamp
from tests.kit.rows import rows
from webop.testing import Clock, FakeClient

START = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
STAMP = "2026-01-31T12:00:00Z"
SITE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "site", "namespace": "team", "finalizers": ["test/hold"]},
}


def is_now(moment: dt.datetime) -> bool:
    return abs(dt.datetime.now(dt.UTC) - moment) < dt.timedelta(minutes=1)


async def test_reconcilers_and_their_conditions_have_the_time_of_the_client() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(Lamp, build_lamp(), now=START)
    seen: list[dt.datetime] = []

    @webop.reconcile(Lamp, registry=registry)
    def switch(lamp: Lamp, patch: webop.Patch, **_: Any) -> None:
        seen.append(webop.now())
        patch.status.set_condition("On", not lamp.status.conditions.is_true("On"), reason="Switch")

    for moment in (START, START + dt.timedelta(days=1, hours=2, minutes=3, seconds=4)):
        client.clock.now = moment
        await client.reconcile(switch, build_lamp(), registry=registry)
        assert seen.pop() == moment
        lamp = await client.get(Lamp, "one", namespace="default")
        [condition] = lamp.status.conditions
        assert condition.last_transition_time == moment
    assert is_now(webop.now())


async def test_in_a_block_the_time_is_that_of_the_client() -> None:
    with FakeClient(now=START) as client:
        assert webop.now() == await asyncio.to_thread(webop.now) == START
        with FakeClient(now=START - dt.timedelta(days=1)):
            assert webop.now() == START - dt.timedelta(days=1)
        client.clock.now = START + dt.timedelta(days=1)
        assert webop.now() == START + dt.timedelta(days=1)
    assert is_now(webop.now())
    with client, client:  # also if it is entered twice
        pass
    assert is_now(webop.now())


async def test_stamps_of_objects_have_the_time_of_the_client() -> None:
    client = FakeClient(SITE, now=START)
    client.clock.advance(days=1, hours=2, minutes=3, seconds=4.5)
    await client.delete("configmaps", "site", namespace="team")
    meta = (await client.get("configmaps", "site", namespace="team"))["metadata"]
    assert meta["creationTimestamp"] == STAMP
    assert meta["deletionTimestamp"] == "2026-02-01T14:03:04Z"


async def test_without_a_time_the_clock_goes_on_until_the_test_moves_it() -> None:
    with FakeClient(SITE) as client:
        before = webop.now()
        assert is_now(before)
        assert webop.now() > before
        client.clock.advance(hours=2)
        moved = webop.now()
        assert is_now(moved - dt.timedelta(hours=2))
        assert webop.now() == moved


@rows(
    ("moment", "message"),
    [
        (START - dt.timedelta(seconds=1), r"cannot go back from .*12:00:00.* to .*11:59:59\+00:00"),
        (START.replace(tzinfo=None), r"time zone, such as .*tzinfo=UTC\), got datetime.*12, 0\)"),
        ("2026-01-31", "got '2026-01-31'"),
    ],
)
def test_times_without_a_zone_and_earlier_ones_are_refused(moment: Any, message: str) -> None:
    clock = Clock(START)
    with pytest.raises(ValueError, match=message):
        clock.now = moment
    assert clock.now == START
