"""Handlers that change in place what they are given: nobody but them is misled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import webop
from tests.kit.operators import DIFFBASE, Calls, Objects, RunOperator, get_annotations


@pytest.mark.feature("HND-32", "HND-16", "EVT-16")
async def test_a_handler_that_appends_to_a_list_of_the_spec_causes_no_update(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.create("widgets", id="created")
    @webop.on.update("widgets", id="updated")
    async def spoil(spec: Any, new: Any, diff: Any, **kwargs: Any) -> None:
        calls.note(kwargs["reason"], kwargs)
        if "list" in spec:
            spec["list"].append({1, 2})
            new["spec"]["list"].append(len(new["spec"]["list"]))
            for _, field, _, value in diff:
                if not field:
                    value["spec"]["more"] = 1

    async with run_operator():
        await objects.make("one", {"list": [], "a": 1})
        await objects.pass_fence()
        await objects.patch("one", {"spec": {"a": 2}})
        await calls.wait("one", count=2)
        body = await objects.wait_handled("one")
        await objects.pass_fence()
    assert calls.handlers("one") == ["create", "update"]
    assert get_annotations(body)[DIFFBASE].strip() == '{"spec":{"a":2,"list":[]}}'


@pytest.mark.feature("HND-26", "HND-32", "EVT-01")
async def test_an_event_handler_that_strips_the_object_causes_no_creation(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.event("widgets", id="seen")
    async def strip(event: webop.RawEvent, **_: Any) -> None:
        event["object"]["metadata"].pop("annotations", None)
        event["object"]["spec"].pop("a", None)

    @webop.on.create("widgets", id="created")
    @webop.on.update("widgets", id="updated")
    async def changed(**kwargs: Any) -> None:
        calls.note(kwargs["reason"], kwargs)

    async with run_operator():
        await objects.make("one", {"a": 1})
        await objects.patch("one", {"status": {"x": 1}})
        await objects.pass_fence()
        await objects.patch("one", {"spec": {"a": 2}})
        await calls.wait("one", count=2)
        await objects.wait_handled("one")
        await objects.pass_fence()
    assert calls.handlers("one") == ["create", "update"]


@pytest.mark.feature("DMN-19", "HND-32", "DMN-24")
async def test_a_daemon_that_changes_its_object_in_place_and_ends_causes_no_update(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    go_on = asyncio.Event()

    @webop.daemon("widgets", id="spoiler", labels={"spoilt": "yes"})
    async def spoil(spec: Any, **kwargs: Any) -> None:
        spec["list"].append(1)
        await go_on.wait()
        spec["list"].append(2)
        calls.note("ended", {"name": kwargs["name"]})

    @webop.on.create("widgets", id="created")
    @webop.on.update("widgets", id="updated")
    @webop.on.delete("widgets", id="deleted", labels={"kept": "yes"})
    async def changed(**kwargs: Any) -> None:
        calls.note(kwargs["reason"], kwargs)

    async with run_operator():
        kept = {"kept": "yes"}  # the finalizer stays
        for name, labels in (("one", {}), ("two", kept), ("three", kept)):
            await objects.make(name, {"list": []}, labels={"spoilt": "yes", **labels})
        await objects.delete("two")
        await calls.wait("two", count=2)
        go_on.set()
        await objects.wait("one", lambda raw: not raw["metadata"].get("finalizers"))
        await objects.wait_gone("two")
        await calls.wait("three", "ended")
        await objects.pass_fence()
    assert calls.handlers("one") == ["create", "ended"]
    assert calls.handlers("two") == ["create", "delete", "ended"]
    assert calls.handlers("three") == ["create", "ended"]


_RECORD = "kopf.zalando.org/changed"
_DEEP = "[" * 100_000
_FORGED = {
    "deep-record": {_RECORD: _DEEP},
    "deep-state": {DIFFBASE: _DEEP},
    "nested-state": {DIFFBASE: '{"spec":' * 700 + "1" + "}" * 700},
    "started": {_RECORD: '{"started": "then"}'},
    "delayed": {_RECORD: '{"delayed": 5}'},
    "retries": {_RECORD: '{"retries": "many"}'},
    "endless": {_RECORD: '{"retries": Infinity}'},
    "message": {_RECORD: '{"message": {}, "purpose": "create"}'},
    "children": {_RECORD: '{"subrefs": 5}'},
    "mixed": {_RECORD: '{"subrefs": [1, "a"], "purpose": "create"}'},
    "list": {DIFFBASE: '{"metadata": [1], "spec": 5}'},
    "labels": {DIFFBASE: '{"metadata": {"labels": 5, "annotations": [1]}}'},
    "packed": {DIFFBASE: json.dumps({"essence.webop.dev/zlib": "eJwDAAAAAAE="})},
    "digest": {DIFFBASE: json.dumps({"essence.webop.dev/sha256": 5})},
}


async def test_an_object_with_forged_state_is_handled_and_deleted_as_any_other(
    run_operator: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    webop.on.update("widgets", id="changed", labels={"a": webop.ABSENT})(calls.noting("changed"))
    webop.on.create("widgets", id="changed")(calls.noting("changed"))
    webop.on.delete("widgets", id="deleted")(lambda **_: None)
    for name, state in _FORGED.items():
        await objects.create(name, {"a": 1}, annotations=state)
    async with run_operator():
        for name in _FORGED:
            await calls.wait(name)
            await objects.delete(name)
        for name in _FORGED:
            await objects.wait_gone(name)
    assert "Traceback" not in caplog.text
