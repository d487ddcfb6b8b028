"""What an operator does while others act in its place, and how it goes on afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial
from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import Relay, fail
from tests.kit.operators import (
    FINALIZER,
    PREFIX,
    Calls,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    get_progress,
    is_handled,
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


async def test_the_last_patch_of_a_daemon_is_not_overtaken_by_an_older_one_when_a_pause_begins(
    run_relayed: RunOperator, objects: Objects, boss: Boss
) -> None:
    has_failed, is_overtaken = asyncio.Event(), asyncio.Event()

    @webop.daemon("widgets")
    async def daemon(patch: webop.Patch, stopped: AsyncDaemonStopped, **_: Any) -> None:
        patch.spec["x"] = "old"
        await patch.apply()
        has_failed.set()
        await stopped.wait()
        patch.spec["x"] = "new"
        await patch.apply()

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or b'"x"' not in request.content:
            return None
        if not has_failed.is_set():
            return fail(503)
        if b"new" in request.content:
            is_overtaken.set()
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_overtaken.wait(), 0.5)
                await asyncio.sleep(0.1)
        return None

    async with run_relayed(standalone=False, identity="me", meddle=meddle):
        await objects.create("one", {"x": "none"})
        await has_failed.wait()
        await boss.pause()
        await objects.wait("one", lambda body: body["spec"]["x"] == "new")
        await asyncio.sleep(_IDLE)
    assert (await objects.get("one"))["spec"]["x"] == "new"


async def test_a_patch_on_its_way_through_a_short_pause_does_not_replace_a_newer_one(
    run_relayed: RunOperator, objects: Objects, boss: Boss
) -> None:
    is_handled, is_sent, is_overtaken = (asyncio.Event() for _ in range(3))

    @webop.daemon("widgets")
    async def daemon(patch: webop.Patch, stopped: AsyncDaemonStopped, **_: Any) -> None:
        await is_handled.wait()
        if not is_sent.is_set():
            patch.spec["x"] = "old"
            await patch.apply()
        await stopped.wait()

    @webop.on.update("widgets", field="spec.y")
    async def update(patch: webop.Patch, **_: Any) -> None:
        patch.spec["x"] = "new"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and b'"old"' in request.content:
            is_sent.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_overtaken.wait(), 2)
                await asyncio.sleep(0.1)
        elif request.method == "PATCH" and b'"new"' in request.content:
            is_overtaken.set()
        return None

    async with run_relayed(standalone=False, identity="me", meddle=meddle):
        await objects.make("one", {"x": "none", "y": 0})
        is_handled.set()
        await is_sent.wait()
        await boss.pause()
        await boss.resume()
        await objects.patch("one", {"spec": {"y": 1}})
        await objects.wait("one", lambda body: body["spec"]["x"] == "new")
        await asyncio.sleep(_IDLE)
    assert (await objects.get("one"))["spec"]["x"] == "new"


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


@pytest.mark.feature("PEE-17", "HND-20")
async def test_event_handlers_get_a_deletion_of_the_pause_once_if_there_is_an_index(
    run_peer: RunOperator, objects: Objects, boss: Boss, calls: Calls
) -> None:
    """The watch goes on in the pause, for the index."""
    views: list[webop.Index[str, bool]] = []

    @webop.index("widgets", id="names")
    async def names(name: str, **_: Any) -> dict[str, bool]:
        return {name: True}

    @webop.on.event("widgets", id="event")
    async def event(event: Any, names: webop.Index[str, bool], **kwargs: Any) -> None:
        calls.note("event", kwargs, type=event["type"])
        views.append(names)

    @webop.on.event("widgets", id="labelled", labels={"app": "x"})
    async def labelled(event: Any, **kwargs: Any) -> None:
        calls.note("labelled", kwargs, type=event["type"])

    async with run_peer():
        for name in ("one", "two"):
            await objects.create(name, labels={"app": "x"})
            await calls.wait(name)
        await boss.pause()
        await objects.create("three")
        await eventually(lambda: "three" in views[0], "the list of the pause has been read")
        for name in ("one", "three"):
            await objects.delete(name)
        await eventually(lambda: not {"one", "three"} & views[0].keys())
        await boss.resume()
        await eventually(lambda: "DELETED" in [c["type"] for c in calls.of("one", "event")])
        await objects.pass_fence()
    for handler in ("event", "labelled"):
        assert [call["type"] for call in calls.of("one", handler)].count("DELETED") == 1
    assert "DELETED" not in [call["type"] for call in calls.of("two", "event")]
    assert not calls.of("three")  # it was not there before the pause, nor after it


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_handler_that_another_operator_has_called_in_a_short_pause_is_not_called_again(
    objects: Objects,
    boss: Boss,
    calls: Calls,
    relayed: Relay,
    run_relayed: RunOperator,
    *,
    is_listed: bool,
) -> None:
    """The pause begins and ends during the call of the handler before it."""
    is_free, is_listing = asyncio.Event(), relayed.hold_watches("widgets")
    is_listing.set()
    webop.on.create("widgets", id="first")(calls.noting("first", is_free))
    webop.on.create("widgets", id="second")(calls.noting("second"))

    together = webop.lifecycles.all_at_once
    async with run_relayed(standalone=False, identity="me", lifecycle=together):
        await objects.create("one", {"size": 1})
        await calls.wait("one", "first")
        await boss.pause()
        handled = json.dumps({"spec": {"size": 1}})
        done = {f"{PREFIX}/last-handled-configuration": handled}
        await objects.patch("one", {"metadata": {"annotations": done}})
        if not is_listed:
            is_listing.clear()
        await boss.resume()
        await asyncio.sleep(_IDLE)
        is_free.set()
        await asyncio.sleep(_IDLE)
        is_listing.set()
        await objects.wait("one", lambda raw: is_handled(raw) and not get_progress(raw))
    assert calls.handlers("one") == ["first"]


async def test_a_change_that_is_taken_back_in_a_pause_is_handled_by_those_who_have_seen_it(
    run_peer: RunOperator, objects: Objects, boss: Boss, calls: Calls
) -> None:
    released = asyncio.Event()

    @webop.on.update("widgets", id="first")
    async def first(spec: webop.Spec, **kwargs: Any) -> None:
        calls.note("first", kwargs, size=spec["size"])
        await released.wait()

    webop.on.update("widgets", id="second")(do_nothing)
    async with run_peer():
        await objects.make("one", spec={"size": 1})
        await objects.patch("one", {"spec": {"size": 2}})
        await calls.wait("one", "first")
        await boss.pause()
        await objects.patch("one", {"spec": {"size": 1}})
        released.set()
        await objects.wait("one", lambda raw: "first" in get_progress(raw))
        await boss.resume()
        await calls.wait("one", "first", 2)
        await objects.wait_handled("one")
    assert [call["size"] for call in calls.of("one", "first")] == [2, 1]


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
