"""Operators come and go; what is on the objects makes the next one go on where the last one was."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import orjson
import pytest

import webop
from tests.kit.operators import (
    FINALIZER,
    Calls,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    get_progress,
    is_no_fence,
)


@pytest.mark.feature("EVT-10", "CON-01", "CON-04", "HND-32", "DEP-07")
async def test_nothing_is_called_again_after_a_restart(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.on.delete("widgets", id="deleted")(calls.noting("fn"))
    webop.on.field("widgets", id="field", field="spec.a")(calls.noting("fn"))
    webop.on.update("widgets", id="updated")(calls.noting("fn"))
    webop.on.create("widgets", id="created")(calls.noting("fn"))
    async with run_operator():
        before = await objects.make("one", {"a": 1}, labels={"l": "v"})
        await objects.pass_fence()
    assert len(calls.of("one")) == 2
    async with run_operator():
        await objects.pass_fence()
    assert len(calls.of("one")) == 2
    after = await objects.get("one")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


@pytest.mark.feature("HND-20")
async def test_an_object_that_matches_later_is_not_resumed_then(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.on.event("widgets", id="event")(do_nothing)
    webop.on.update("widgets", id="updated")(do_nothing)
    webop.on.create("widgets", id="created")(do_nothing)
    webop.on.resume("widgets", id="resumed", labels={"l": "v"})(calls.noting("resumed"))
    async with run_operator():
        await objects.make("one", {"a": 0})
    async with run_operator():
        await objects.pass_fence()
        await objects.change("one", {"metadata": {"labels": {"l": "v"}}, "spec": {"a": 1}})
        await objects.pass_fence()
    assert not calls.of("one")


@pytest.mark.feature(
    "HND-20", "HND-21", "HND-09", "HND-10", "D-44", "EVT-08", "EVT-09", "EVT-11", "CON-05", "HND-16"
)
async def test_resuming_handlers_mix_into_the_first_creation_or_update(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.on.resume("widgets", id="first")(calls.noting("first"))
    webop.on.update("widgets", id="both")(calls.noting("both"))
    webop.on.create("widgets", id="both")(calls.noting("both"))
    webop.on.resume("widgets", id="both")(calls.noting("both"))
    await objects.create("one", {"a": 0})
    async with run_operator():
        await objects.wait_handled("one")
    for value in (1, 2, 3):  # for those who were away, one update
        await objects.patch("one", {"spec": {"a": value}})
    async with run_operator():
        await objects.wait_handled("one")
        await objects.pass_fence()
    update = calls.of("one")[-1]
    assert (update["old"], update["new"]) == ({"spec": {"a": 0}}, {"spec": {"a": 3}})
    assert [(call["handler"], call["reason"]) for call in calls.of("one")] == [
        ("first", "create"),
        ("both", "create"),
        ("first", "update"),
        ("both", "update"),
    ]


@pytest.mark.feature("HND-22", "HND-23", "CON-06", "TRB-02")
async def test_a_deletion_in_the_absence_of_the_operator_is_handled_at_the_start(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.on.create("widgets", id="created")(do_nothing)
    webop.on.delete("widgets", id="deleted")(calls.noting("deleted"))
    webop.on.resume("widgets", id="resumed")(calls.noting("resumed"))
    webop.on.resume("widgets", id="with-deleted", deleted=True)(calls.noting("with-deleted"))
    async with run_operator():
        await objects.pass_fence()
        await objects.make("one")
    await objects.delete("one")
    assert await objects.exists("one")
    async with run_operator():
        await objects.wait_gone("one")
    assert sorted(calls.handlers("one")) == ["deleted", "with-deleted"]


@pytest.mark.feature("TRB-02", "TRB-06")
@pytest.mark.parametrize("deleting", [False, True])
async def test_a_finalizer_that_is_not_needed_any_more_is_removed(
    run_operator: RunOperator, objects: Objects, deleting: bool
) -> None:
    webop.on.event("widgets", id="event")(do_nothing)
    await objects.create("one", finalizers=[FINALIZER, "tests.webop.dev/other"])
    if deleting:
        await objects.delete("one")
    async with run_operator():
        body = await objects.wait(
            "one", lambda body: FINALIZER not in body["metadata"]["finalizers"]
        )
        await objects.pass_fence()
    assert body["metadata"]["finalizers"] == ["tests.webop.dev/other"]


@pytest.mark.feature("TRB-01")
async def test_a_finalizer_removed_by_hand_is_not_put_back_on_an_object_being_deleted(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    entered = asyncio.Event()

    @webop.on.delete("widgets", id="deleted")
    async def deleted(**_: Any) -> None:
        entered.set()
        raise webop.TemporaryError("never", delay=1000)

    other = "tests.webop.dev/other"
    async with run_operator():
        await objects.create("one", finalizers=[other])
        await objects.wait("one", lambda body: FINALIZER in body["metadata"]["finalizers"])
        await objects.delete("one")
        await entered.wait()
        await objects.wait("one", get_progress)
        await objects.patch("one", {"metadata": {"finalizers": [other]}})
        await objects.pass_fence()
        assert (await objects.get("one"))["metadata"]["finalizers"] == [other]
        await objects.patch("one", {"metadata": {"finalizers": []}})
        await objects.wait_gone("one")
    assert "HTTP" not in caplog.text  # the API server would not have let it


@pytest.mark.feature("ERR-19", "ERR-02", "CON-03", "CON-04", "D-01", "D-41", "CFG-58", "CFG-68")
async def test_retries_survive_a_restart_and_finished_handlers_are_not_repeated(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.on.create("widgets", id="fine")(calls.noting("fine"))

    @webop.on.create("widgets", id="flaky", when=is_no_fence)
    async def flaky(retry: int, started: datetime, **kwargs: Any) -> None:
        calls.note("flaky", kwargs, retry=retry, started=started)
        if retry < 2:
            raise webop.TemporaryError("not yet", delay=0.5)

    async with run_operator():
        await objects.create("one")
        body = await objects.wait("one", lambda body: "flaky" in get_progress(body))
    record = orjson.loads(get_progress(body)["flaky"])
    assert record == {
        "started": record["started"],
        "delayed": record["delayed"],
        "purpose": "create",
        "retries": 1,
        "success": False,
        "failure": False,
        "message": "not yet",
        "seen": record["seen"],
    }
    delayed = datetime.fromisoformat(record["delayed"])
    assert delayed - datetime.now(UTC) < timedelta(seconds=0.5)
    assert "status" not in body

    async with run_operator():
        body = await objects.wait_handled("one")
        await objects.pass_fence()
    flakies = calls.of("one", "flaky")
    assert [call["retry"] for call in flakies] == [0, 1, 2]
    assert {call["started"].isoformat() for call in flakies[1:]} == {record["started"]}
    assert len(calls.of("one", "fine")) == 1
    assert not get_progress(body)


async def test_the_exit_takes_no_longer_than_its_timeout_and_five_seconds_if_the_api_server_hangs(
    run_relayed: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, never = asyncio.Event(), asyncio.Event()
    webop.on.create("widgets", id="first")(calls.noting("first", hanging))

    @webop.on.create("widgets", id="second")
    async def second(name: str, **kwargs: Any) -> None:
        calls.note("second", {**kwargs, "name": name})
        await (hanging if name == "writes-already" else never).wait()

    @webop.daemon("widgets", id="daemon", labels={"daemon": "yes"})
    async def daemon(stopped: webop.DaemonStopped, patch: webop.Patch, **_: Any) -> None:
        await stopped.wait()
        patch.metadata.labels["daemon"] = "ended"

    async def hang(request: httpx.Request) -> httpx.Response | None:
        if hanging.is_set():
            requests.append(request)
            await never.wait()
        return None

    requests: list[httpx.Request] = []
    names = ("writes-already", "is-cancelled", "is-cancelled-as-its-daemon-writes")
    settings = build_settings(batching={"exit_timeout": 1})
    loop = asyncio.get_running_loop()
    async with run_relayed(settings, meddle=hang) as running:
        for name in names:
            await objects.create(name, labels={"daemon": "yes"} if "daemon" in name else {})
            await calls.wait(name, "first")
        hanging.set()
        for name in names:
            await calls.wait(name, "second")
        began = loop.time()
        await running.stop()
        duration = loop.time() - began
    never.set()
    assert len(requests) >= 3, "all have tried to write"
    assert duration < 6.5
    assert "swallow" not in caplog.text, "the handlers are not to blame"


@pytest.mark.feature("CFG-21", "CON-04")
async def test_a_handler_that_runs_as_the_operator_stops_ends_and_is_not_called_again(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.create("widgets", id="fn", when=is_no_fence)
    async def fn(**kwargs: Any) -> None:
        calls.note("begun", kwargs)
        await asyncio.sleep(0.5)
        calls.note("ended", kwargs)

    async with run_operator():
        await objects.create("one")
        await calls.wait("one")
    async with run_operator():
        await objects.wait_handled("one")
        await objects.pass_fence()
    assert calls.handlers("one") == ["begun", "ended"]


async def test_a_kill_before_the_finalizer_goes_does_not_repeat_the_deletion_handlers(
    run_relayed: RunOperator, run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    """The records of the handlers go after the finalizer, however many requests it takes."""
    other, reached = "tests.webop.dev/other", asyncio.Event()

    @webop.on.delete("widgets", id="deleted", when=is_no_fence)
    async def deleted(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("deleted", kwargs)
        patch.metadata.labels["deleted"] = "yes"

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
        await objects.make("one", finalizers=[other])
        await objects.delete("one")
        await reached.wait()
    async with run_operator():
        await objects.wait("one", lambda body: body["metadata"]["finalizers"] == [other])
        await objects.wait("one", lambda body: not get_progress(body))
        await objects.pass_fence()
    assert calls.handlers("one") == ["deleted"]
