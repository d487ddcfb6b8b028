"""What is kept, tried again, or lost for good when writes fail."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import httpx
import orjson
import pytest

import webop
from tests.kit.http_relay import Relay, fail
from tests.kit.operators import (
    Calls,
    Kind,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    is_no_fence,
)
from tests.kit.timeline import Timeline
from tests.kit.waiting import eventually
from webop.client.api import Client

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

    async with run_relayed(build_settings(batching={"error_delays": [0.2]}), meddle=meddle):
        body = await objects.make("a")
    assert body["status"] == {"fn": "result"}
    assert body["metadata"]["labels"] == {"x": "y"}
    assert calls.handlers("a") == ["fn"]


async def test_without_permissions_changes_are_tried_some_times_and_the_next_one_is_handled(
    run_relayed: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    moments: list[float] = []
    is_permitted = False

    @webop.on.create("widgets", id="created")
    @webop.on.update("widgets", id="updated")
    async def fn(patch: webop.Patch, reason: str, **kwargs: Any) -> None:
        calls.note(reason, kwargs)
        patch.status[reason] = "yes"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or is_permitted:
            return None
        moments.append(time.monotonic())
        return httpx.Response(403, json={"kind": "Status", "code": 403, "message": RBAC})

    pauses = {"networking": {"error_backoffs": [0.1]}, "batching": {"error_delays": [0.2, 0.4]}}
    async with run_relayed(build_settings(**pauses), meddle=meddle):
        await objects.create("a")
        await eventually(lambda: "They are lost, without a retry" in caplog.text)
        # The last attempt is made of three: with records, without them, they alone.
        await eventually(lambda: len(moments) == 9)
        await asyncio.sleep(1)
        assert len(moments) == 9
        is_permitted = True
        body = await objects.change("a", {"spec": {"x": 1}})
    assert moments[6] - moments[0] > 0.1 + 0.2 + 4 * 0.4
    assert body["status"] == {"update": "yes"}
    assert calls.handlers("a") == ["create", "update"]


async def test_without_pauses_a_failed_write_waits_for_the_next_change(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.on.create("widgets", id="fn", when=is_no_fence)(calls.noting("fn"))
    failed: list[httpx.Request] = []
    is_away = True

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or not request.url.path.endswith("/a") or not is_away:
            return None
        failed.append(request)
        return httpx.Response(503)

    settings = build_settings(batching={"error_delays": []}, networking={"error_backoffs": []})
    async with run_relayed(settings, meddle=meddle):
        await objects.create("a")
        await eventually(lambda: failed, "the patch fails")
        await objects.pass_fence()
        count = len(failed)
        for _ in range(3):
            await objects.pass_fence()
        assert len(failed) == count <= 2
        is_away = False
        await objects.change("a", {"spec": {"x": 1}})
    assert calls.handlers("a") == ["fn"]


@pytest.mark.parametrize("kind", ["annotations", "status"])
async def test_records_that_are_silently_not_stored_are_kept_in_memory_and_named(
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
    texts = [record.getMessage() for record in caplog.records]
    assert any("does not store" in text and place in text for text in texts)


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
    assert {r.levelname for r in told} == {"WARNING"}
    assert len(told) <= 3


@pytest.mark.parametrize(
    "reason",
    [
        # apiserver, admission.Handler.WaitForReady: of webhooks, policies, namespaces, quotas
        pytest.param("not yet ready to handle request", id="plugins"),
        # ResourceQuota: the controller has not counted yet
        pytest.param("status unknown for quota: q, resources: count/widgets", id="new quota"),
    ],
)
async def test_changes_of_handlers_survive_an_admission_plugin_that_is_not_ready_yet(
    run_relayed: RunOperator, relayed: Relay, objects: Objects, calls: Calls, reason: str
) -> None:
    refused = list[httpx.Request]()

    @webop.on.create("widgets", id="fn")
    async def fn(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        patch.spec["address"] = "10.0.0.1"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or b"10.0.0.1" not in request.content or len(refused) > 1:
            return None
        refused.append(request)
        name = 'widgets.example.com "one" is forbidden: '
        answer = fail(403, name="one", kind="widgets")
        body = {**answer.json(), "reason": "Forbidden", "message": f"{name}{reason}"}
        return httpx.Response(403, json=body)

    quick = {"networking": {"error_backoffs": [0.1]}, "batching": {"error_delays": [0.1]}}
    async with run_relayed(build_settings(**quick), meddle=meddle):
        await objects.create("one")
        await calls.wait("one", "fn")
        body = await objects.wait_handled("one")
    assert refused
    assert body["spec"] == {"address": "10.0.0.1"}


NAMES = [f"w{number}" for number in range(60)]  # of 50 on, a namespace begins no more handlers
QUICK = {"networking": {"error_backoffs": [0.1]}, "batching": {"error_delays": [0.1, 0.2]}}


class Outage:
    """Refuses the patches of widgets while it lasts.

    Attributes:
        refused: how many, by name.
    """

    def __init__(self, refusal: httpx.Response) -> None:
        self.refusal = refusal
        self.is_over = False
        self.refused: dict[str, int] = {}

    async def meddle(self, request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or "widgets" not in request.url.path or self.is_over:
            return None
        name = request.url.path.rsplit("/", 1)[1]
        self.refused[name] = self.refused.get(name, 0) + 1
        return httpx.Response(self.refusal.status_code, content=self.refusal.content)


@pytest.mark.feature("CFG-52", "CFG-54", "HND-18")
@pytest.mark.parametrize("moment", ["creation", "deletion"])
async def test_after_an_outage_while_many_objects_get_or_lose_their_finalizer_all_are_handled(
    run_relayed: RunOperator, objects: Objects, calls: Calls, timeline: Timeline, moment: str
) -> None:
    outage = Outage(fail(503))
    outage.is_over = moment != "creation"
    webop.on.create("widgets", id="created")(calls.noting("created"))
    webop.daemon("widgets", id="daemon")(timeline.live)
    async with run_relayed(build_settings(**QUICK), meddle=outage.meddle):
        await asyncio.gather(*map(objects.create, NAMES))
        if moment == "deletion":
            for name in NAMES:
                await objects.wait_handled(name)
            await timeline.wait("begun", 60)
            outage.is_over = False
            await asyncio.gather(*map(objects.delete, NAMES))
        await eventually(lambda: len(outage.refused) >= 50, "the namespace is away")
        outage.is_over = True
        await eventually(lambda: {call["name"] for call in calls} >= {*NAMES}, timeout=10)
        if moment == "deletion":
            for name in NAMES:
                await objects.wait_gone(name, timeout=5)


async def test_no_other_handler_of_an_object_begins_while_what_the_last_ones_left_cannot_be_written(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    outage, may_end = Outage(fail(503)), asyncio.Event()
    webop.on.create("widgets", id="first")(calls.noting("first"))
    webop.on.create("widgets", id="second")(calls.noting("second", may_end))
    webop.on.create("widgets", id="third")(calls.noting("third"))
    async with run_relayed(build_settings(**QUICK), meddle=outage.meddle):
        await objects.create("one")
        refused = "the operator knows that the outcome of the first one is refused"
        await eventually(lambda: outage.refused.get("one", 0) > 1, refused)
        may_end.set()
        count = outage.refused["one"]
        await eventually(lambda: outage.refused["one"] > count + 2)
        assert calls.handlers("one") == ["first", "second"]
        outage.is_over = True
        await objects.wait_handled("one")
    assert calls.handlers("one") == ["first", "second", "third"]


async def test_an_older_value_that_is_refused_late_does_not_overwrite_a_newer_one(
    objects: Objects, run_relayed: RunOperator
) -> None:
    """The worker of the object is still writing the first value when the timer has the second."""
    has_newer, is_over = asyncio.Event(), asyncio.Event()
    values: list[bytes] = []

    @webop.timer("widgets", id="tick", interval=0.2, labels={"x": "y"})
    async def tick(memo: webop.Memo, patch: webop.Patch, **_: Any) -> None:
        memo.count = memo.get("count", 0) + 1
        if memo.count <= 2:
            patch.spec["ticks"] = memo.count
        if memo.count == 2:
            has_newer.set()
        elif memo.count == 5:
            is_over.set()

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if b'"ticks"' not in request.content:
            return None
        values.append(request.content)
        if len(values) > 2:
            return None
        if len(values) == 2:
            await has_newer.wait()
            await asyncio.sleep(0.1)  # in which the newer one could be written
        return httpx.Response(503)

    settings = build_settings(
        networking={"error_backoffs": [0.1]}, batching={"error_delays": [0.1]}
    )
    async with run_relayed(settings, meddle=meddle):
        await objects.create("one", labels={"x": "y"})
        await is_over.wait()
        body = await objects.wait("one", lambda body: "ticks" in body["spec"])
    assert body["spec"]["ticks"] == 2


async def test_what_is_written_between_two_handlers_is_not_written_again_over_what_users_do(
    run_operator: RunOperator, objects: Objects
) -> None:
    done = asyncio.Event()

    @webop.on.create("widgets", id="quick")
    async def quick(patch: webop.Patch, **_: Any) -> None:
        patch.metadata.labels["owner"] = "operator"

    @webop.on.create("widgets", id="slow")
    async def slow(**_: Any) -> None:
        await done.wait()

    async with run_operator():
        await objects.create("a")
        await objects.wait("a", lambda raw: "owner" in raw["metadata"].get("labels", {}))
        await objects.patch("a", {"metadata": {"labels": {"owner": "user"}}})
        done.set()
        raw = await objects.wait_handled("a")
    assert raw["metadata"]["labels"]["owner"] == "user"


async def test_the_time_that_the_server_asks_for_is_waited_even_if_the_object_changes(
    run_relayed: RunOperator, objects: Objects
) -> None:
    moments: list[float] = []
    webop.on.update("widgets", id="fn")(do_nothing)
    webop.on.create("widgets", id="fn")(do_nothing)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and request.url.path.endswith("/a"):
            moments.append(time.monotonic())
            if moments[-1] - moments[0] < 1:
                await asyncio.sleep(0.2)
                return fail(429, {"Retry-After": "1"})
        return None

    async with run_relayed(meddle=meddle):
        await objects.create("a", {"x": 0})
        await eventually(lambda: len(moments) > 0)
        while time.monotonic() < moments[0] + 1:
            await objects.patch("a", {"spec": {"x": time.time()}})
            await asyncio.sleep(0.05)
        await objects.wait_handled("a")
    early = [moment for moment in moments if moment - moments[0] < 0.9]
    assert len(early) == 1
