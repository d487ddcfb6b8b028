"""Failed handlers that are called again at once when somebody changes the object."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    Calls,
    Objects,
    RunOperator,
    build_settings,
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
