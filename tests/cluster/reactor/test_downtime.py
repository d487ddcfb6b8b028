"""Changes that come in the middle of a handling cycle while no operator runs."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.operators import Calls, Objects, get_progress, operate
from webop.client.auth.vault import ConnectionInfo


def declare_two(calls: Calls, *, is_failing: bool) -> webop.OperatorRegistry:
    """Return two handlers of creations and updates, of which the second may never succeed."""
    registry = webop.OperatorRegistry()

    async def done(**kwargs: Any) -> None:
        calls.note("done", kwargs)

    async def waiting(**kwargs: Any) -> None:
        calls.note("waiting", kwargs)
        if is_failing:
            raise webop.TemporaryError("not yet", delay=0.5)

    for decorator in (webop.on.create, webop.on.update):
        decorator("widgets", registry=registry, id="done")(done)
        decorator("widgets", registry=registry, id="waiting")(waiting)
    return registry


@pytest.mark.feature("D-67", "CON-05", "ERR-20")
@pytest.mark.parametrize("reason", ["creation", "update"])
async def test_who_was_done_hears_of_a_change_that_came_while_no_operator_ran(
    objects: Objects, info: ConnectionInfo, calls: Calls, reason: str
) -> None:
    namespaces = [objects.namespace]
    if reason == "update":
        async with operate(info, declare_two(calls, is_failing=False), namespaces=namespaces):
            await objects.make("a", {"value": 0})
    async with operate(info, declare_two(calls, is_failing=True), namespaces=namespaces):
        if reason == "update":
            await objects.patch("a", {"spec": {"value": 1}})
        else:
            await objects.create("a", {"value": 1})
        await objects.wait("a", lambda raw: {"done", "waiting"} <= get_progress(raw).keys())
    await objects.patch("a", {"spec": {"value": 2}})
    async with operate(info, declare_two(calls, is_failing=False), namespaces=namespaces):
        await objects.wait_handled("a")
        await objects.pass_fence()
    for handler in ("done", "waiting"):
        assert calls.of("a", handler)[-1]["spec"] == {"value": 2}, handler
