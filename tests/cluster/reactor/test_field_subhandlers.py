"""Sub-handlers of field handlers: what they get to know of the change."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.operators import Calls, Objects, RunOperator


@pytest.mark.feature("SUB-01", "SUB-02", "SUB-17", "EVT-16", "HND-24")
async def test_sub_handlers_of_a_field_handler_see_the_change_of_its_field(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.field("widgets", id="parent", field="spec.a")
    async def parent(**_: Any) -> None:
        @webop.subhandler(id="child")
        async def child(**kwargs: Any) -> None:
            calls.note("child", kwargs, diff=kwargs["diff"])

            async def grandchild(**kwargs: Any) -> None:
                calls.note("grandchild", kwargs, diff=kwargs["diff"])

            await webop.execute(fns={"grandchild": grandchild})

        @webop.subhandler(id="other", field="spec.b")
        async def other(**kwargs: Any) -> None:
            calls.note("other", kwargs, diff=kwargs["diff"])

    async with run_operator():
        await objects.make("one", {"a": {"x": 1}, "b": 1})
        calls.items.clear()
        await objects.patch("one", {"spec": {"a": {"x": 2}, "b": 2}})
        await calls.wait("one", "other")
    seen = {call["handler"]: (call["old"], call["new"], call["diff"]) for call in calls.of("one")}
    change = ({"x": 1}, {"x": 2}, (("change", ("x",), 1, 2),))
    assert seen == {"child": change, "grandchild": change, "other": (1, 2, (("change", (), 1, 2),))}
