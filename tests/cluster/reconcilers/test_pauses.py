"""Reconcilers after a pause of the operator, in which others have acted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import webop
from tests.cluster.reconcilers.conftest import Maps, build_map
from tests.kit.http_relay import Relay
from tests.kit.operators import Objects, RunOperator, is_no_fence
from tests.kit.peering_objects import Boss
from tests.kit.waiting import eventually


@pytest.mark.parametrize("is_running", [False, True])
async def test_after_a_pause_no_reconciler_brings_back_what_the_object_said_before_it(
    objects: Objects,
    maps: Maps,
    boss: Boss,
    relayed: Relay,
    run_relayed: RunOperator,
    *,
    is_running: bool,
) -> None:
    """A child changes, or a call from before the pause ends, and the list is not there yet."""
    called: list[str] = []
    is_listing, is_free = relayed.hold_watches("widgets"), asyncio.Event()
    is_listing.set()
    is_free.set()

    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(spec: webop.Spec, children: webop.Children, **_: Any) -> None:
        called.append(spec["text"])
        await is_free.wait()
        await children.apply(build_map("child", {"text": spec["text"]}))

    async with run_relayed(standalone=False, identity="me"):
        await objects.create("one", {"text": "former"})
        await maps.wait("child", bool)
        if is_running:
            is_free.clear()
            await objects.patch("one", {"spec": {"text": "old"}})
            await eventually(lambda: called[-1] == "old", "a call")
        await boss.pause()
        await objects.patch("one", {"spec": {"text": "new"}})
        is_listing.clear()
        await boss.resume()
        before = len(called)
        if is_running:
            is_free.set()
        else:
            await maps.delete("child")
        await asyncio.sleep(0.5)
        assert called[before:] == []
        is_listing.set()
        await maps.wait("child", lambda found: found and found["data"]["text"] == "new")
    assert set(called[before:]) == {"new"}
