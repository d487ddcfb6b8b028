"""Handlers that need only the metadata of objects."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import (
    DIFFBASE,
    Calls,
    Json,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    get_annotations,
    get_progress,
    operate,
)
from tests.kit.waiting import eventually
from webop.client.auth.vault import ConnectionInfo


@pytest.fixture
def objects(with_status: Objects) -> Objects:
    return with_status


def declare(
    calls: Calls, registry: webop.OperatorRegistry | None = None, *, metadata_only: bool = True
) -> None:
    """Declare handlers of creations, updates and deletions."""

    async def note(body: webop.Body, reason: str, **kwargs: Any) -> None:
        calls.note(reason, kwargs, body={key: body[key] for key in body if key != "metadata"})

    for decorator in (webop.on.create, webop.on.update, webop.on.delete):
        decorator("gadgets", registry=registry, id="note", metadata_only=metadata_only)(note)


async def wait_stored(objects: Objects, name: str, labels: Json) -> Json:
    """Wait until a state with these labels is stored as handled."""
    storage = webop.AnnotationsDiffBaseStorage()

    def is_stored(raw: Json) -> bool:
        handled: Any = storage.fetch(body=webop.Body(raw)) or {}
        found: Json = handled.get("metadata", {}).get("labels", {})
        return found == labels and not get_progress(raw)

    return await objects.wait(name, is_stored)


KIND = {"apiVersion": "tests.webop.dev/v1", "kind": "Gadget"}


@pytest.mark.feature("HND-28")
@pytest.mark.parametrize("is_streaming", [True, False], ids=["stream", "pages"])
async def test_changes_of_the_metadata_are_handled_and_others_are_not(
    objects: Objects, run_operator: RunOperator, calls: Calls, *, is_streaming: bool
) -> None:
    declare(calls)
    await objects.create("old", {"size": 1}, labels={"v": "1"})
    settings = build_settings(watching={"streaming_list": is_streaming})
    async with run_operator(settings):
        await objects.create("new", {"size": 1}, labels={"v": "1"})
        for name in ("old", "new"):
            (call,) = await calls.wait(name, "create")
            assert call["body"] == KIND
            await wait_stored(objects, name, {"v": "1"})
            await objects.patch(name, {"spec": {"size": 2}})
            await objects.patch(name, {"metadata": {"labels": {"v": "2"}}})
            call = (await calls.wait(name, "update"))[0]
            assert call["old"] == {"metadata": {"labels": {"v": "1"}}}
            assert call["new"] == {"metadata": {"labels": {"v": "2"}}}
            await wait_stored(objects, name, {"v": "2"})
            await objects.remove(name)
    for name in ("old", "new"):
        assert calls.handlers(name) == ["create", "update", "delete"]


@pytest.mark.feature("PAT-01")
async def test_patches_of_everything_are_written_and_functions_see_the_whole_object(
    objects: Objects, run_operator: RunOperator, caplog: Any
) -> None:
    seen: list[Json] = []

    def double(body: webop.RawBody) -> None:
        seen.append({**body})
        body["spec"]["size"] *= 2

    @webop.on.create("gadgets", metadata_only=True, id="create")
    async def create(patch: webop.Patch, **_: Any) -> str:
        patch.spec["colour"] = "red"
        patch.status["seen"] = True
        patch.status.set_condition("Ready", True, reason="Done")
        patch.fns.append(double)
        return "made"

    @webop.on.update("gadgets", metadata_only=True)
    async def update(**_: Any) -> None:
        seen.append({"own writes": "are no changes"})

    other = {"type": "Other", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await objects.create("a", {"size": 4, "kept": True})
    await objects.patch("a", {"status": {"conditions": [other]}}, "status")
    async with run_operator():
        stored = await objects.wait("a", lambda raw: DIFFBASE in get_annotations(raw))
        await asyncio.sleep(0.3)
    assert stored["spec"] == {"size": 8, "kept": True, "colour": "red"}
    assert stored["status"]["seen"] is True
    assert stored["status"]["create"] == "made"
    conditions = {found["type"]: found["status"] for found in stored["status"]["conditions"]}
    assert conditions == {"Other": "True", "Ready": "True"}
    assert all(raw["spec"]["kept"] for raw in seen)
    assert "inconsistencies" not in caplog.text


@pytest.mark.feature("IDX-01", "DMN-01", "TMR-01", "HND-26")
async def test_indexes_events_daemons_and_timers_get_only_the_metadata(
    objects: Objects, run_operator: RunOperator
) -> None:
    seen: dict[str, Json] = {}
    teams: list[Any] = []

    @webop.index("gadgets", metadata_only=True, id="by_team")
    async def index(body: webop.Body, labels: Json, name: str, **_: Any) -> Any:
        seen["index"] = {key: body[key] for key in body if key != "metadata"}
        return {labels.get("team"): name}

    @webop.on.event("gadgets", metadata_only=True, id="event")
    async def on_event(event: webop.RawEvent, by_team: Any, **_: Any) -> None:
        raw: Json = {**event["object"]}
        seen["event"] = {key: raw[key] for key in raw if key != "metadata"}
        teams.append(sorted(by_team))

    @webop.daemon("gadgets", metadata_only=True)
    async def daemon(body: webop.Body, stopped: webop.DaemonStopped, **_: Any) -> None:
        seen["daemon"] = {key: body[key] for key in body if key != "metadata"}
        await stopped.wait()

    @webop.timer("gadgets", metadata_only=True, interval=0.1)
    async def timer(body: webop.Body, patch: webop.Patch, **_: Any) -> None:
        seen["timer"] = {key: body[key] for key in body if key != "metadata"}
        patch.status["ticked"] = True

    async with run_operator():
        await objects.create("a", {"size": 1}, labels={"team": "x"})
        await eventually(lambda: seen.keys() == {"index", "event", "daemon", "timer"})
        await objects.wait("a", lambda raw: (raw.get("status") or {}).get("ticked"))
        await objects.patch("a", {"metadata": {"labels": {"team": "y"}}})
        await eventually(lambda: teams[-1] == ["y"])
        await objects.remove("a")
    assert all(found == KIND for found in seen.values()), seen


@pytest.mark.feature("CON-01")
async def test_an_operator_that_begins_to_read_only_the_metadata_calls_nothing_again(
    objects: Objects, info: ConnectionInfo, calls: Calls
) -> None:
    whole, partial = webop.OperatorRegistry(), webop.OperatorRegistry()
    declare(calls, whole, metadata_only=False)
    declare(calls, partial)
    async with operate(info, whole, namespaces=[objects.namespace]):
        await objects.create("a", {"size": 1}, labels={"v": "1"})
        await wait_stored(objects, "a", {"v": "1"})
    async with operate(info, partial, namespaces=[objects.namespace]):
        await objects.create("b", labels={"v": "1"})
        await wait_stored(objects, "b", {"v": "1"})
        await objects.patch("a", {"metadata": {"labels": {"v": "2"}}})
        await wait_stored(objects, "a", {"v": "2"})
    assert calls.handlers("a") == ["create", "update"]
    assert calls.of("a")[1]["old"] == {"metadata": {"labels": {"v": "1"}}}


@pytest.mark.feature("HND-28", "CFG-38")
@pytest.mark.parametrize(
    ("who", "text"),
    [
        ("a handler", "for gadgets.v1.tests.webop.dev, because whole objects are needed by"),
        ("a reconciler", "because whole objects are needed by building"),
        ("a storage in the status", "is not known to need only metadata"),
    ],
)
async def test_whole_objects_are_read_if_anybody_needs_more(
    objects: Objects,
    run_operator: RunOperator,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    who: str,
    text: str,
) -> None:
    declare(calls)
    settings = build_settings()
    if who == "a handler":
        webop.on.event("gadgets", id="looking")(do_nothing)
    elif who == "a reconciler":
        webop.reconcile("gadgets", id="building")(do_nothing)
    else:
        settings.persistence.diffbase_storage = webop.StatusDiffBaseStorage()
    caplog.set_level(logging.INFO)
    async with run_operator(settings):
        await objects.create("a", {"size": 1})
        (call,) = await calls.wait("a", "create")
    assert call["body"]["spec"] == {"size": 1}
    assert text in caplog.text


@pytest.mark.feature("PAT-01")
async def test_no_request_asks_for_more_than_the_metadata(
    objects: Objects, relayed: Relay, run_relayed: RunOperator, calls: Calls
) -> None:
    declare(calls)
    async with run_relayed():
        await objects.create("a", {"size": 1})
        await objects.wait("a", lambda raw: DIFFBASE in get_annotations(raw))
        await objects.remove("a")
    requests = relayed.list_requests("PATCH", "a") + relayed.list_requests("GET", "a")
    assert requests
    assert all("as=PartialObjectMetadata;" in each.headers["accept"] for each in requests)
