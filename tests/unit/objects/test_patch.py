"""Patches of handlers, and the JSON patches that are made of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.kit.rows import rows
from webop import Body, Patch, RawBody


@pytest.mark.feature("PAT-02")
def test_taking_back_the_last_key_takes_back_the_stanza() -> None:
    patch = Patch()
    patch.metadata.labels["l"] = "v"

    del patch.metadata.labels["l"]

    assert patch == {}
    assert not patch


@pytest.mark.feature("PAT-01")
def test_writing_into_a_stanza_that_is_deleted_creates_it_anew() -> None:
    patch = Patch({"status": None})

    patch.status["x"] = 1

    assert patch == {"status": {"x": 1}}


@pytest.mark.feature("PAT-11", "PAT-12")
@rows(
    ("patch", "ops"),
    [
        ({}, []),
        ({"spec": {"x": 1}}, []),
        ({"spec": {"absent": None}}, []),
        ({"absent": None}, []),
        ({"spec": {"x": 2}}, [{"op": "replace", "path": "/spec/x", "value": 2}]),
        ({"spec": {"x": None}}, [{"op": "remove", "path": "/spec/x"}]),
        ({"spec": {"y": 2}}, [{"op": "add", "path": "/spec/y", "value": 2}]),
        ({"spec": {"l": [1, 2]}}, []),
        ({"spec": {"l": [1, 3]}}, [{"op": "replace", "path": "/spec/l", "value": [1, 3]}]),
        ({"spec": {"d": "text"}}, [{"op": "replace", "path": "/spec/d", "value": "text"}]),
        ({"spec": {"d": {"b": 2}}}, [{"op": "add", "path": "/spec/d/b", "value": 2}]),
        ({"status": {"y": 2}}, [{"op": "add", "path": "/status", "value": {"y": 2}}]),
        ({"spec": None}, [{"op": "remove", "path": "/spec"}]),
        (
            {"metadata": {"annotations": {"op.example.com/x~y": "v", "a/b": None}}},
            [
                {"op": "add", "path": "/metadata/annotations/op.example.com~1x~0y", "value": "v"},
                {"op": "remove", "path": "/metadata/annotations/a~1b"},
            ],
        ),
    ],
)
def test_a_json_patch_has_operations_only_for_what_changes(patch: Any, ops: Any) -> None:
    body = {
        "metadata": {"annotations": {"a/b": "c", "d": "e"}},
        "spec": {"x": 1, "l": [1, 2], "d": {"a": 1}},
    }
    original = copy.deepcopy(body)

    assert Patch(patch, body=Body(body)).as_json_patch() == ops
    assert Patch(patch).as_json_patch(body) == ops
    assert body == original


@pytest.mark.feature("PAT-12")
@rows(("old", "new"), [(1, True), (0, False), (1, 1.0), ([1], [True]), ([{"a": 1}], [{"a": 1.0}])])
def test_values_that_only_python_takes_for_equal_are_changes(old: Any, new: Any) -> None:
    ops = Patch({"spec": {"x": new}}).as_json_patch({"spec": {"x": old}})

    assert ops == [{"op": "replace", "path": "/spec/x", "value": new}]


@pytest.mark.feature("PAT-03", "PAT-04", "PAT-09", "PAT-11")
def test_functions_are_run_on_a_copy_with_the_keys_applied() -> None:
    def set_conditions(body: RawBody) -> None:
        conditions = body.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [cond for cond in conditions if cond["type"] != "Ready"]
        conditions.append({"type": "Ready", "status": str(body["spec"]["x"])})

    raw = {"spec": {"x": 1}, "status": {"conditions": [{"type": "Other"}]}}
    original = copy.deepcopy(raw)
    patch = Patch({"spec": {"x": 2, "l": [1]}}, fns=[set_conditions])
    expected = [
        {"op": "replace", "path": "/spec/x", "value": 2},
        {"op": "add", "path": "/spec/l", "value": [1]},
        {
            "op": "replace",
            "path": "/status/conditions",
            "value": [{"type": "Other"}, {"type": "Ready", "status": "2"}],
        },
    ]

    assert patch.as_json_patch(raw) == expected
    assert patch.as_json_patch(Body(raw)) == expected
    assert raw == original


@pytest.mark.feature("PAT-09")
def test_functions_cannot_change_the_keys_of_the_patch() -> None:
    def append(body: RawBody) -> None:
        body["spec"]["list"].append(2)

    patch = Patch({"spec": {"list": [1]}}, fns=[append])
    expected = [{"op": "add", "path": "/spec/list", "value": [1, 2]}]

    assert patch.as_json_patch({"spec": {}}) == expected
    assert patch.as_json_patch({"spec": {}}) == expected
    assert patch == {"spec": {"list": [1]}}
