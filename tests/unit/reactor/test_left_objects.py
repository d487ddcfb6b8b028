"""Objects that seem deleted, and may only have left the selectors: they are released once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.reactor.test_controller import Reconciler, build, control, settle
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
async def test_an_object_that_is_idle_is_released_and_forgotten() -> None:
    reconciler = Releasing()
    controller = control(reconciler)
    controller.apply_event("ADDED", build("a", 1))
    await settle()
    controller.apply_event("DELETED", build("a", 2))
    await settle()
    assert reconciler.released == reconciler.forgotten == ["a"]
    assert not controller.uids


@pytest.mark.feature("EVT-06")
async def test_an_object_whose_handler_runs_is_released_after_it() -> None:
    reconciler, ended = Releasing(), asyncio.Event()
    reconciler.work = lambda obj: ended.wait()
    reconciler.delays["a"] = [600.0]
    controller = control(reconciler)
    controller.apply_event("ADDED", build("a", 1))
    await settle()
    controller.apply_event("DELETED", build("a", 2))
    await settle()
    assert not reconciler.released
    ended.set()
    await settle()
    assert reconciler.released == reconciler.forgotten == ["a"]


@pytest.mark.feature("EVT-06")
async def test_a_release_that_fails_is_repeated() -> None:
    reconciler = Releasing()
    reconciler.errors, reconciler.pauses = [APIConnectionError("away")], [0.01]
    controller = control(reconciler)
    controller.apply_event("ADDED", build("a", 1))
    await settle()
    controller.apply_event("DELETED", build("a", 2))
    await settle()
    assert [*controller.uids] == ["a"]
    await asyncio.sleep(0.05)
    assert reconciler.released == reconciler.forgotten == ["a"]


@pytest.mark.feature("EVT-06")
async def test_a_release_that_must_not_be_repeated_is_given_up() -> None:
    reconciler = Releasing()
    reconciler.errors, reconciler.pauses = [APIConnectionError("away")], [None]
    controller = control(reconciler)
    controller.apply_event("ADDED", build("a", 1))
    controller.apply_event("DELETED", build("a", 2))
    await settle()
    assert not reconciler.released
    assert not controller.uids


@pytest.mark.feature("EVT-06")
async def test_an_object_that_comes_back_at_once_goes_on() -> None:
    reconciler = Releasing()
    controller = control(reconciler)
    controller.apply_event("ADDED", build("a", 1))
    await settle()
    controller.apply_event("DELETED", build("a", 2))
    controller.apply_event("ADDED", build("a", 3))
    await settle()
    assert not reconciler.released
    assert reconciler.versions("a") == [1, 3]
    assert [*controller.uids] == ["a"]


@pytest.mark.feature("EVT-06", "PEE-17")
async def test_in_a_pause_it_is_left_to_the_active_operator() -> None:
    reconciler = Releasing()
    controller = control(reconciler)
    controller.apply_event("ADDED", build("a", 1))
    await settle()
    controller.set_paused(DaemonStoppingReason.OPERATOR_PAUSING)
    controller.apply_event("DELETED", build("a", 2))
    await settle()
    assert not controller.uids
    controller.set_paused(None)
    await settle()
    assert not reconciler.released


@pytest.mark.feature("EVT-06")
async def test_an_object_that_was_never_seen_is_released_unless_it_is_seen_first() -> None:
    reconciler = Releasing()
    controller = control(reconciler)
    controller.apply_event("ADDED", build("seen", 1))
    controller.add_left(build("seen", 1))
    controller.add_left(build("left", 1))
    controller.apply_event("DELETED", build("unlisted", 1))
    await settle()
    assert sorted(reconciler.released) == ["left", "unlisted"]
    assert [*controller.uids] == ["seen"]
