"""Credentials that are lost and found while work is being done about objects."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.operating import Objects, RunOperator, build_settings, eventually
from tests.reactor.relay import Relay, relay
from webop.client.credentials import ConnectionInfo
from webop.reactor.observer import Scope
from webop.running import Operator, OperatorOptions

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


def _prepare(
    registry: webop.OperatorRegistry, objects: Objects, relayed: Relay, **sections: Any
) -> Operator:
    @webop.on.login(registry=registry)
    async def login(**_: Any) -> ConnectionInfo | None:
        return None if relayed.is_locked else relayed.info

    @webop.on.event(f"absent.{objects.namespace}.webop.dev", registry=registry, id="absent")
    async def absent(**_: Any) -> None: ...  # has the cluster asked about kinds again and again

    settings = build_settings(
        networking={"error_backoffs": [0.1]}, batching={"exit_timeout": 0.2}, **sections
    )
    return Operator(
        OperatorOptions(
            registry=registry,
            settings=settings,
            scope=Scope(clusterwide=False, patterns=(objects.namespace,)),
            is_hosted=True,
        )
    )


async def test_a_thread_that_outlives_its_credentials_keeps_its_object_to_itself(
    registry: webop.OperatorRegistry, webop_cluster: LocalCluster, objects: Objects
) -> None:
    present: Counter[str] = Counter()
    most: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    released = threading.Event()

    @webop.on.update("widgets", registry=registry, id="slow")
    def slow(name: str, **_: Any) -> None:
        entries[name] += 1
        present[name] += 1
        most[name] = max(most[name], present[name])
        if name == "one":
            released.wait(30)
        present[name] -= 1

    async with relay(webop_cluster) as relayed:
        operator = _prepare(registry, objects, relayed)
        running = asyncio.create_task(operator.run())
        try:
            for name in ("one", "two"):
                await objects.create(name, {"a": 1})
                await objects.wait_handled(name)
            await objects.patch("one", {"spec": {"a": 2}})
            await eventually(lambda: present["one"] == 1, "the handler runs")
            relayed.lock()
            await eventually(lambda: operator.observer is None, "the work has ended")
            relayed.is_locked = False
            await objects.patch("two", {"spec": {"a": 2}})
            await eventually(lambda: entries["two"] == 1, "others are handled")
            await asyncio.sleep(0.5)
            assert entries["one"] == 1
            released.set()
            await objects.wait_handled("one")
        finally:
            released.set()
            running.cancel()
            await asyncio.wait({running})
    assert set(most.values()) == {1}


async def test_an_object_is_left_alone_until_the_last_of_its_threads_has_ended(
    registry: webop.OperatorRegistry, webop_cluster: LocalCluster, objects: Objects
) -> None:
    entries: Counter[str] = Counter()
    handler_released, daemon_released = threading.Event(), threading.Event()

    @webop.on.update("widgets", registry=registry, id="slow")
    def slow(name: str, **_: Any) -> None:
        entries[name] += 1
        handler_released.wait(60)

    @webop.daemon("widgets", registry=registry, id="stubborn", field="spec.a")
    def stubborn(name: str, **_: Any) -> None:
        entries[f"daemon of {name}"] += 1
        daemon_released.wait(60)

    async with relay(webop_cluster) as relayed:
        operator = _prepare(registry, objects, relayed)
        running = asyncio.create_task(operator.run())
        try:
            await objects.create("one", {"a": 1})
            await objects.wait_handled("one")
            await eventually(lambda: entries["daemon of one"] == 1, "the daemon runs")
            await objects.patch("one", {"spec": {"a": 2}})
            await eventually(lambda: entries["one"] == 1, "the handler runs")
            relayed.lock()
            await eventually(lambda: operator.observer is None, "the work has ended")
            relayed.is_locked = False
            daemon_released.set()
            await eventually(lambda: operator.observer is not None, "the work has begun again")
            await objects.create("two", {"a": 2})
            await objects.wait_handled("two")
            await asyncio.sleep(0.5)
            assert entries["one"] == 1
            handler_released.set()
            await objects.wait_handled("one")
        finally:
            handler_released.set()
            daemon_released.set()
            running.cancel()
            await asyncio.wait({running})


async def _lose_credentials(operator: Operator, relayed: Relay, meanwhile: Any = None) -> None:
    relayed.lock()
    await eventually(lambda: operator.observer is None, "the work has ended")
    if meanwhile is not None:
        await meanwhile
    relayed.is_locked = False
    await eventually(lambda: operator.observer is not None, "the work has begun again")


async def test_objects_are_resumed_once_however_often_credentials_are_lost(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    webop_cluster: LocalCluster,
    objects: Objects,
) -> None:
    resumed: Counter[str] = Counter()
    is_allowed = False

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**_: Any) -> None: ...

    async with run_operator():
        for name in ("old", "pending"):
            await objects.create(name)
            await objects.wait_handled(name)

    @webop.on.resume("widgets", registry=registry, id="resumed")
    async def resume(name: str, **_: Any) -> None:
        resumed[name] += 1
        if name == "pending" and not is_allowed:
            raise webop.TemporaryError("not yet", delay=0.2)

    async with relay(webop_cluster) as relayed:
        operator = _prepare(registry, objects, relayed)
        running = asyncio.create_task(operator.run())
        try:
            await eventually(lambda: resumed["old"] and resumed["pending"], "they are resumed")
            await objects.create("new")
            await objects.wait_handled("new")
            await _lose_credentials(operator, relayed)
            before, is_allowed = resumed["pending"], True
            await eventually(lambda: resumed["pending"] > before, "the attempts go on")
            await _lose_credentials(operator, relayed)
            await objects.create("newer")
            await objects.wait_handled("newer")
        finally:
            running.cancel()
            await asyncio.wait({running})
    assert resumed == {"old": 1, "pending": before + 1}


async def test_nothing_is_remembered_of_objects_that_are_deleted_while_there_are_no_credentials(
    registry: webop.OperatorRegistry, webop_cluster: LocalCluster, objects: Objects
) -> None:
    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**_: Any) -> None: ...

    async with relay(webop_cluster) as relayed:
        operator = _prepare(registry, objects, relayed)
        running = asyncio.create_task(operator.run())
        try:
            for name in ("one", "two", "three"):
                await objects.create(name)
                await objects.wait_handled(name)
            assert len(operator.context.memos) == 3
            await _lose_credentials(operator, relayed, objects.delete("two"))
            await objects.create("four")
            await objects.wait_handled("four")
            await eventually(lambda: len(operator.context.memos) == 3, "it is forgotten")
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_a_login_that_brings_nothing_for_once_does_not_end_a_lease_that_is_held(
    registry: webop.OperatorRegistry,
    webop_cluster: LocalCluster,
    objects: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries: Counter[str] = Counter()
    released = threading.Event()

    @webop.on.create("widgets", registry=registry, id="slow")
    def slow(name: str, **_: Any) -> None:
        entries[name] += 1
        released.wait(30)

    leadership = {
        "lease_name": "held",
        "lease_namespace": objects.namespace,
        "retry_period": 0.5,
        "exits_when_stuck": False,  # it is the test that would be ended
    }
    async with relay(webop_cluster) as relayed:
        operator = _prepare(registry, objects, relayed, leadership=leadership)
        running = asyncio.create_task(operator.run())
        try:
            await objects.create("one", {"a": 1})
            await eventually(lambda: entries["one"] == 1, "the handler runs")
            relayed.lock()
            await eventually(lambda: operator.observer is None, "the work has ended")
            relayed.is_locked = False
            await eventually(lambda: operator.observer is not None, "the work has begun again")
            assert "work goes on that cannot be stopped" not in caplog.text
            released.set()
            await objects.wait_handled("one")
        finally:
            released.set()
            running.cancel()
            await asyncio.wait({running})
