"""Children that the API server refuses, and calls that fail: told at once, and no other waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest

import webop
from tests.cluster.reconcilers.conftest import Builder, Maps, build_map
from tests.kit.http_relay import Relay
from tests.kit.operators import (
    Json,
    Objects,
    RunOperator,
    build_settings,
    is_no_fence,
    wait_for_events,
)
from tests.kit.waiting import eventually
from webop.client.api import Client

_SOON = 5.0  # seconds; what waits for retries of requests takes 50


async def wait_soon(maps: Maps, name: str) -> None:
    """Wait for a child that must not have to wait for others."""
    began = asyncio.get_running_loop().time()
    await maps.wait(name, bool)
    assert asyncio.get_running_loop().time() - began < _SOON


async def test_a_typo_in_a_child_is_told_at_once_and_no_other_parent_waits(
    objects: Objects, maps: Maps, run_operator: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, name: str, spec: webop.Spec, **_: Any) -> None:
        await children.apply({**build_map(name, {}), spec["field"]: {"a": "b"}})

    bad = [f"bad-{number}" for number in range(35)]
    async with run_operator(build_settings(posting={"enabled": True})):
        await objects.pass_fence()
        await asyncio.gather(*(objects.create(name, {"field": "dta"}) for name in bad))
        await objects.create("good", {"field": "data"})
        await wait_soon(maps, "good")
        (event,) = await wait_for_events(objects, "bad-34", bool)
        assert (event["type"], event["reason"]) == ("Warning", "HandlerRetry")
        assert ".dta: field not declared in schema" in event["message"]
        await objects.patch("bad-0", {"spec": {"field": "data"}})
        await wait_soon(maps, "bad-0")
    assert "Retrying in" not in caplog.text  # the client, as in an outage


async def test_a_call_that_hangs_longer_than_its_timeout_is_followed_by_another(
    objects: Objects, run_operator: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:
    retries = list[int]()

    @webop.reconcile("widgets", timeout=0.3, when=is_no_fence)
    async def build(retry: int, **_: Any) -> None:
        retries.append(retry)
        if retry == 0:
            await asyncio.sleep(3600)
        if retry == 1:
            raise ValueError("its pause is longer than the timeout")

    async with run_operator():
        await objects.create("one")
        await eventually(lambda: len(retries) >= 3, "a call after the failures")
    assert retries == [0, 1, 2]
    assert "It did not end within timeout=0.3 s. Retry 1 in" in caplog.text
    assert "for good" not in caplog.text


async def test_mapped_objects_call_the_reconciler_and_no_parent_stays_stale_if_mapping_fails_once(
    objects: Objects, maps: Maps, run_operator: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:
    calls, failures = Builder(), [ValueError("not yet"), None, "site"]

    def users(labels: Any, **_: Any) -> Any:
        if "used-by" not in labels:
            return []
        failure = failures.pop(0)
        if isinstance(failure, Exception):
            raise failure
        return 5 if failure is None else failure

    def is_called_more_often_than(number: int, name: str) -> bool:
        return len(calls.why(name)) > number

    decorate = webop.reconcile("widgets", watches={"configmaps": users}, when=is_no_fence)
    decorate(calls.build)
    async with run_operator():
        await objects.pass_fence()
        await objects.create("site")
        await objects.create("other")
        await calls.until_called("other", "created")
        await objects.pass_fence()
        for number in range(1, 3):  # it raises, then returns no names
            await maps.create(f"settings-{number}", {}, labels={"used-by": "site"})
            for name in ("site", "other"):
                await eventually(partial(is_called_more_often_than, number, name))
        await maps.create("settings-3", {}, labels={"used-by": "site"})
        await eventually(lambda: len(calls.why("site")) == 4)
        assert calls.why("site")[-1] == ("configmaps",)
        failures.append("site")
        await maps.delete("settings-3")
        await eventually(lambda: len(calls.why("site")) == 5, "a call for the deletion")
    assert len(calls.why("other")) == 3
    assert "The reconciler is called for all of its objects" in caplog.text


DEPLOYMENTS = webop.Resource("apps", "v1", "deployments", kind="Deployment", namespaced=True)


def build_deployment(name: str, spec: Json) -> Json:
    """Return a Deployment, without its namespace."""
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    content = {"selector": {"matchLabels": labels}, "template": pod, **spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": content,
    }


async def test_a_child_that_was_read_can_be_changed_and_applied_and_a_restart_writes_nothing(
    objects: Objects, client: Client, run_operator: RunOperator
) -> None:
    written = list[bool]()

    @webop.reconcile("widgets", owns=["deployments.apps"], when=is_no_fence)
    async def build(children: webop.Children, name: str, spec: webop.Spec, **_: Any) -> None:
        child = await children.get("deployments.apps", name) or build_deployment(name, {})
        child["metadata"] |= {"finalizers": [], "labels": {}}
        child["spec"]["replicas"] = spec["replicas"]
        child.setdefault("status", {})["phase"] = "none"
        written.append(bool(await children.apply(child)))

    async def has(number: int) -> bool:
        found = await client.get(DEPLOYMENTS, objects.namespace, "site")
        return bool(found["spec"]["replicas"] == number)

    async with run_operator():
        await objects.create("site", {"replicas": 1})
        await eventually(partial(has, 1), ignoring=webop.APIError)
        await objects.patch("site", {"spec": {"replicas": 2}})
        await eventually(partial(has, 2))
    written.clear()
    async with run_operator():
        await eventually(lambda: bool(written))
        await objects.pass_fence()
    assert written == [False]


async def test_the_rest_of_another_strategy_is_named_with_what_removes_it(
    objects: Objects, client: Client, run_operator: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.reconcile("widgets", owns=["deployments.apps"], when=is_no_fence)
    async def build(children: webop.Children, name: str, spec: webop.Spec, **_: Any) -> None:
        strategy = {"strategy": {"type": spec["strategy"]}}
        await children.apply(build_deployment(name, strategy))

    async def find_strategy() -> Json:
        found = await client.get(DEPLOYMENTS, objects.namespace, "site")
        strategy: Json = found["spec"]["strategy"]
        return strategy

    async with run_operator():
        await objects.create("site", {"strategy": "RollingUpdate"})
        await eventually(find_strategy, ignoring=webop.APIError)
        await objects.patch("site", {"spec": {"strategy": "Recreate"}})
        await eventually(lambda: "set it to None by client.patch()" in caplog.text)
        strategy = {"type": "Recreate", "rollingUpdate": None}
        patch = {"spec": {"strategy": strategy}}
        await client.patch(DEPLOYMENTS, objects.namespace, "site", patch)
        await objects.patch("site", {"spec": {"again": "yes"}})
        await eventually(find_strategy, check=lambda found: found == {"type": "Recreate"})
        await objects.pass_fence()


async def test_a_patch_is_sent_only_if_it_changes_what_the_object_says(
    objects: Objects, relayed: Relay, run_relayed: RunOperator
) -> None:
    """The known state can be older than what the function, or somebody else, has written."""
    calls, may_pass = list[str](), asyncio.Event()
    may_pass.set()

    async def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        async for data in relayed.pass_watch_on(request):
            await may_pass.wait()
            yield data

    @webop.reconcile("widgets", when=is_no_fence)
    async def build(
        name: str, namespace: str, patch: webop.Patch, client: webop.AsyncClient, **_: Any
    ) -> None:
        if len(calls) == 2:
            may_pass.clear()
            busy = {"status": {"phase": "Busy"}}
            await client.patch(objects.resource, name, busy, namespace=namespace)
        patch.status["phase"] = "Ready"
        calls.append(name)

    def has_called(number: int) -> bool:
        return len(calls) == number

    def is_ready(body: Json) -> bool:
        return bool(body.get("status", {}).get("phase") == "Ready")

    relayed.watch = watch
    async with run_relayed():
        await objects.create("one")
        await objects.wait("one", is_ready)
        await objects.pass_fence()
        for number, count in ((2, 1), (3, 3)):
            await objects.patch("one", {"spec": {"a": number}})
            await eventually(partial(has_called, number), "a call for the change")
            may_pass.set()
            await objects.pass_fence()
            assert len(relayed.list_requests("PATCH", "one")) == count
    assert is_ready(await objects.get("one"))
