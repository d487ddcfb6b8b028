"""A child that the reconciler has deleted is not shown to it as before, from memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx

import webop
from tests.cluster.reconcilers.conftest import MAPS, build_map
from tests.kit.http_relay import Relay
from tests.kit.operators import Objects, RunOperator, is_no_fence
from tests.kit.waiting import eventually


def _hold_deletions(relayed: Relay) -> asyncio.Event:
    """Let events of deletions of ConfigMaps come only when the event is set that this returns."""
    may_tell = asyncio.Event()

    async def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        async for data in relayed.pass_watch_on(request):
            is_end = b'"DELETED"' in data or b"deletionTimestamp" in data
            if is_end and "configmaps" in request.url.path:
                await may_tell.wait()
            yield data

    relayed.watch = watch
    return may_tell


async def test_after_a_deletion_a_child_is_gone_or_said_to_be_in_deletion(
    objects: Objects, relayed: Relay, run_relayed: RunOperator
) -> None:
    """The event of the deletion comes late. Results are never older than own writes."""
    seen: list[Any] = []
    may_tell = _hold_deletions(relayed)

    @webop.reconcile("widgets", owns=["configmaps"], reads=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        await children.apply(build_map("a", {"text": "1"}))
        assert await children.delete("configmaps", "a")
        found = [await children.get("configmaps", "a"), *await children.list("configmaps")]
        seen.append([one for one in found if one and "deletionTimestamp" not in one["metadata"]])

    async with run_relayed():
        await objects.create("one")
        await eventually(lambda: seen)
        may_tell.set()
    assert seen[0] == []


async def test_an_apply_of_a_child_in_deletion_does_not_say_that_it_is_as_wanted(
    objects: Objects, relayed: Relay, run_relayed: RunOperator
) -> None:
    """Webop does not create it before it is gone: a run that counts on it would be lost."""
    seen: list[Any] = []
    may_tell = _hold_deletions(relayed)

    @webop.reconcile("widgets", owns=["configmaps"], reads=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        child = build_map("a", {"text": "1"})
        child["metadata"]["finalizers"] = ["tests.webop.dev/hold"]
        if seen:
            return
        await children.apply(child)
        assert await children.delete("configmaps", "a")
        try:
            applied = await children.apply(child)
        except webop.TemporaryError:
            seen.append("not yet")
        else:
            is_told = "deletionTimestamp" in applied.object["metadata"]
            seen.append("in deletion" if is_told else "as wanted")

    async with run_relayed():
        await objects.create("one")
        await eventually(lambda: seen)
        may_tell.set()
        patch = {"metadata": {"finalizers": None}}
        await objects.client.patch(MAPS, objects.namespace, "a", patch)
    assert seen != ["as wanted"]
