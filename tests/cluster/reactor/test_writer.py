"""What is kept, tried again, or lost for good when writes fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import orjson
import pytest

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import Calls, Kind, Objects, RunOperator, build_settings
from tests.kit.virtual_time import in_virtual_time
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.http.failed_requests import build_status_error, parse_attempt
from webop.objects.patch import Patch
from webop.reactor.object_writer import Writer, open_writer
from webop.reactor.queue import SharedSlots, WorkQueue
from webop.reactor.store import WatchedObject

RBAC = 'widgets.tests.webop.dev "a" is forbidden: User "system:serviceaccount:x:y" cannot patch'


def strip(request: httpx.Request, key: str) -> httpx.Request:
    """Return a patch without a key of the metadata, as if a webhook had removed it."""
    content: dict[str, Any] = orjson.loads(request.content)
    content.get("metadata", {}).pop(key, None)
    headers = {"content-type": request.headers["content-type"]}
    return httpx.Request("PATCH", request.url, headers=headers, content=orjson.dumps(content))


async def test_a_result_is_kept_while_permissions_are_applied_anew(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    forbidden: list[httpx.Request] = []

    @webop.on.create("widgets", id="fn")
    async def fn(patch: webop.Patch, **kwargs: Any) -> str:
        calls.note("fn", kwargs)
        patch.metadata.labels["x"] = "y"
        return "result"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or len(forbidden) > 2:
            return None
        forbidden.append(request)
        return httpx.Response(403, json={"kind": "Status", "code": 403, "message": RBAC})

    async with run_relayed(meddle=meddle):
        body = await objects.make("a")
    assert body["status"] == {"fn": "result"}
    assert body["metadata"]["labels"] == {"x": "y"}
    assert calls.handlers("a") == ["fn"]


def build_object(patch: Callable[..., Awaitable[Any]], queue: WorkQueue) -> WatchedObject:
    """Return an object with a writer, whose patches are sent by a function."""
    controller: Any = SimpleNamespace(is_stopped=False, has_indexes=False, listing=0)
    controller.write = lambda _, work: asyncio.ensure_future(work)
    controller.enqueue = lambda _: None
    ctx: Any = SimpleNamespace(
        client=SimpleNamespace(patch=patch),
        has_status=False,
        is_partial=False,
        operator=SimpleNamespace(settings=webop.OperatorSettings()),
        refer_to=lambda _: {},
        resource=None,
        queue=queue,
    )
    obj = WatchedObject(controller, "uid", {"metadata": {"name": "a"}}, needs_resume=False)
    open_writer(ctx, obj).take(Patch({"spec": {"x": 1}}))
    return obj


def get_writer(obj: WatchedObject) -> Writer:
    assert obj.work is not None
    assert obj.work.writer is not None
    return obj.work.writer


def forbid() -> NoReturn:
    attempt = parse_attempt("PATCH", "/apis/x/v1/widgets/a")
    raise build_status_error(attempt, 403, {}, RBAC.encode())


@in_virtual_time
async def test_what_is_forbidden_for_a_minute_is_lost() -> None:
    moments: list[float] = []
    loop = asyncio.get_running_loop()

    async def refuse(*_: Any, **__: Any) -> None:
        moments.append(loop.time())
        forbid()

    obj = build_object(refuse, WorkQueue("widgets", SharedSlots()))
    writer, began = get_writer(obj), loop.time()
    assert not await writer.write()
    states = [(bool(obj.backoff_left()), writer.is_over)]
    for seconds in (59, 30):
        await asyncio.sleep(seconds)
        states.append((bool(obj.backoff_left()), writer.is_over))
    assert states[0] == (True, False)
    assert not states[1][1]
    assert states[2] == (False, True), "it is lost"
    assert len(moments) > 5
    assert moments[-1] - began >= 60
    writer.take(Patch({"spec": {"x": 2}}))
    assert await writer.write(), "it is no longer tried again"


@in_virtual_time
async def test_permissions_that_were_missing_hours_ago_are_not_taken_for_lost() -> None:
    sent: list[Any] = []
    loop, queue = asyncio.get_running_loop(), WorkQueue("widgets", SharedSlots())
    missing_until = loop.time() + 1

    async def patch(*_: Any, **__: Any) -> Any:
        if loop.time() < missing_until:
            forbid()
        sent.append(1)
        return {"metadata": {"name": "a", "uid": "uid"}, "spec": {"x": 1}}

    first, second = build_object(patch, queue), build_object(patch, queue)
    await get_writer(first).write()
    first.event_type = "DELETED"  # so that nothing of it is written any more
    await asyncio.sleep(7200)
    missing_until = loop.time() + 5
    await get_writer(second).write()
    await asyncio.sleep(20)
    assert sent == [1]


@pytest.mark.parametrize("kind", ["annotations", "status"])
async def test_records_that_are_silently_not_stored_are_kept_in_memory_and_named_once(
    relayed: Relay,
    run_relayed: RunOperator,
    client: Client,
    gizmos: Kind,
    widgets: Kind,
    webop_namespace: str,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    """An admission policy removes the annotations; the schema prunes the status."""
    used = gizmos if kind == "status" else widgets
    objects = Objects(client, used, webop_namespace)
    settings = webop.OperatorSettings()
    if kind == "status":
        settings.persistence.progress_storage = webop.StatusProgressStorage()
        settings.persistence.diffbase_storage = webop.StatusDiffBaseStorage()

    @webop.on.create(used.plural, id="fn")
    async def fn(retry: int, **kwargs: Any) -> None:
        calls.note(f"created {retry}", kwargs)
        if not retry:
            raise webop.TemporaryError("again", delay=0.5)

    @webop.on.update(used.plural, id="up")
    async def up(diff: webop.Diff, **kwargs: Any) -> None:
        calls.note(f"updated {[change[1] for change in diff]}", kwargs)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and kind == "annotations":
            return await relayed.pass_on(strip(request, "annotations"))
        return None

    with caplog.at_level(logging.WARNING):
        async with run_relayed(settings, meddle=meddle):
            await objects.create("a", {"x": 0})
            await calls.wait("a", "created 1")
            await asyncio.sleep(1)
            await objects.patch("a", {"spec": {"x": 1}})
            await eventually(lambda: len(calls.of("a")) == 3)
            await asyncio.sleep(1)
    assert calls.handlers("a") == ["created 0", "created 1", "updated [('spec', 'x')]"]
    place = "metadata.annotations.kopf.zalando.org/" if kind == "annotations" else "status.kopf."
    named = [r for r in caplog.records if "dropped" in r.getMessage()]
    assert place in named[0].getMessage()
    assert [r.levelname for r in named] == ["WARNING"] * len({r.getMessage() for r in named})


async def test_an_object_whose_finalizer_a_webhook_strips_is_reported_and_tried_again(
    relayed: Relay,
    run_relayed: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stripped: list[httpx.Request] = []
    webop.on.create("widgets", id="created")(calls.noting("created"))
    webop.on.delete("widgets", id="deleted")(calls.noting("deleted"))

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or b"finalizers" not in request.content or len(stripped) > 3:
            return None
        stripped.append(request)
        return await relayed.pass_on(strip(request, "finalizers"))

    settings = build_settings(batching={"error_delays": [0.2]})
    async with run_relayed(settings, meddle=meddle):
        await objects.create("a")
        await calls.wait("a", "created")
        stripped[:] = stripped[:1]
        await objects.remove("a")
    assert calls.handlers("a") == ["created", "deleted"]
    told = [r for r in caplog.records if "metadata.finalizers" in r.getMessage()]
    assert [r.levelname for r in told] == ["WARNING"] * 2
