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
    Kind,
    Objects,
    RunOperator,
    build_settings,
    eventually,
    get_progress,
    is_no_fence,
    operate,
)
from webop.client.api import Client


@pytest.mark.parametrize("occasion", ["patch", "daemon"])
async def test_a_kill_before_the_finalizer_goes_does_not_repeat_the_deletion_handlers(
    registry: webop.OperatorRegistry,
    relayed: Relay,
    run_relayed: RunOperator,
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    occasion: str,
) -> None:
    """The records of the handlers go with the finalizer, however many requests it takes."""
    ended, reached = asyncio.Event(), asyncio.Event()

    @webop.on.delete("widgets", registry=registry, id="deleted", when=is_no_fence)
    async def deleted(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("deleted", kwargs)
        if occasion == "patch":
            patch.metadata.labels["deleted"] = "yes"

    if occasion == "daemon":

        @webop.daemon("widgets", registry=registry, id="daemon", when=is_no_fence)
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
        await objects.create("one", finalizers=["tests.webop.dev/other"])
        await objects.wait_handled("one")
        await objects.delete("one")
        await calls.wait("one", "deleted")
        if occasion == "daemon":
            await objects.wait("one", lambda body: get_progress(body).get("deleted"))
            ended.set()
        await reached.wait()
    async with run_operator():
        body = await objects.wait(
            "one", lambda body: body["metadata"]["finalizers"] == ["tests.webop.dev/other"]
        )
        await objects.pass_fence()
    assert calls.handlers("one") == ["deleted"]
    assert not get_progress(body)


async def test_records_in_a_status_of_its_own_go_after_a_deletion_even_if_they_cannot_at_first(
    registry: webop.OperatorRegistry,
    relayed: Relay,
    client: Client,
    gadgets: Kind,
    webop_namespace: str,
    calls: Calls,
) -> None:
    objects = Objects(client, gadgets, webop_namespace)
    refused = 0

    @webop.on.delete("gadgets", registry=registry, id="deleted", when=is_no_fence)
    async def deleted(retry: int, **kwargs: Any) -> None:
        calls.note("deleted", kwargs)
        if not retry:
            raise webop.TemporaryError("not yet", delay=0.1)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        """Refuse once to remove the records: after the finalizer is gone."""
        nonlocal refused
        if request.url.path.endswith("/one/status") and len(calls) == 2 and not refused:
            refused += 1
            return httpx.Response(503)
        return None

    settings = build_settings()
    settings.persistence.progress_storage = webop.StatusProgressStorage()
    options: Any = {"beside": True, "namespaces": [webop_namespace]}
    relayed.meddle = meddle
    async with operate(relayed.info, registry, settings, **options):
        await objects.create("one", finalizers=["tests.webop.dev/other"])
        await objects.wait("one", lambda body: FINALIZER in body["metadata"]["finalizers"])
        await objects.delete("one")
        await objects.wait(
            "one", lambda body: body["metadata"]["finalizers"] == ["tests.webop.dev/other"]
        )
        await eventually(lambda: refused == 1, "the removal is refused")
        await objects.wait("one", lambda body: not body["status"]["kopf"]["progress"])


async def test_a_finalizer_that_is_removed_by_hand_while_a_daemon_ends_leaves_nothing_to_do(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    others = ["tests.webop.dev/other"]
    ended = asyncio.Event()

    @webop.on.delete("widgets", registry=registry, id="deleted", when=is_no_fence)
    async def deleted(**kwargs: Any) -> None:
        calls.note("deleted", kwargs)

    @webop.daemon("widgets", registry=registry, id="daemon", when=is_no_fence)
    async def daemon(**kwargs: Any) -> None:
        calls.note("daemon", kwargs)
        await ended.wait()

    async with run_operator():
        await objects.create("one", finalizers=others)
        await calls.wait("one", "daemon")
        await objects.delete("one")
        await objects.wait("one", lambda body: get_progress(body).get("deleted"))
        await objects.patch("one", {"metadata": {"finalizers": others}})
        await objects.pass_fence()
        ended.set()
        await objects.pass_fence()
        await objects.patch("one", {"metadata": {"finalizers": []}})
        await objects.wait_gone("one")
    assert calls.handlers("one") == ["daemon", "deleted"]
    assert not [record for record in caplog.records if record.exc_info]
