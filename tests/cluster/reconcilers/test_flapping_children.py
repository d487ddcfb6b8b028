"""Calls for changes of children, while a reconciler fails, do not lengthen its pauses."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import webop
from tests.cluster.reconcilers.conftest import Maps, build_map
from tests.kit.operators import Objects, RunOperator, is_no_fence
from tests.kit.waiting import eventually


async def test_after_an_outage_of_two_seconds_a_reconciler_succeeds_as_without_these_changes(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    """Without them, it is called after 0, 0.25, 1.25 and 5.25 s."""
    kinds, backoff = ["configmaps"], webop.Backoff(first=0.25, factor=4, jitter=0)
    calls: list[float] = []
    succeeded: list[float] = []

    @webop.reconcile("widgets", owns=kinds, reads=kinds, backoff=backoff, when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        calls.append(time.monotonic())
        await children.apply(build_map("a", {"text": "1"}))
        if time.monotonic() - calls[0] < 2:
            raise ValueError("The database is away.")
        succeeded.append(time.monotonic())

    def has_called(number: int) -> bool:
        return len(calls) >= number

    async with run_operator():
        await objects.create("one")
        for number in (1, 2, 3):  # others change its labels three times
            await eventually(partial(has_called, number))
            await maps.wait("a", bool)
            await maps.patch("a", {"metadata": {"labels": {"seen": str(number)}}})
        await eventually(lambda: succeeded, lambda: f"a success, calls: {calls}", timeout=7)
