"""Deletions: each handler is called once, whatever happens on the way to the end of the object."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import (
    FINALIZER,
    Calls,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    get_progress,
    has_finalizer,
    is_no_fence,
)


@pytest.mark.parametrize("moment", ["patch", "daemon"])
async def test_a_kill_before_the_finalizer_goes_does_not_repeat_the_deletion_handlers(
    relayed: Relay,
    run_relayed: RunOperator,
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    moment: str,
) -> None:
    """The records of the handlers go after the finalizer, however many requests it takes."""
    ended, reached = asyncio.Event(), asyncio.Event()

    @webop.on.delete("widgets", id="deleted", when=is_no_fence)
    async def deleted(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("deleted", kwargs)
        if moment == "patch":
            patch.metadata.labels["deleted"] = "yes"

    if moment == "daemon":

        @webop.daemon("widgets", id="daemon", when=is_no_fence)
        async def daemon(**_: Any) -> None:
            await ended.wait()

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        """Let the operator write anything but the removal of the finalizer, and end it there."""
        if request.method == "PATCH" and calls.of("one", "deleted"):
            metadata = orjson.loads(request.content)["metadata"]
            if reached.is_set() or FINALIZER not in metadata.get("finalizers", [FINALIZER]):
                reached.set()
                return httpx.Response(503)
        return None

    settings = build_settings(batching={"exit_timeout": 0.1})
    async with run_relayed(settings, meddle=meddle):
        await objects.make("one", finalizers=["tests.webop.dev/other"])
        await objects.delete("one")
        await calls.wait("one", "deleted")
        if moment == "daemon":
            await objects.wait("one", lambda body: get_progress(body).get("deleted"))
            ended.set()
        await reached.wait()
    async with run_operator():
        await objects.wait(
            "one", lambda body: body["metadata"]["finalizers"] == ["tests.webop.dev/other"]
        )
        await objects.wait("one", lambda body: not get_progress(body))
        await objects.pass_fence()
    assert calls.handlers("one") == ["deleted"]


@pytest.mark.feature("SUB-17", "ERR-20")
async def test_records_of_sub_handlers_of_an_interrupted_creation_go_with_the_deletion(
    run_operator: RunOperator, objects: Objects
) -> None:
    """The object stays for the finalizer of somebody else."""

    @webop.on.create("widgets", id="parent", when=is_no_fence)
    async def parent(**_: Any) -> None:
        async def retry(**_: Any) -> None:
            raise webop.TemporaryError("again", delay=0.1)

        await webop.execute(fns={"done": do_nothing, "retry": retry})

    webop.on.delete("widgets", id="deleted", when=is_no_fence)(do_nothing)
    async with run_operator():
        await objects.create("one", finalizers=["tests.webop.dev/other"])
        await objects.wait("one", lambda body: "parent.retry" in get_progress(body))
        await objects.delete("one")
        await objects.wait("one", lambda body: not has_finalizer(body))
        await objects.wait("one", lambda body: not get_progress(body), timeout=5)
