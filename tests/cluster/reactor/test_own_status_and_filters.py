"""Filters of handlers of changes can be about what webop itself has written to the object."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.operators import (
    Calls,
    Objects,
    RunOperator,
    has_finalizer,
)


def is_ready(status: webop.Status, **_: Any) -> bool:
    return bool(status.get("phase") == "ready")


@pytest.mark.parametrize("stored", ["patch", "result"])
async def test_a_deletion_handler_whose_filter_is_about_a_result_gets_its_finalizer(
    run_operator: RunOperator, objects: Objects, calls: Calls, stored: str
) -> None:
    @webop.on.create("widgets", id="phase")
    async def fn(patch: webop.Patch, **_: Any) -> str | None:
        if stored == "result":
            return "ready"
        patch.status["phase"] = "ready"
        return None

    webop.on.delete("widgets", id="clean", when=is_ready)(calls.noting("clean"))
    async with run_operator():
        await objects.make("one")
        await objects.wait("one", lambda body: body.get("status", {}).get("phase"))
        await objects.pass_fence()
        assert has_finalizer(await objects.get("one"))
        await objects.remove("one")
    assert [call["handler"] for call in calls] == ["clean"]


async def test_a_handler_whose_filter_is_about_a_result_does_not_wait_for_the_retry_of_another(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.create("widgets", id="phase")
    async def fn(patch: webop.Patch, **_: Any) -> None:
        patch.status["phase"] = "ready"

    @webop.on.create("widgets", id="other")
    async def other(**_: Any) -> None:
        raise webop.TemporaryError("not yet", delay=3600)

    webop.on.create("widgets", id="next", when=is_ready)(calls.noting("next"))
    async with run_operator():
        await objects.create("one")
        await calls.wait("one", "next")


async def test_a_change_ends_when_the_filter_of_a_failing_handler_says_so(
    run_operator: RunOperator, objects: Objects
) -> None:
    @webop.on.create("widgets", id="phase")
    async def fn(patch: webop.Patch, **_: Any) -> None:
        patch.status["phase"] = "ready"

    @webop.on.create("widgets", id="other", when=webop.not_(is_ready))
    async def other(**_: Any) -> None:
        raise webop.TemporaryError("not yet", delay=3600)

    async with run_operator():
        await objects.make("one")


async def test_filters_about_the_memo_are_asked_when_a_handler_has_changed_that(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.create("widgets", id="fn")
    async def fn(memo: Any, **_: Any) -> None:
        memo.is_ready = True

    def has_memo(memo: Any, **_: Any) -> bool:
        return bool(memo.get("is_ready"))

    webop.daemon("widgets", id="daemon", when=has_memo)(calls.noting("daemon"))
    webop.on.delete("widgets", id="clean", when=has_memo)(calls.noting("clean"))
    async with run_operator():
        await objects.make("one")
        await calls.wait("one", "daemon")
        await objects.pass_fence()
        assert has_finalizer(await objects.get("one"))
