"""A watch that is replaced: the old one ends before the new one begins, indexes stay exact."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import webop
from tests.meeting import Boss, Meeting, provide_peerings
from tests.operating import (
    CRDS,
    Calls,
    Json,
    Kind,
    Objects,
    RunOperator,
    build_settings,
    eventually,
    get_annotations,
    operate,
    wait_served,
)
from tests.reactor.relay import Relay, relay
from tests.reactor.witnesses import Crowd, Names, build_noting_handler
from webop.client.api import Client
from webop.client.credentials import ConnectionInfo

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Why = webop.DaemonStoppingReason
Change = Callable[[Json], list[Json]]


@pytest.fixture
async def ducks(client: Client, webop_namespace: str) -> Objects:
    """Objects of a kind of the test's own, to be changed."""
    kind = Kind(f"{webop_namespace}.replaced.webop.dev", "ducks", "Duck")
    await kind.define(client)
    return Objects(client, kind, webop_namespace)


@pytest.fixture
def run_operator(
    info: ConnectionInfo, registry: webop.OperatorRegistry, ducks: Objects
) -> RunOperator:
    """Runs an operator for the ducks."""
    return partial(operate, info, registry, namespaces=[ducks.namespace])


def gain_status(version: Json) -> list[Json]:
    """Add the status endpoint to a kind."""
    return [{**version, "subresources": {"status": {}}}]


def lose_status(version: Json) -> list[Json]:
    """Remove the status endpoint from a kind."""
    return [{**version, "subresources": {}}]


async def has_status(objects: Objects, name: str) -> bool:
    """Tell whether the API server serves the status of an object that exists."""
    where = objects.kind.resource, objects.namespace, name
    return await objects.client.patch(*where, {"status": {}}, "status") is not None


def prefer_next_version(version: Json) -> list[Json]:
    """Add version v2 to a kind, which is preferred to v1."""
    return [version, {**version, "name": "v2", "storage": False}]


async def change_kind(objects: Objects, change: Change = gain_status) -> None:
    """Change the versions of a kind."""
    client, name = objects.client, objects.kind.crd_name
    crd = await client.get(CRDS, None, name)
    versions = change(crd["spec"]["versions"][0])
    await client.patch(CRDS, None, name, {"spec": {"versions": versions}})


async def replace_watch(
    objects: Objects, caplog: pytest.LogCaptureFixture, change: Change = gain_status
) -> None:
    """Change a kind, and wait until the operator replaces its watch."""
    with caplog.at_level("INFO", "webop"):
        await change_kind(objects, change)
        await eventually(lambda: "Listing it again" in caplog.text, "the watch is replaced")


CHANGES = pytest.mark.parametrize("change", [gain_status, prefer_next_version])


@CHANGES
async def test_no_two_handlers_and_no_two_daemons_are_at_one_object_when_its_kind_changes(
    registry: webop.OperatorRegistry, run_operator: RunOperator, ducks: Objects, change: Change
) -> None:
    crowd = Crowd()
    reasons: list[webop.DaemonStoppingReason | None] = []

    @webop.on.update(ducks.kind.crd_name, registry=registry, id="slow")
    async def slow(name: str, **_: Any) -> None:
        with crowd.enter(f"handler of {name}"):
            await asyncio.sleep(2 if crowd.entries[f"handler of {name}"] == 1 else 0)

    @webop.daemon(ducks.kind.crd_name, registry=registry, id="daemon")
    async def daemon(stopped: webop.DaemonStopped, name: str, **_: Any) -> None:
        with crowd.enter(f"daemon of {name}"):
            await stopped.wait()
            reasons.append(stopped.reason)
            await asyncio.sleep(0.5)  # it takes its time

    settings = build_settings(batching={"exit_timeout": 0.8})
    async with run_operator(settings):
        await ducks.create("one", {"a": 1})
        await ducks.wait_handled("one")
        await eventually(lambda: crowd.entries["daemon of one"] == 1, "the daemon runs")
        await ducks.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: crowd.present["handler of one"] == 1, "the handler runs")
        await change_kind(ducks, change)
        await eventually(lambda: crowd.entries["daemon of one"] == 2, "the daemon runs again")
        await ducks.wait_handled("one")
        assert crowd.entries["handler of one"] == 2  # the first one was cancelled
        assert crowd.present["daemon of one"] == 1
    assert set(crowd.most.values()) == {1}
    assert reasons[0] is not None
    assert Why.OPERATOR_PAUSING in reasons[0]
    assert Why.OPERATOR_EXITING not in reasons[0]


async def test_a_thread_that_outlives_its_watch_keeps_its_object_to_itself(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    ducks: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    crowd = Crowd()
    released = threading.Event()

    @webop.on.update(ducks.kind.crd_name, registry=registry, id="slow")
    def slow(name: str, **_: Any) -> None:
        with crowd.enter(f"handler of {name}"):
            if name == "one":
                released.wait(20)

    settings = build_settings(batching={"exit_timeout": 0.2})
    try:
        async with run_operator(settings):
            for name in ("one", "two"):
                await ducks.create(name, {"a": 1})
                await ducks.wait_handled(name)
            await ducks.patch("one", {"spec": {"a": 2}})
            await eventually(lambda: crowd.present["handler of one"] == 1, "the handler runs")
            await replace_watch(ducks, caplog)
            await ducks.patch("two", {"spec": {"a": 2}})
            await eventually(lambda: crowd.entries["handler of two"] == 1, "others are handled")
            assert crowd.entries["handler of one"] == 1
            released.set()
            await ducks.wait_handled("one")
            await eventually(lambda: crowd.entries["handler of one"] == 2, "it is called again")
    finally:
        released.set()
    assert set(crowd.most.values()) == {1}


async def test_a_handler_that_swallows_its_cancellation_holds_up_nothing_but_its_object(
    registry: webop.OperatorRegistry,
    info: ConnectionInfo,
    ducks: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "webop")
    crowd = Crowd()
    released = asyncio.Event()

    async def cling() -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    @webop.on.update(ducks.kind.crd_name, registry=registry, id="slow")
    async def slow(name: str, **_: Any) -> None:
        with crowd.enter(f"handler of {name}"):
            if name == "one":
                await cling()

    @webop.daemon(ducks.kind.crd_name, registry=registry, id="daemon")
    async def daemon(name: str, **_: Any) -> None:
        with crowd.enter(f"daemon of {name}"):
            if name == "two":
                await cling()

    settings = build_settings(batching={"exit_timeout": 0.2})
    try:
        async with operate(info, registry, settings, namespaces=[ducks.namespace]):
            for name in ("one", "two", "three"):
                await ducks.create(name, {"a": 1})
                await ducks.wait_handled(name)
            await ducks.patch("one", {"spec": {"a": 2}})
            await eventually(lambda: crowd.present["handler of one"] == 1, "the handler runs")
            await change_kind(ducks)
            await eventually(lambda: "cancelled handlers or daemons still run" in caplog.text)
            await ducks.patch("three", {"spec": {"a": 2}})
            await eventually(lambda: crowd.entries["handler of three"] == 1, "others are handled")
            assert crowd.entries["handler of one"] == 1
            assert crowd.entries["daemon of two"] == 1
            released.set()
            await ducks.wait_handled("one")
            await eventually(lambda: crowd.entries["daemon of two"] == 2, "it runs again")
    finally:
        released.set()
    assert set(crowd.most.values()) == {1}


@pytest.fixture
def ended(registry: webop.OperatorRegistry, ducks: Objects, calls: Calls) -> asyncio.Event:
    """Set when a handler of creations may end, with a result."""
    event = asyncio.Event()

    @webop.on.create(ducks.kind.crd_name, registry=registry, id="created")
    async def created(**kwargs: Any) -> str:
        calls.note("created", kwargs)
        await event.wait()
        return "done"

    return event


async def test_a_handler_that_ends_in_time_is_not_repeated_when_its_kind_changes(
    run_operator: RunOperator,
    ducks: Objects,
    calls: Calls,
    ended: asyncio.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = build_settings(batching={"exit_timeout": 30})
    async with run_operator(settings):
        await ducks.create("one")
        await calls.wait("one")
        await replace_watch(ducks, caplog)
        await ducks.create("two")
        ended.set()
        for name in ("one", "two"):
            await ducks.wait_handled(name)
    assert (len(calls.of("one")), len(calls.of("two"))) == (1, 1)


async def test_a_change_that_is_taken_back_as_a_creation_ends_in_an_old_watch_is_an_update(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    ducks: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    @webop.on.create(ducks.kind.crd_name, registry=registry, id="create")
    async def on_create(retry: int, **kwargs: Any) -> None:
        calls.note("create", kwargs)
        await gates[retry].wait()
        if retry == 0:
            raise webop.TemporaryError("not yet", delay=0)

    @webop.on.update(ducks.kind.crd_name, registry=registry, id="update")
    async def on_update(**kwargs: Any) -> None:
        calls.note("update", kwargs)

    async with run_operator(build_settings(batching={"exit_timeout": 30})):
        await ducks.create("one", {"a": 1})
        await calls.wait("one", "create")
        await ducks.patch("one", {"spec": {"a": 2}})
        gates[0].set()
        await calls.wait("one", "create", count=2)
        await replace_watch(ducks, caplog)
        await ducks.patch("one", {"spec": {"a": 1}})
        gates[1].set()
        await calls.wait("one", "update")
        await ducks.wait_handled("one")
    assert [call["spec"]["a"] for call in calls.of("one", "create")] == [1, 2]
    seen = [(call["old"], call["new"]) for call in calls.of("one", "update")]
    assert seen == [({"spec": {"a": 2}}, {"spec": {"a": 1}})]


@pytest.mark.parametrize("is_gained", [False, True], ids=["goes", "comes"])
async def test_a_result_is_not_lost_and_its_handler_not_repeated_when_the_status_endpoint(
    run_operator: RunOperator,
    ducks: Objects,
    calls: Calls,
    ended: asyncio.Event,
    caplog: pytest.LogCaptureFixture,
    is_gained: bool,
) -> None:
    if not is_gained:
        await change_kind(ducks)
    async with run_operator(build_settings(batching={"exit_timeout": 30})):
        await ducks.create("one")
        await calls.wait("one")
        await replace_watch(ducks, caplog, gain_status if is_gained else lose_status)
        while await has_status(ducks, "one") is not is_gained:  # API servers take a moment, too
            await asyncio.sleep(0.05)
        ended.set()
        await ducks.wait("one", lambda body: body.get("status") == {"created": "done"})
        await ducks.wait_handled("one")
    assert len(calls.of("one")) == 1


@CHANGES
async def test_an_index_has_neither_ghosts_nor_gaps_when_its_kind_changes(
    registry: webop.OperatorRegistry, run_operator: RunOperator, ducks: Objects, change: Change
) -> None:
    crowd = Crowd()
    gaps: list[list[str]] = []
    index = Names(registry, ducks.kind.crd_name)

    @webop.daemon(ducks.kind.crd_name, registry=registry, id="lingering", field="spec.lingers")
    async def lingering(stopped: webop.DaemonStopped, name: str, **_: Any) -> None:
        with crowd.enter(name):
            await stopped.wait()
            await asyncio.sleep(0.5)

    async def watch_for_gaps() -> None:
        while True:
            if not {"kept", "lingerer"} <= index():
                gaps.append(sorted(index()))
            await asyncio.sleep(0.005)

    for name in ("kept", "doomed"):
        await ducks.create(name)
    await ducks.create("lingerer", {"lingers": True})
    async with run_operator():
        await eventually(lambda: index() == {"kept", "doomed", "lingerer"}, "the index")
        await eventually(lambda: crowd.present["lingerer"] == 1, "the daemon runs")
        watching = asyncio.create_task(watch_for_gaps())
        await change_kind(ducks, change)
        await ducks.delete("doomed")  # before, while or after the old watch ends
        await eventually(lambda: crowd.entries["lingerer"] == 2, "the daemon runs again")
        await eventually(lambda: crowd.present["lingerer"] == 1, "the former one has ended")
        await ducks.create("new")
        await eventually(lambda: index() == {"kept", "lingerer", "new"}, "the index is exact")
        assert len(index.served) == 2
        watching.cancel()
    assert not gaps


async def test_handlers_wait_until_an_index_is_filled_that_gets_the_objects_of_a_kind_later(
    registry: webop.OperatorRegistry, run_operator: RunOperator, ducks: Objects
) -> None:
    category, names = f"of-{ducks.namespace}", {"one", "two", "three"}
    found: list[set[str]] = []

    @webop.index(category=category, registry=registry, id="birds")
    async def birds(name: str, **_: Any) -> dict[str, None]:
        return {name: None}

    @webop.on.event(ducks.kind.crd_name, registry=registry, id="seen")
    async def seen(birds: webop.Index[str, None], **_: Any) -> None:
        found.append(set(birds))

    for name in names:
        await ducks.create(name)
    async with run_operator():
        await eventually(lambda: len(found) == 3, "the handlers are called")
        change = {"spec": {"names": {"categories": [category]}}}
        await ducks.client.patch(CRDS, None, ducks.kind.crd_name, change)
        await eventually(lambda: len(found) == 6, "the watch is replaced")
    assert found == [set()] * 3 + [names] * 3


async def test_what_is_deleted_while_the_old_watch_ends_leaves_the_index(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    ducks: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    started, over = asyncio.Event(), asyncio.Event()
    index = Names(registry, ducks.kind.crd_name)

    @webop.on.create(ducks.kind.crd_name, registry=registry, id="slow", field="spec.slow")
    async def slow(**_: Any) -> None:
        started.set()
        await over.wait()

    settings = build_settings(batching={"exit_timeout": 60})
    async with run_operator(settings):
        await ducks.create("slow", {"slow": True})
        for name in ("kept", "doomed"):
            await ducks.create(name)
        await started.wait()
        await eventually(lambda: index() == {"slow", "kept", "doomed"}, "the index")
        await replace_watch(ducks, caplog)
        await ducks.delete("doomed")
        assert "doomed" in index()
        over.set()
        await eventually(lambda: index() == {"slow", "kept"}, "the ghost is gone")


@pytest.fixture
async def boss(
    webop_cluster: LocalCluster, ducks: Objects, caplog: pytest.LogCaptureFixture
) -> Boss:
    caplog.set_level("INFO", "webop")
    await asyncio.to_thread(provide_peerings, webop_cluster)
    meeting = Meeting(ducks.client, ducks.namespace)
    await meeting.create()
    return Boss(meeting, caplog)


class Lists:
    """Holds the lists of the ducks back, of some versions."""

    def __init__(self, relayed: Relay) -> None:
        self.relayed = relayed
        self.held: set[str] = set()
        self.begun: list[str] = []
        self.opened = asyncio.Event()
        relayed.watch = self.watch

    async def watch(self, request: httpx.Request) -> AsyncIterator[bytes]:
        if request.url.path.endswith("/ducks"):
            version = request.url.path.split("/")[3]
            self.begun.append(version)
            if version in self.held:
                await self.opened.wait()
        async for data in self.relayed.pass_watch_on(request):
            yield data


@pytest.fixture
async def lists(webop_cluster: LocalCluster) -> AsyncIterator[Lists]:
    async with relay(webop_cluster) as relayed:
        yield Lists(relayed)


@pytest.fixture
def run_peer(lists: Lists, registry: webop.OperatorRegistry, ducks: Objects) -> RunOperator:
    """Runs an operator that listens to the boss, and whose lists can be held back."""
    options: Any = {"beside": True, "standalone": False, "identity": "me"}
    return partial(operate, lists.relayed.info, registry, namespaces=[ducks.namespace], **options)


async def pause_while_others_act(ducks: Objects, boss: Boss) -> None:
    """Pause the operator; then there is an object as if another operator had handled it."""
    await ducks.create("mine")
    await ducks.wait_handled("mine")
    await boss.pause()
    await ducks.create("theirs", annotations=get_annotations(await ducks.get("mine")))


@pytest.mark.feature("PEE-17", "HND-20")
@pytest.mark.parametrize("is_paused", [False, True])
async def test_what_others_did_in_a_pause_is_resumed_though_the_watch_is_replaced_before_its_list(
    registry: webop.OperatorRegistry,
    run_peer: RunOperator,
    ducks: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    boss: Boss,
    lists: Lists,
    is_paused: bool,
) -> None:
    webop.on.create(ducks.kind.crd_name, registry=registry, id="create")(
        build_noting_handler(calls, "create")
    )
    webop.on.resume(ducks.kind.crd_name, registry=registry, id="resume")(
        build_noting_handler(calls, "resume")
    )
    async with run_peer():
        await pause_while_others_act(ducks, boss)
        if is_paused:
            await replace_watch(ducks, caplog)
        lists.held = {"v1"}
        lists.begun.clear()
        await boss.resume()
        await eventually(lambda: lists.begun, "the list after the pause")
        if not is_paused:
            await replace_watch(ducks, caplog)
            await eventually(lambda: len(lists.begun) > 1, "the list of the new watch")
        lists.opened.set()
        await calls.wait("theirs", "resume")
        await ducks.create("last")
        await ducks.wait_handled("last")
    assert calls.handlers("theirs") == ["resume"]
    assert calls.handlers("mine").count("create") == 1


@pytest.mark.feature("PEE-17", "HND-20")
async def test_what_others_did_in_a_pause_is_resumed_in_each_version_of_a_kind(
    registry: webop.OperatorRegistry,
    run_peer: RunOperator,
    ducks: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    boss: Boss,
    lists: Lists,
) -> None:
    """The first version has listed its objects again as the watches of both are replaced."""
    client, crd = ducks.client, ducks.kind.crd_name
    await change_kind(ducks, prefer_next_version)
    await wait_served(client, replace(ducks.kind.resource, version="v2"))

    webop.on.resume(ducks.kind.group, "v1", "ducks", registry=registry, id="first")(
        build_noting_handler(calls, "first")
    )
    webop.on.resume(ducks.kind.group, "v2", "ducks", registry=registry, id="second")(
        build_noting_handler(calls, "second")
    )
    async with run_peer():
        await pause_while_others_act(ducks, boss)
        lists.held = {"v2"}
        lists.begun.clear()
        await boss.resume()
        await calls.wait("theirs", "first")
        versions = (await client.get(CRDS, None, crd))["spec"]["versions"]
        versions = [version for found in versions for version in gain_status(found)]
        await client.patch(CRDS, None, crd, {"spec": {"versions": versions}})
        await eventually(lambda: caplog.text.count("Listing it again") == 2, "both are replaced")
        await eventually(lambda: lists.begun.count("v2") > 1, "the list of the new watch")
        lists.opened.set()
        await calls.wait("theirs", "second")
    assert sorted(calls.handlers("theirs")) == ["first", "second"]


@pytest.mark.feature("PEE-17", "HND-20")
async def test_what_others_did_in_a_pause_is_resumed_though_a_version_appears_before_the_list(
    registry: webop.OperatorRegistry,
    run_peer: RunOperator,
    ducks: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    boss: Boss,
    lists: Lists,
) -> None:
    webop.on.resume(ducks.kind.group, "v1", "ducks", registry=registry, id="first")(
        build_noting_handler(calls, "first")
    )
    webop.on.resume(ducks.kind.crd_name, registry=registry, id="any")(
        build_noting_handler(calls, "any")
    )
    async with run_peer():
        await pause_while_others_act(ducks, boss)
        lists.held = {"v1"}
        lists.begun.clear()
        await boss.resume()
        await eventually(lambda: lists.begun, "the list after the pause")
        await replace_watch(ducks, caplog, prefer_next_version)
        await eventually(lambda: "v2" in lists.begun and lists.begun.count("v1") > 1, "both lists")
        lists.opened.set()
        await calls.wait("theirs", "first")
        await calls.wait("theirs", "any")
    assert sorted(calls.handlers("theirs")) == ["any", "first"]


@pytest.mark.feature("HND-20")
async def test_new_objects_are_not_resumed_as_a_kind_goes_back_to_a_version_of_before_a_pause(
    registry: webop.OperatorRegistry,
    run_peer: RunOperator,
    ducks: Objects,
    calls: Calls,
    boss: Boss,
    lists: Lists,
) -> None:
    name = ducks.kind.crd_name

    webop.on.create(name, registry=registry, id="create")(build_noting_handler(calls, "create"))
    webop.on.resume(name, registry=registry, id="resume")(build_noting_handler(calls, "resume"))
    async with run_peer():
        await ducks.create("mine")
        await ducks.wait_handled("mine")
        await boss.pause()
        await change_kind(ducks, prefer_next_version)
        await boss.resume()
        await eventually(lambda: "v2" in lists.begun, "the list of v2")
        await ducks.create("second")
        await ducks.wait_handled("second")
        lists.held = {"v1"}
        lists.begun.clear()
        first, second = (await ducks.client.get(CRDS, None, name))["spec"]["versions"]
        versions = {"versions": [first, {**second, "served": False}]}
        await ducks.client.patch(CRDS, None, name, {"spec": versions})
        await eventually(lambda: "v1" in lists.begun, "the list of v1")
        await ducks.create("new")
        lists.opened.set()
        await ducks.wait_handled("new")
        await ducks.create("last")
        await ducks.wait_handled("last")
    assert calls.handlers("new") == ["create"]
