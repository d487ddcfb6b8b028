"""A watch that is replaced: the old one ends before the new one begins, indexes stay exact."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.operating import CRDS, Calls, Kind, Objects, build_settings, eventually, operate
from tests.reactor.relay import relay
from webop.client.api import Client
from webop.client.credentials import ConnectionInfo
from webop.reactor.observer import Scope
from webop.running import Operator, OperatorOptions

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Why = webop.DaemonStoppingReason
REPLACED = "it is listed anew"


class Crowd:
    """Counts who is at work on each object, and the most of them at once."""

    def __init__(self) -> None:
        self.present: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.entries: Counter[str] = Counter()

    @contextlib.contextmanager
    def enter(self, who: str) -> Iterator[None]:
        self.entries[who] += 1
        self.present[who] += 1
        self.most[who] = max(self.most[who], self.present[who])
        try:
            yield
        finally:
            self.present[who] -= 1


@pytest.fixture
async def ducks(client: Client, webop_namespace: str) -> Objects:
    """Objects of a kind of the test's own, to be changed."""
    kind = Kind(f"{webop_namespace}.replaced.webop.dev", "ducks", "Duck")
    await kind.define(client)
    return Objects(client, kind, webop_namespace)


async def gain_status(client: Client, kind: Kind) -> None:
    """Add the status endpoint to a kind."""
    crd = await client.get(CRDS, None, kind.crd_name)
    version = {**crd["spec"]["versions"][0], "subresources": {"status": {}}}
    await client.patch_merge(CRDS, None, kind.crd_name, {"spec": {"versions": [version]}})


async def prefer_next_version(client: Client, kind: Kind) -> None:
    """Add version v2 to a kind, which is preferred to v1."""
    crd = await client.get(CRDS, None, kind.crd_name)
    version = crd["spec"]["versions"][0]
    versions = [version, {**version, "name": "v2", "storage": False}]
    await client.patch_merge(CRDS, None, kind.crd_name, {"spec": {"versions": versions}})


CHANGES = pytest.mark.parametrize("change", [gain_status, prefer_next_version])


@CHANGES
async def test_no_two_handlers_and_no_two_daemons_are_at_one_object_when_its_kind_changes(
    registry: webop.OperatorRegistry,
    info: ConnectionInfo,
    client: Client,
    ducks: Objects,
    change: Any,
) -> None:
    crowd = Crowd()
    reasons: list[webop.DaemonStoppingReason | None] = []

    @webop.on.update(ducks.kind.crd_name, registry=registry, id="slow")
    async def slow(name: str, **_: Any) -> None:
        with crowd.enter(f"handler of {name}"):
            await asyncio.sleep(4 if crowd.entries[f"handler of {name}"] == 1 else 0)

    @webop.daemon(ducks.kind.crd_name, registry=registry, id="daemon")
    async def daemon(stopped: webop.DaemonStopped, name: str, **_: Any) -> None:
        with crowd.enter(f"daemon of {name}"):
            await stopped.wait()
            reasons.append(stopped.reason)
            await asyncio.sleep(1)  # it takes its time

    settings = build_settings(batching={"exit_timeout": 1.5})
    async with operate(info, registry, settings, namespaces=[ducks.namespace]):
        await ducks.create("one", {"a": 1})
        await ducks.wait_handled("one")
        await eventually(lambda: crowd.entries["daemon of one"] == 1, "the daemon runs")
        await ducks.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: crowd.present["handler of one"] == 1, "the handler runs")
        await change(client, ducks.kind)
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
    info: ConnectionInfo,
    client: Client,
    ducks: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "webop")
    crowd = Crowd()
    released = threading.Event()

    @webop.on.update(ducks.kind.crd_name, registry=registry, id="slow")
    def slow(name: str, **_: Any) -> None:
        with crowd.enter(f"handler of {name}"):
            if name == "one":
                released.wait(20)

    settings = build_settings(batching={"exit_timeout": 0.2})
    try:
        async with operate(info, registry, settings, namespaces=[ducks.namespace]):
            for name in ("one", "two"):
                await ducks.create(name, {"a": 1})
                await ducks.wait_handled(name)
            await ducks.patch("one", {"spec": {"a": 2}})
            await eventually(lambda: crowd.present["handler of one"] == 1, "the handler runs")
            await gain_status(client, ducks.kind)
            await eventually(lambda: REPLACED in caplog.text, "the watch is replaced")
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
    client: Client,
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
            await gain_status(client, ducks.kind)
            await eventually(lambda: "do not end although they are cancelled" in caplog.text)
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


async def test_a_handler_that_ends_in_time_is_not_repeated_when_its_kind_changes(
    registry: webop.OperatorRegistry,
    info: ConnectionInfo,
    client: Client,
    ducks: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = asyncio.Event()

    @webop.on.create(ducks.kind.crd_name, registry=registry, id="created")
    async def created(**kwargs: Any) -> None:
        calls.note("created", kwargs)
        await ended.wait()

    caplog.set_level("INFO", "webop")
    settings = build_settings(batching={"exit_timeout": 30})
    async with operate(info, registry, settings, namespaces=[ducks.namespace]):
        await ducks.create("one")
        await calls.wait("one")
        await gain_status(client, ducks.kind)
        await eventually(lambda: REPLACED in caplog.text, REPLACED)
        await ducks.create("two")
        ended.set()
        for name in ("one", "two"):
            await ducks.wait_handled(name)
    assert (len(calls.of("one")), len(calls.of("two"))) == (1, 1)


@CHANGES
async def test_an_index_has_neither_ghosts_nor_gaps_when_its_kind_changes(
    registry: webop.OperatorRegistry,
    info: ConnectionInfo,
    client: Client,
    ducks: Objects,
    change: Any,
) -> None:
    crowd = Crowd()
    gaps: list[list[str]] = []
    index: Any = None
    served: set[tuple[str, bool]] = set()

    @webop.on.startup(registry=registry)
    def look(names: Any, **_: Any) -> None:
        nonlocal index
        index = names

    @webop.index(ducks.kind.crd_name, registry=registry, id="names")
    async def names(name: str, resource: webop.Resource, **_: Any) -> dict[str, str]:
        served.add((resource.version, "status" in resource.subresources))
        return {name: name}

    @webop.daemon(ducks.kind.crd_name, registry=registry, id="lingering", field="spec.lingers")
    async def lingering(stopped: webop.DaemonStopped, name: str, **_: Any) -> None:
        with crowd.enter(name):
            await stopped.wait()
            await asyncio.sleep(1)

    async def watch_for_gaps() -> None:
        while True:
            if not {"kept", "lingerer"} <= set(index):
                gaps.append(sorted(index))
            await asyncio.sleep(0.005)

    for name in ("kept", "doomed"):
        await ducks.create(name)
    await ducks.create("lingerer", {"lingers": True})
    async with operate(info, registry, namespaces=[ducks.namespace]):
        await eventually(lambda: set(index or ()) == {"kept", "doomed", "lingerer"}, "the index")
        await eventually(lambda: crowd.present["lingerer"] == 1, "the daemon runs")
        watching = asyncio.create_task(watch_for_gaps())
        await change(client, ducks.kind)
        await ducks.delete("doomed")  # before, while or after the old watch ends
        await eventually(lambda: crowd.entries["lingerer"] == 2, "the daemon runs again")
        await eventually(lambda: crowd.present["lingerer"] == 1, "the former one has ended")
        await ducks.create("new")
        await eventually(lambda: set(index) == {"kept", "lingerer", "new"}, "the index is exact")
        assert len(served) == 2
        watching.cancel()
    assert not gaps


async def test_what_is_deleted_while_the_old_watch_ends_leaves_the_index(
    registry: webop.OperatorRegistry,
    info: ConnectionInfo,
    client: Client,
    ducks: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    started, over = asyncio.Event(), asyncio.Event()
    index: Any = None

    @webop.on.startup(registry=registry)
    def look(names: Any, **_: Any) -> None:
        nonlocal index
        index = names

    @webop.index(ducks.kind.crd_name, registry=registry, id="names")
    async def names(name: str, **_: Any) -> dict[str, str]:
        return {name: name}

    @webop.on.create(ducks.kind.crd_name, registry=registry, id="slow", field="spec.slow")
    async def slow(**_: Any) -> None:
        started.set()
        await over.wait()

    caplog.set_level("INFO", "webop")
    settings = build_settings(batching={"exit_timeout": 60})
    async with operate(info, registry, settings, namespaces=[ducks.namespace]):
        await ducks.create("slow", {"slow": True})
        for name in ("kept", "doomed"):
            await ducks.create(name)
        await started.wait()
        await eventually(lambda: set(index) == {"slow", "kept", "doomed"}, "the index")
        await gain_status(client, ducks.kind)
        await eventually(lambda: REPLACED in caplog.text, REPLACED)
        await ducks.delete("doomed")
        assert "doomed" in index
        over.set()
        await eventually(lambda: set(index) == {"slow", "kept"}, "the ghost is gone")


async def test_an_index_is_exact_after_credentials_were_lost_and_found(
    registry: webop.OperatorRegistry,
    webop_cluster: LocalCluster,
    objects: Objects,
    calls: Calls,
) -> None:
    crowd = Crowd()
    index: Any = None

    @webop.on.startup(registry=registry)
    def look(names: Any, **_: Any) -> None:
        nonlocal index
        index = names

    @webop.index("widgets", registry=registry, id="names")
    async def names(name: str, **_: Any) -> dict[str, str]:
        return {name: name}

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(names: webop.Index[str, str], **kwargs: Any) -> None:
        calls.note("created", kwargs, seen=set(names))

    @webop.daemon("widgets", registry=registry, id="daemon")
    async def daemon(stopped: webop.DaemonStopped, name: str, **_: Any) -> None:
        with crowd.enter(name):
            await stopped.wait()
            await asyncio.sleep(0.5)

    @webop.on.event(f"absent.{objects.namespace}.webop.dev", registry=registry, id="absent")
    async def absent(**_: Any) -> None: ...  # has the cluster asked about kinds again and again

    async with relay(webop_cluster) as relayed:

        @webop.on.login(registry=registry)
        async def login(**_: Any) -> ConnectionInfo | None:
            return None if relayed.is_locked else relayed.info

        operator = Operator(
            OperatorOptions(
                registry=registry,
                settings=build_settings(networking={"error_backoffs": [0.1]}),
                scope=Scope(clusterwide=False, patterns=(objects.namespace,)),
                is_hosted=True,
            )
        )
        running = asyncio.create_task(operator.run())
        try:
            for name in ("kept", "doomed"):
                await objects.create(name)
                await objects.wait_handled(name)
            await eventually(lambda: crowd.present.total() == 2, "the daemons run")
            relayed.lock()
            await eventually(lambda: operator.observer is None, "the work has ended")
            await eventually(lambda: crowd.present.total() == 0, "the daemons end")
            assert set(index) == {"kept", "doomed"}  # for admission, which goes on
            await objects.patch("doomed", {"metadata": {"finalizers": None}})
            await objects.delete("doomed")
            await objects.create("new")
            relayed.is_locked = False
            (call,) = await calls.wait("new")
            await eventually(lambda: crowd.present.total() == 2, "the daemons run again")
        finally:
            running.cancel()
            await asyncio.wait({running})
    assert call["seen"] == {"kept", "new"}
    assert set(crowd.most.values()) == {1}
