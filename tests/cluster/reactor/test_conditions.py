"""Conditions that handlers, daemons and timers set, whoever else changes the object."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.kit.operators import Json, Kind, Objects, RunOperator, connect
from webop.client.api import Client
from webop.objects.conditions import find_condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from webop.controlplane.cluster import LocalCluster


def has(name: str, reason: str) -> Callable[[Json], bool]:
    return lambda body: (find_condition(body, name) or {}).get("reason") == reason


@pytest.mark.parametrize("has_status", [False, True])
async def test_handlers_set_conditions_beside_those_of_others(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    client: Client,
    widgets: Kind,
    gadgets: Kind,
    webop_namespace: str,
    *,
    has_status: bool,
) -> None:
    objects = Objects(client, gadgets if has_status else widgets, webop_namespace)
    theirs = {"type": "Theirs", "status": "True", "reason": "Other"}

    @webop.on.create(objects.kind.plural, registry=registry)
    @webop.on.update(objects.kind.plural, registry=registry)
    async def fn(
        name: str, spec: webop.Spec, patch: webop.Patch, client: webop.AsyncClient, **_: Any
    ) -> None:
        if spec["a"] == 1:  # somebody else writes while the handler runs
            status = {"status": {"conditions": [theirs]}}
            subresource = "status" if has_status else None
            kind, here = objects.kind.plural, objects.namespace
            await client.patch(kind, name, status, namespace=here, subresource=subresource)
        patch.status["seen"] = spec["a"]
        patch.status.set_condition("Ready", True, reason=f"Seen{spec['a']}")

    async with run_operator():
        await objects.create("one", {"a": 1})
        first = await objects.wait("one", has("Ready", "Seen1"))
        ready = find_condition(first, "Ready")
        assert find_condition(first, "Theirs") == theirs
        generation = first["metadata"]["generation"] if has_status else None
        assert ready.get("observedGeneration") == generation
        await objects.patch("one", {"spec": {"a": 2}})
        second = await objects.wait("one", has("Ready", "Seen2"))
        renewed = find_condition(second, "Ready")
        assert renewed["lastTransitionTime"] == ready["lastTransitionTime"]
        assert renewed.get("observedGeneration") == (2 if has_status else None)
        assert second["status"]["seen"] == 2


@pytest.mark.parametrize("is_at_once", [True, False], ids=["applied", "at the end"])
async def test_a_daemon_sets_a_condition_although_the_object_changes_at_that_moment(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    webop_cluster: LocalCluster,
    *,
    is_at_once: bool,
) -> None:
    rivals = 0

    async def disturb() -> None:
        async with connect(webop_cluster) as other:
            theirs = Objects(other, objects.kind, objects.namespace)
            await theirs.patch("one", {"metadata": {"labels": {"rival": "1"}}})

    @webop.daemon("widgets", registry=registry)
    def fn(patch: webop.Patch, stopped: webop.DaemonStopped, **_: Any) -> None:
        def wait_for_rival(_: webop.RawBody) -> None:
            nonlocal rivals
            rivals += 1
            if rivals == 1:  # the object changes after it was read and before it is written
                rival = threading.Thread(target=asyncio.run, args=[disturb()])
                rival.start()
                rival.join()

        patch.fns.append(wait_for_rival)
        patch.status.set_condition("Ready", False, reason="Starting")
        if is_at_once:
            patch.apply()
            stopped.wait(60)

    async with run_operator():
        await objects.create("one")
        body = await objects.wait("one", has("Ready", "Starting"), timeout=10)
    assert rivals > 1
    assert body["metadata"]["labels"]["rival"] == "1"


async def test_a_condition_is_set_although_a_function_of_another_handler_fails(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(body: webop.RawBody) -> None:
        body["spec"]["half"] = "done"
        raise KeyError("absent")

    @webop.on.create("widgets", registry=registry)
    async def first(patch: webop.Patch, **_: Any) -> None:
        patch.status.set_condition("Early", True, reason="Fine")
        patch.fns.append(fail)

    @webop.on.create("widgets", registry=registry)
    async def second(patch: webop.Patch, **_: Any) -> None:
        patch.status.set_condition("Late", True, reason="Fine")

    async with run_operator():
        await objects.create("one")
        body = await objects.wait("one", has("Late", "Fine"), timeout=10)
    conditions = body["status"]["conditions"]
    assert [condition["type"] for condition in conditions] == ["Early", "Late"]
    assert body["spec"] == {}
    assert caplog.text.count("failed and is skipped") == 1


async def test_a_condition_that_the_schema_does_not_know_is_told_of(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    client: Client,
    gizmos: Kind,
    webop_namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.create("gizmos", registry=registry)
    async def fn(patch: webop.Patch, **_: Any) -> None:
        patch.status.set_condition("Ready", True, reason="Fine")

    objects = Objects(client, gizmos, webop_namespace)
    async with run_operator():
        await objects.create("one")
        await objects.wait_handled("one")
        await objects.pass_fence()
    warning = next(r.message for r in caplog.records if "inconsistencies" in r.message)
    assert "dropped status.conditions of" in warning
