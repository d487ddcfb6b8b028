"""Objects that seem deleted, and may only have left the selectors: they are released once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.reactor.test_controller import Reconciler, build, control, settle, show
from webop.errors import APIConnectionError
from webop.handlers.stopping import DaemonStoppingReason
from webop.reactor.store import WatchedObject


class Releasing(Reconciler):
    """Believes that every object has only left, and notes which ones it releases."""

    def __init__(self) -> None:
        super().__init__()
        self.released: list[str] = []
        self.errors: list[Exception] = []
        self.pauses: list[float | None] = []

    def may_have_left(self, obj: WatchedObject | None, raw: dict[str, Any]) -> bool:
        return True

    async def clean_left(self, obj: WatchedObject) -> float:
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop()
        self.released.append(obj.uid)
        obj.may_have_left = False
        return 0

    def on_error(self, obj: WatchedObject, exc: Exception) -> float | None:
        return self.pauses.pop(0)


@pytest.mark.feature("EVT-06")
@pytest.mark.parametrize("pause", [0.01, None])
async def test_a_release_that_fails_is_repeated_unless_it_must_not_be(pause: float | None) -> None:
    reconciler = Releasing()
    reconciler.errors, reconciler.pauses = [APIConnectionError("away")], [pause]
    controller = control(reconciler)
    await show(controller, "ADDED", build("a", 1))
    await show(controller, "DELETED", build("a", 2))
    assert [*controller.uids] == (["a"] if pause else [])
    await asyncio.sleep(0.05)
    assert reconciler.released == (["a"] if pause else [])
    assert reconciler.forgotten == ["a"]


@pytest.mark.feature("EVT-06")
async def test_an_object_that_comes_back_at_once_goes_on() -> None:
    reconciler = Releasing()
    controller = control(reconciler)
    await show(controller, "ADDED", build("a", 1))
    controller.apply_event("DELETED", build("a", 2))
    await show(controller, "ADDED", build("a", 3))
    assert not reconciler.released
    assert reconciler.versions("a") == [1, 3]
    assert [*controller.uids] == ["a"]


@pytest.mark.feature("EVT-06", "PEE-17")
async def test_in_a_pause_it_is_left_to_the_active_operator() -> None:
    reconciler = Releasing()
    controller = control(reconciler)
    await show(controller, "ADDED", build("a", 1))
    controller.set_paused(DaemonStoppingReason.OPERATOR_PAUSING)
    await show(controller, "DELETED", build("a", 2))
    assert not controller.uids
    controller.set_paused(None)
    await settle()
    assert not reconciler.released
