"""Patches that are denied, or are for an object that is gone: nothing is blocked by them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import webop
from tests.kit.obstacles import denying
from tests.kit.operators import (
    FINALIZER,
    Calls,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
)


@pytest.fixture
async def strict(objects: Objects) -> AsyncIterator[Objects]:
    """Objects whose label "forbidden" is denied by 403."""
    expression = "!has(object.metadata.labels) || !('forbidden' in object.metadata.labels)"
    async with denying(objects, expression, {"metadata": {"labels": {"forbidden": "x"}}}):
        yield objects


@pytest.mark.feature("PAT-10", "CON-04", "HND-18")
async def test_a_label_denied_by_a_policy_blocks_neither_updates_nor_the_deletion(
    strict: Objects, run_operator: RunOperator, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.on.create("widgets", id="created")
    async def created(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("created", kwargs)
        patch.metadata.labels["forbidden"] = "yes"

    webop.on.update("widgets", id="updated")(calls.noting("updated"))
    webop.on.delete("widgets", id="deleted")(calls.noting("deleted"))
    async with run_operator():
        await strict.make("a")
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
    objects: Objects, run_operator: RunOperator, calls: Calls
) -> None:
    @webop.on.create("widgets", id="created")
    async def created(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("created", kwargs)
        patch.spec["made"] = "yes"

    @webop.timer("widgets", id="timer", interval=0.2, initial_delay=0.5)
    async def timer(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("timer", kwargs)
        patch.status["count"] = len(calls.of("a", "timer"))

    async with run_operator():
        await objects.create("a", annotations={"example.com/big": "x" * (262144 - 20)})
        await objects.wait("a", lambda body: body["spec"].get("made"))
        await objects.wait("a", lambda body: body.get("status", {}).get("count", 0) > 2)
    assert calls.handlers("a").count("created") == 1


@pytest.mark.feature("CFG-18")
async def test_objects_whose_records_a_policy_denies_hold_up_no_others(
    objects: Objects, run_operator: RunOperator, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even with a single worker; and their handlers are not called again."""
    denied = [f"denied-{number}" for number in range(60)]
    expression = (
        "!has(object.spec.strict) || !has(object.metadata.annotations) || "
        "!object.metadata.annotations.exists(key, key.startsWith('kopf.zalando.org/'))"
    )
    records = {"annotations": {"kopf.zalando.org/x": "y"}}
    webop.on.create("widgets", id="created")(calls.noting("created"))
    webop.on.update("widgets", id="updated")(calls.noting("updated"))
    async with denying(objects, expression, {"spec": {"strict": True}, "metadata": records}):
        for name in denied:
            await objects.create(name, {"strict": True})
        async with run_operator(build_settings(batching={"worker_limit": 1})):
            for name in denied:
                await calls.wait(name)
            await objects.make("good")
            await objects.patch(denied[0], {"spec": {"x": 1}})
            await calls.wait(denied[0], "updated")
            await objects.change("good", {"spec": {"x": 1}})
    assert calls.handlers(denied[0]) == calls.handlers("good") == ["created", "updated"]
    assert len(calls) == len(denied) + 3
    assert "A restart repeats them" in caplog.text


@pytest.mark.feature("CFG-34")
async def test_handlers_see_no_managed_fields_after_own_patches_either(
    objects: Objects, run_operator: RunOperator
) -> None:
    seen: list[bool] = []

    @webop.on.create("widgets", id="fn")
    async def fn(retry: int, meta: webop.Meta, **_: Any) -> None:
        seen.append("managedFields" in meta)
        if not retry:
            raise webop.TemporaryError("again", delay=0)

    webop.on.delete("widgets", id="finalizer")(do_nothing)
    async with run_operator():
        await objects.make("a")
    assert seen == [False, False]
