"""Patches that are denied, or are for an object that is gone: nothing is blocked by them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import webop
from tests.kit.http_relay import operate_behind
from tests.kit.obstacles import denying
from tests.kit.operators import (
    FINALIZER,
    Calls,
    Kind,
    Objects,
    RunOperator,
    build_settings,
    eventually,
)
from webop.client.api import Client
from webop.errors import APINotFoundError

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


@pytest.fixture
async def strict(objects: Objects) -> AsyncIterator[Objects]:
    """Objects whose label "forbidden" is denied by 403."""
    expression = "!has(object.metadata.labels) || !('forbidden' in object.metadata.labels)"
    async with denying(objects, expression, {"metadata": {"labels": {"forbidden": "x"}}}):
        yield objects


@pytest.mark.feature("PAT-10", "CON-04", "HND-18")
async def test_a_label_denied_by_a_policy_blocks_neither_updates_nor_the_deletion(
    registry: webop.OperatorRegistry,
    strict: Objects,
    run_operator: RunOperator,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.create("widgets", registry=registry, id="created")
    async def created(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("created", kwargs)
        patch.metadata.labels["forbidden"] = "yes"

    @webop.on.update("widgets", registry=registry, id="updated")
    async def updated(**kwargs: Any) -> None:
        calls.note("updated", kwargs)

    @webop.on.delete("widgets", registry=registry, id="deleted")
    async def deleted(**kwargs: Any) -> None:
        calls.note("deleted", kwargs)

    async with run_operator():
        await strict.create("a")
        await strict.wait_handled("a")
        await strict.patch("a", {"spec": {"x": 1}})
        await calls.wait("a", "updated")
        assert FINALIZER in (await strict.get("a"))["metadata"]["finalizers"]
        await strict.client.delete(strict.resource, strict.namespace, "a")
        await strict.wait_gone("a")
    assert calls.handlers("a") == ["created", "updated", "deleted"]
    assert caplog.text.count("/a. They are lost, without a retry") == 1
    assert "not in this house" in caplog.text


@pytest.mark.feature("PAT-01", "TMR-01")
async def test_what_handlers_want_is_written_though_the_records_do_not_fit(
    registry: webop.OperatorRegistry, objects: Objects, run_operator: RunOperator, calls: Calls
) -> None:
    @webop.on.create("widgets", registry=registry, id="created")
    async def created(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("created", kwargs)
        patch.spec["made"] = "yes"

    @webop.timer("widgets", registry=registry, id="timer", interval=0.2, initial_delay=0.5)
    async def timer(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("timer", kwargs)
        patch.status["count"] = len(calls.of("a", "timer"))

    async with run_operator():
        await objects.create("a", annotations={"example.com/big": "x" * (262144 - 20)})
        await objects.wait("a", lambda body: body["spec"].get("made"))
        await objects.wait("a", lambda body: body.get("status", {}).get("count", 0) > 2)
    assert calls.handlers("a").count("created") == 1


@pytest.mark.feature("CON-04", "TMR-01")
async def test_a_handler_is_not_called_again_as_its_denied_record_is_written_with_a_timers_value(
    registry: webop.OperatorRegistry, objects: Objects, calls: Calls, webop_cluster: LocalCluster
) -> None:
    """The value waits while the record is denied first; then the worker makes its next attempt."""
    asked = 0

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**kwargs: Any) -> None:
        calls.note("created", kwargs)

    @webop.timer("widgets", registry=registry, id="timer", interval=2, initial_delay=0.1)
    async def timer(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("timer", kwargs)
        patch.status["count"] = len(calls.of("a", "timer"))

    async def deny_records(request: httpx.Request) -> httpx.Response | None:
        is_record = request.method == "PATCH" and b"kopf.zalando.org/" in request.content
        if not is_record or FINALIZER.encode() in request.content:
            return None
        nonlocal asked
        asked += 1
        if asked == 1:
            await calls.wait("a", "timer")
            await asyncio.sleep(0.05)  # its value comes at once
        return httpx.Response(422, json={"kind": "Status", "code": 422, "message": "full"})

    settings = build_settings(batching={"error_delays": [0.3]})
    async with operate_behind(webop_cluster, deny_records, registry, objects.namespace, settings):
        await objects.create("a")
        await calls.wait("a", "timer", count=2)
    assert calls.handlers("a").count("created") == 1


@pytest.mark.feature("CON-01", "CON-04")
async def test_an_object_whose_state_cannot_be_stored_is_handled_on_from_memory(
    registry: webop.OperatorRegistry, objects: Objects, run_operator: RunOperator, calls: Calls
) -> None:
    """Every patch of the operator is denied; what the user does, is not."""

    @webop.on.create("widgets", registry=registry, id="created", retries=3)
    async def created(retry: int, **kwargs: Any) -> None:
        calls.note(f"created {retry}", kwargs)
        if not retry:
            raise webop.TemporaryError("once more", delay=0.5)

    @webop.on.update("widgets", registry=registry, id="updated")
    async def updated(diff: webop.Diff, **kwargs: Any) -> None:
        calls.note(f"updated {list(diff)}", kwargs)

    expression = (
        "!has(object.metadata.annotations) || "
        "!object.metadata.annotations.exists(key, key.startsWith('kopf'))"
    )
    denied = {"metadata": {"annotations": {"kopf.x/y": "z"}}}
    async with denying(objects, expression, denied), run_operator():
        await objects.create("a", {"x": 0})
        await calls.wait("a", "created 1")
        await objects.patch("a", {"spec": {"x": 1}})
        await eventually(lambda: len(calls.of("a")) == 3)
    change = "updated [('change', ('spec', 'x'), 0, 1)]"
    assert calls.handlers("a") == ["created 0", "created 1", change]


@pytest.mark.feature("CON-04", "RST-01")
@pytest.mark.parametrize("kind", ["widgets", "gadgets"])
async def test_a_result_never_lands_on_another_object_of_the_same_name(
    client: Client,
    registry: webop.OperatorRegistry,
    widgets: Kind,
    gadgets: Kind,
    webop_namespace: str,
    run_operator: RunOperator,
    kind: str,
) -> None:
    objects = Objects(client, {"widgets": widgets, "gadgets": gadgets}[kind], webop_namespace)
    begun: list[str] = []
    released = asyncio.Event()

    @webop.on.create(kind, registry=registry, id="fn")
    async def fn(uid: str, spec: webop.Spec, **_: Any) -> str:
        begun.append(uid)
        if spec["generation"] == 1:
            await released.wait()
        elif len(begun) == 2:
            raise webop.TemporaryError("The second one is retried.", delay=1)
        return f"result of {spec['generation']}"

    async with run_operator():
        first = await objects.create("a", {"generation": 1})
        await eventually(lambda: len(begun) == 1)
        await client.delete(objects.resource, objects.namespace, "a")
        for _ in range(500):
            try:
                second = await objects.create("a", {"generation": 2})
            except Exception:  # noqa: BLE001  the first one is still there
                await asyncio.sleep(0.01)
            else:
                break
        await eventually(lambda: len(begun) == 2)
        released.set()
        await eventually(lambda: len(begun) == 3)
        raw = await objects.wait_handled("a")
    assert raw["metadata"]["uid"] == second["metadata"]["uid"] != first["metadata"]["uid"]
    assert raw["status"] == {"fn": "result of 2"}
    assert begun == [first["metadata"]["uid"], *[second["metadata"]["uid"]] * 2]


@pytest.mark.feature("PAT-13")
async def test_nothing_is_written_for_an_object_that_is_gone(
    client: Client, registry: webop.OperatorRegistry, objects: Objects, run_operator: RunOperator
) -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(**_: Any) -> str:
        begun.set()
        await released.wait()
        return "too late"

    async with run_operator():
        await objects.create("a")
        await begun.wait()
        await client.delete(objects.resource, objects.namespace, "a")
        released.set()
        await objects.pass_fence()
    with pytest.raises(APINotFoundError):
        await objects.get("a")


@pytest.mark.feature("CFG-34")
async def test_handlers_see_no_managed_fields_after_own_patches_either(
    registry: webop.OperatorRegistry, objects: Objects, run_operator: RunOperator
) -> None:
    seen: list[bool] = []

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(retry: int, meta: webop.Meta, **_: Any) -> None:
        seen.append("managedFields" in meta)
        if not retry:
            raise webop.TemporaryError("again", delay=0)

    @webop.on.delete("widgets", registry=registry, id="finalizer")
    async def finalizer(**_: Any) -> None: ...

    async with run_operator():
        await objects.create("a")
        await objects.wait_handled("a")
    assert seen == [False, False]
