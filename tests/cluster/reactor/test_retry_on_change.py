"""Failed handlers that are called again at once when somebody changes the object."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import (
    Calls,
    Objects,
    RunOperator,
    build_settings,
    get_progress,
    is_no_fence,
)
from tests.kit.waiting import eventually


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_change_of_the_object_leads_to_a_retry_only_if_asked_for(
    objects: Objects, run_operator: RunOperator, is_on: bool
) -> None:
    calls = Calls()

    @webop.on.create("widgets", id="make", backoff=3600, when=is_no_fence)
    async def make(**kwargs: Any) -> None:
        calls.note("make", kwargs)
        if kwargs["spec"]["size"] == "huge":
            raise ValueError("too large")

    async with run_operator(build_settings(execution={"retry_on_change": is_on})):
        await objects.create("one", {"size": "huge"})
        await calls.wait("one", "make")
        await objects.patch("one", {"metadata": {"labels": {"a": "b"}}, "status": {"x": 1}})
        await objects.pass_fence()
        assert len(calls.of("one")) == 1
        await objects.patch("one", {"spec": {"size": "small"}})
        if is_on:
            await objects.wait_handled("one")
        await objects.pass_fence()
    assert [call["retry"] for call in calls.of("one")] == ([0, 1] if is_on else [0])


async def test_own_writes_are_no_reason_for_a_retry_and_changes_are_one_only_once_a_second(
    objects: Objects, run_operator: RunOperator
) -> None:
    moments: list[float] = []

    @webop.on.create("widgets", id="make", backoff=3600, when=is_no_fence)
    async def make(patch: webop.Patch, **_: Any) -> None:
        moments.append(time.monotonic())
        patch.spec["attempts"] = len(moments)
        raise ValueError("never")

    async with run_operator(build_settings(execution={"retry_on_change": True})):
        await objects.create("one", {"size": 0})
        await objects.wait("one", lambda body: body["spec"].get("attempts") == 1)
        await objects.pass_fence()
        assert len(moments) == 1
        for number in range(1, 5):
            await objects.patch("one", {"spec": {"size": number}})
        await eventually(lambda: len(moments) >= 2)
        await objects.pass_fence()
    assert all(later - earlier > 0.9 for earlier, later in itertools.pairwise(moments))


async def test_a_change_that_an_own_write_shows_before_the_watch_leads_to_a_retry(
    objects: Objects, relayed: Relay, run_relayed: RunOperator
) -> None:
    sizes: list[str] = []
    is_called, is_free, is_quick = asyncio.Event(), asyncio.Event(), asyncio.Event()
    is_quick.set()

    @webop.on.create("widgets", id="make", backoff=3600, when=is_no_fence)
    async def make(spec: webop.Spec, **_: Any) -> None:
        sizes.append(spec["size"])
        is_called.set()
        await is_free.wait()
        if spec["size"] == "huge":
            raise ValueError("too large")

    async def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        async for data in relayed.pass_watch_on(request):
            await is_quick.wait()
            yield data

    relayed.watch = watch
    async with run_relayed(build_settings(execution={"retry_on_change": True})):
        await objects.create("one", {"size": "huge"})
        await is_called.wait()
        is_quick.clear()
        await objects.patch("one", {"spec": {"size": "small"}})
        is_free.set()
        await objects.wait("one", lambda body: bool(get_progress(body)))
        await asyncio.sleep(0.2)  # the response arrives
        is_quick.set()
        await objects.wait_handled("one")
    assert sizes == ["huge", "small"]
