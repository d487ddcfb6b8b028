"""Deletions: each handler is called once, whatever happens on the way to the end of the object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest

import webop
from tests.operating import (
    FINALIZER,
    Calls,
    Kind,
    Objects,
    RunOperator,
    build_settings,
    eventually,
    get_progress,
    operate,
)
from tests.reactor.relay import Relay, relay
from webop.client.api import Client

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


@pytest.fixture
async def relayed(webop_cluster: LocalCluster) -> AsyncIterator[Relay]:
    async with relay(webop_cluster) as relayed:
        yield relayed


@pytest.fixture
def run_relayed(relayed: Relay, registry: webop.OperatorRegistry, objects: Objects) -> RunOperator:
    """Runs an operator that asks the API server through a relay."""
    return partial(operate, relayed.info, registry, beside=True, namespaces=[objects.namespace])


def is_no_fence(name: str, **_: Any) -> bool:
    return not name.startswith("fence")


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

    relayed.meddle = meddle
    settings = build_settings(batching={"exit_timeout": 0.1})
    async with run_relayed(settings):
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

    relayed.meddle = meddle
    settings = build_settings()
    settings.persistence.progress_storage = webop.StatusProgressStorage()
    options: Any = {"beside": True, "namespaces": [webop_namespace]}
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


class SilentWatch:
    """A watch of objects that falls silent, until the list is to be read again.

    Args:
        relayed: the way to the API server.
        plural: of the objects.
    """

    def __init__(self, relayed: Relay, plural: str) -> None:
        self.is_silent = False
        self._ended = asyncio.Event()
        self._relayed = relayed
        self._plural = plural
        relayed.watch = self._watch

    def end(self) -> None:
        """Say that the resource version is too old."""
        self._ended.set()

    async def _watch(self, request: httpx.Request) -> AsyncIterator[bytes]:
        is_ours = request.url.path.endswith(f"/{self._plural}") and not self._ended.is_set()
        async for data in self._relayed.pass_watch_on(request):
            if is_ours and self.is_silent:
                break
            yield data
        if is_ours:
            await self._ended.wait()
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            yield orjson.dumps({"type": "ERROR", "object": status}) + b"\n"


async def test_an_object_that_is_gone_does_not_come_back_into_indexes_with_a_late_response(
    client: Client,
    registry: webop.OperatorRegistry,
    relayed: Relay,
    run_relayed: RunOperator,
    objects: Objects,
    gadgets: Kind,
    calls: Calls,
) -> None:
    """It is read because of a conflict, and deleted while the response is on its way."""
    objects = Objects(client, gadgets, objects.namespace)
    watch = SilentWatch(relayed, gadgets.plural)
    read, released = asyncio.Event(), asyncio.Event()
    seen: list[list[str]] = []

    @webop.index("gadgets", registry=registry, id="names", when=is_no_fence)
    async def names(name: str, **_: Any) -> dict[str, bool]:
        return {name: True}

    @webop.on.event("gadgets", registry=registry, id="gone", when=is_no_fence)
    async def gone(type: str | None, **kwargs: Any) -> None:
        if type == "DELETED":
            calls.note("gone", kwargs)

    @webop.on.create("gadgets", registry=registry, id="fn", when=is_no_fence)
    async def fn(name: str, names: webop.Index[str, bool], patch: webop.Patch, **_: Any) -> None:
        seen.append(sorted(names))
        if name == "two":
            return
        watch.is_silent = True
        await objects.patch("one", {"spec": {"a": 1}})
        patch.status["a"] = 1

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "GET" or not request.url.path.endswith("/one"):
            return None
        response = await relayed.pass_on(request)
        read.set()
        await released.wait()
        return response

    relayed.meddle = meddle
    async with run_relayed():
        await objects.create("one")
        await asyncio.wait_for(read.wait(), 10)
        await objects.delete("one")
        watch.end()
        await calls.wait("one", "gone")
        released.set()
        await objects.pass_fence()
        await objects.create("two")
        await objects.wait_handled("two")
    assert seen == [["one"], ["two"]]


async def test_handlers_of_what_is_gone_are_not_called_again_as_the_watch_is_silent(
    registry: webop.OperatorRegistry,
    relayed: Relay,
    run_relayed: RunOperator,
    objects: Objects,
    calls: Calls,
) -> None:
    watch = SilentWatch(relayed, objects.resource.plural)

    @webop.on.create("widgets", registry=registry, id="slow", when=is_no_fence)
    async def slow(**kwargs: Any) -> None:
        calls.note("slow", kwargs)
        watch.is_silent = True
        await objects.delete("one")
        await asyncio.sleep(0.3)  # longer than outcomes wait for others

    @webop.on.create("widgets", registry=registry, id="next", when=is_no_fence)
    async def later(**kwargs: Any) -> None:
        calls.note("next", kwargs)

    async def meddle(request: httpx.Request) -> None:
        if request.url.path.endswith("/one"):
            watch.end()

    relayed.meddle = meddle
    async with run_relayed():
        await objects.create("one")
        await calls.wait("one", "slow")
        await objects.pass_fence()
    assert calls.handlers("one") == ["slow"]
