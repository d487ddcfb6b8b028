"""Conditions that handlers, daemons and timers set, whoever else changes the object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.kit.operators import Calls, Json, Kind, Objects, RunOperator
from webop.client.api import Client
from webop.objects.status_conditions import find_condition

if TYPE_CHECKING:
    from collections.abc import Callable


def has(name: str, reason: str) -> Callable[[Json], bool]:
    return lambda body: (find_condition(body, name) or {}).get("reason") == reason


@pytest.mark.parametrize("has_status", [False, True])
async def test_handlers_set_conditions_beside_those_of_others(
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

    @webop.on.create(objects.kind.plural)
    @webop.on.update(objects.kind.plural)
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


@pytest.mark.feature("RST-08")
async def test_a_status_that_the_schema_does_not_know_is_told_of(
    run_operator: RunOperator,
    client: Client,
    gizmos: Kind,
    webop_namespace: str,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.create("gizmos", id="fn")
    async def fn(patch: webop.Patch, **kwargs: Any) -> str:
        calls.note("fn", kwargs)
        patch.status.set_condition("Ready", True, reason="Fine")
        return "result"

    objects = Objects(client, gizmos, webop_namespace)
    async with run_operator():
        body = await objects.make("one")
        await objects.pass_fence()
    assert "status" not in body
    assert len(calls.of("one")) == 1
    warnings = [r.message for r in caplog.records if "inconsistencies" in r.message]
    for part in ("status.conditions", "status.fn", "x-kubernetes-preserve-unknown-fields"):
        assert any(part in warning for warning in warnings), part
