"""What an operator does while others act in its place, and how it goes on afterwards."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    FINALIZER,
    PREFIX,
    Calls,
    Objects,
    RunOperator,
    build_settings,
    get_progress,
)
from tests.kit.peering_objects import Boss
from tests.kit.timeline import Timeline
from tests.kit.waiting import eventually
from webop.handlers.stopping import AsyncDaemonStopped

Why = webop.DaemonStoppingReason

_IDLE = 0.25  # seconds, in which nothing is to happen


@pytest.fixture
def run_peer(run_operator: RunOperator) -> RunOperator:
    """Runs an operator that listens to the boss."""
    return partial(run_operator, standalone=False, identity="me")


@pytest.fixture
def noting(registry: webop.OperatorRegistry, calls: Calls) -> Calls:
    """Handlers of everything, which note their calls."""
    for name in ("create", "update", "delete", "resume"):
        decorate = getattr(webop.on, name)("widgets", registry=registry, id=name)
        decorate(calls.noting(name))
    return calls


@pytest.mark.feature("PEE-17", "D-06")
async def test_daemons_and_timers_stop_and_start_again(
    run_peer: RunOperator, objects: Objects, boss: Boss, timeline: Timeline
) -> None:
    reasons: list[Why] = []

    @webop.daemon("widgets")
    async def daemon(stopped: AsyncDaemonStopped, **_: Any) -> None:
        timeline.note("start")
        await stopped.wait()
        reasons.append(stopped.reason or Why(0))
        timeline.note("stop")

    @webop.timer("widgets", interval=0.05)
    async def timer(**_: Any) -> None:
        timeline.note("tick")

    async with run_peer():
        await objects.create("one")
        await timeline.wait("tick", 2)
        for count in (1, 2):
            await timeline.wait("start", count)
            await boss.pause()
            await timeline.wait("stop", count)
            ticks = len(timeline.of("tick"))
            await asyncio.sleep(_IDLE)
            assert len(timeline.of("tick")) == ticks
            assert len(timeline.of("start")) == count
            await boss.resume()
            await timeline.wait("tick", ticks + 2)
        await timeline.wait("start", 3)
        assert (await objects.get("one"))["metadata"]["finalizers"] == [FINALIZER]
    assert len(reasons) == 3
    assert all(Why.OPERATOR_PAUSING in reason for reason in reasons[:2])
    assert Why.OPERATOR_EXITING in reasons[2]
    assert Why.OPERATOR_PAUSING not in reasons[2]


@pytest.mark.feature("PEE-17", "HND-20")
async def test_objects_are_resumed_once_and_those_that_another_one_has_handled_are_too(
    run_peer: RunOperator, objects: Objects, boss: Boss, noting: Calls
) -> None:
    theirs = Calls()
    registry = webop.OperatorRegistry()
    webop.on.create("widgets", registry=registry, id="create")(theirs.noting("create"))
    other = build_settings(peering={"priority": 100})
    await objects.create("before")
    async with run_peer(beside=True):
        await objects.wait_handled("before")
        await objects.make("mine")
        async with run_with(run_peer, registry)(other, identity="other", beside=True):
            await eventually(lambda: "Pausing in favour of other" in boss.log.text)
            await objects.create("theirs")
            await theirs.wait("theirs")
            await objects.wait_handled("theirs")
        await noting.wait("theirs", "resume")
        await objects.pass_fence()
        await boss.pause()
        await boss.resume()
        await objects.pass_fence()
    assert noting.handlers("theirs") == ["resume"]
    assert noting.handlers("mine") == ["create"]
    assert sorted(noting.handlers("before")) in (["create"], ["create", "resume"])
    assert theirs.handlers("mine") == theirs.handlers("before") == []


def run_with(run: Any, registry: webop.OperatorRegistry) -> RunOperator:
    """Return what runs an operator with other handlers."""
    plain: partial[Any] = run
    info = plain.args[0]
    return partial(plain.func, info, registry, **plain.keywords)


@pytest.mark.parametrize(
    ("key", "purpose", "names"),
    [
        pytest.param(
            "resume", "resume", ["create", "both", "both", "resume"], id="a resume handler"
        ),
        pytest.param("both", "resume", ["create", "both", "both", "resume"], id="of both"),
        pytest.param("both", "update", ["create", "both"], id="of both, in an undone update"),
        pytest.param("update", "update", ["create", "both"], id="an update handler"),
    ],
)
async def test_records_that_another_operator_left_in_the_pause_do_not_stay_on_the_object(
    noting: Calls,
    registry: webop.OperatorRegistry,
    run_peer: RunOperator,
    objects: Objects,
    boss: Boss,
    key: str,
    purpose: str,
    names: list[str],
) -> None:
    both = noting.noting("both")
    for decorate in (webop.on.create, webop.on.update, webop.on.resume):
        decorate("widgets", registry=registry, id="both")(both)
    async with run_peer():
        await objects.pass_fence()  # so that it need not be resumed
        await objects.make("one")
        await boss.pause()
        record = {"started": "2030-01-01T00:00:00Z", "purpose": purpose, "retries": 3}
        left = {f"{PREFIX}/{key}": json.dumps(record)}
        await objects.patch("one", {"metadata": {"annotations": left}})
        await boss.resume()
        await objects.wait("one", lambda raw: not get_progress(raw))
        await objects.pass_fence()
    assert sorted(noting.handlers("one")) == sorted(names)
    assert {call["retry"] for call in noting.of("one", key)} <= {0, 3}
