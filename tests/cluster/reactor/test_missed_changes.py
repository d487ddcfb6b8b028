"""Fields that change again while another handler retries: who is called for the state after it."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.operators import Calls, Objects, RunOperator, is_no_fence


class Gate:
    """A handler that retries until it is opened: for so long, the change is being handled."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.is_open = False

    async def fn(self, **kwargs: Any) -> None:
        self.calls.note("gate", kwargs)
        if not self.is_open:
            raise webop.TemporaryError("not yet", delay=0.1)

    async def wait(self) -> None:
        """Wait for retries: the other handlers have been called before them."""
        await self.calls.wait("one", "gate", len(self.calls.of("one", "gate")) + 3)


@pytest.fixture
def gate(calls: Calls) -> Gate:
    return Gate(calls)


@pytest.mark.feature("D-67", "SUB-11", "SUB-13")
@pytest.mark.parametrize("more", [{}, {"y": 2}], ids=["all", "field"])
async def test_a_sub_handler_is_called_when_its_field_is_undone_while_another_retries(
    run_operator: RunOperator, objects: Objects, gate: Gate, more: Any
) -> None:
    @webop.on.update("widgets", id="parent", when=is_no_fence)
    async def parent(**_: Any) -> None:
        webop.subhandler(id="child", field="spec.x")(gate.calls.noting("child"))
        webop.subhandler(id="gate")(gate.fn)

    async with run_operator():
        await objects.make("one", {"x": 1, "y": 1})
        await objects.patch("one", {"spec": {"x": 2, **more}})
        await gate.wait()
        await objects.patch("one", {"spec": {"x": 1}})
        await objects.pass_fence()
        await gate.wait()
        gate.is_open = True
        await objects.wait_handled("one")
    assert [call["new"] for call in gate.calls.of("one", "child")] == [2, 1]
