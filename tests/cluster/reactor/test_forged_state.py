"""State on objects that their owners have written themselves: it misleads nobody but them."""

from __future__ import annotations

import json

import pytest

import webop
from tests.kit.operators import DIFFBASE, Calls, Objects, RunOperator

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
