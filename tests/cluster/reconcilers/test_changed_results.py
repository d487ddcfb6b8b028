"""What a reconciler does with the result of an apply changes nothing that webop remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx

import webop
from tests.cluster.reconcilers.conftest import build_map
from tests.kit.http_relay import Relay
from tests.kit.operators import Objects, RunOperator, is_no_fence
from tests.kit.waiting import eventually

Json = dict[str, Any]


async def test_a_change_of_the_object_of_an_apply_is_not_what_get_returns_afterwards(
    objects: Objects, relayed: Relay, run_relayed: RunOperator
) -> None:
    """The event of the apply comes after its response, as it mostly does."""
    seen: list[Json | None] = []
    may_tell = asyncio.Event()

    async def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        async for data in relayed.pass_watch_on(request):
            if b'"uid"' in data and "configmaps" in request.url.path and b"text" in data:
                await may_tell.wait()
            yield data

    relayed.watch = watch

    @webop.reconcile("widgets", owns=["configmaps"], reads=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        applied = await children.apply(build_map("a", {"text": "1"}))
        applied.object["data"]["text"] = "forged"
        applied.object["metadata"].pop("labels", None)
        seen.append((await children.get("configmaps", "a") or {}).get("data"))

    async with run_relayed():
        await objects.create("one", {"a": 1})
        await eventually(lambda: seen)
        may_tell.set()
        await objects.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: len(seen) > 1)
    assert seen[:2] == [{"text": "1"}] * 2
