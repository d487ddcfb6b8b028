"""JSON patches by the examples of RFC 6902, and by what it forbids."""

from __future__ import annotations

from typing import Any

import pytest

from webop.errors import WebopError
from webop.objects.patch import Patch
from webop.testing.results import apply_json_patch

Json = dict[str, Any]


def build(op: str, path: str, **more: Any) -> Json:
    return {"op": op, "path": path, **more}


@pytest.mark.parametrize(
    ("document", "operation", "expected"),
    [
        ({"a": 1}, build("add", "/b", value=2), {"a": 1, "b": 2}),
        ({"a": 1}, build("add", "/a", value=2), {"a": 2}),
        ({"a": 1}, build("add", "/a", value=None), {"a": None}),
        ({"a": 1}, build("add", "", value=[]), []),
        ({"a": 1}, build("add", "/", value=2), {"a": 1, "": 2}),
        ({"a": {}}, build("add", "/a/b/", value=2), None),
        ({"a": [1, 3]}, build("add", "/a/1", value=2), {"a": [1, 2, 3]}),
        ({"a": [1, 2]}, build("add", "/a/2", value=3), {"a": [1, 2, 3]}),
        ({"a": [1, 2]}, build("add", "/a/-", value=[3]), {"a": [1, 2, [3]]}),
        ({"a": 1, "b": 2}, build("remove", "/a"), {"b": 2}),
        ({"a": [1, 2]}, build("remove", "/a/0"), {"a": [2]}),
        ({"a": 1}, build("remove", ""), ...),
        ({"a": 1}, build("replace", "/a", value={"b": 2}), {"a": {"b": 2}}),
        ({"a": [1, 2]}, build("replace", "/a/1", value=3), {"a": [1, 3]}),
        ({"a": 1}, build("replace", "", value=3), 3),
        ({"a": {"b": 1}}, build("move", "/c", **{"from": "/a/b"}), {"a": {}, "c": 1}),
        ({"a": [1, 2, 3]}, build("move", "/a/2", **{"from": "/a/0"}), {"a": [2, 3, 1]}),
        ({"a": {"b": 1}}, build("move", "/a", **{"from": "/a"}), {"a": {"b": 1}}),
        ({"a": [1]}, build("copy", "/b", **{"from": "/a"}), {"a": [1], "b": [1]}),
        ({"a/b": 1}, build("replace", "/a~1b", value=2), {"a/b": 2}),
        ({"a~b": 1}, build("replace", "/a~0b", value=2), {"a~b": 2}),
        ({"~1": 1}, build("replace", "/~01", value=2), {"~1": 2}),
        ({"0": 1}, build("replace", "/0", value=2), {"0": 2}),
        ({"a": 1}, build("test", "/a", value=1.0), {"a": 1}),
        ({"a": {"b": [1, {}]}}, build("test", "/a", value={"b": [1, {}]}), {"a": {"b": [1, {}]}}),
    ],
)
def test_operations_do_what_the_rfc_says(document: Any, operation: Json, expected: Any) -> None:
    before = repr(document)
    if expected is None:
        with pytest.raises(WebopError):
            apply_json_patch(document, [operation])
    else:
        assert apply_json_patch(document, [operation]) == (None if expected is ... else expected)
    assert repr(document) == before


@pytest.mark.parametrize(
    ("document", "operation", "reason"),
    [
        ({}, build("replace", "/a", value=1), "'a' is missing"),
        ({}, build("remove", "/a"), "'a' is missing"),
        ({}, build("add", "/a/b", value=1), "'a' is missing"),
        ({}, build("add", "/a"), "'value' is missing"),
        ({}, {"op": "add", "value": 1}, "'path' is missing"),
        ({}, build("move", "/a"), "'from' is missing"),
        ({}, build("copy", "/a", **{"from": "/b"}), "'b' is missing"),
        ({}, build("change", "/a", value=1), "'change' is missing"),
        ({}, build("add", "a", value=1), "not a JSON pointer"),
        ({"a": {"b": 1}}, build("move", "/a/b/c", **{"from": "/a/b"}), "into itself"),
        ({"a": [1]}, build("add", "/a/2", value=1), "the list ends before 2"),
        ({"a": [1]}, build("add", "/a/01", value=1), "no index"),
        ({"a": [1]}, build("add", "/a/-1", value=1), "no index"),
        ({"a": [1]}, build("replace", "/a/-", value=1), "no index"),
        ({"a": [1]}, build("remove", "/a/1"), "out of range"),
        ({"a": 1}, build("add", "/a/b", value=1), "'b' is not in a list or a mapping"),
        ({"a": 1}, build("test", "/a", value=2), "there is 1"),
        ({"a": 1}, build("test", "/a", value=True), "there is 1"),
        ({"a": [0]}, build("test", "/a", value=[False]), "there is"),
        ({"a": {"b": 1}}, build("test", "/a", value={}), "there is"),
    ],
)
def test_what_cannot_be_applied_is_told(document: Any, operation: Json, reason: str) -> None:
    with pytest.raises(WebopError, match=reason) as caught:
        apply_json_patch(document, [build("add", "/x", value=1), operation])
    assert str(operation) in str(caught.value)
    assert "x" not in document


def test_operations_are_applied_one_after_another() -> None:
    operations = [
        build("add", "/spec", value={}),
        build("add", "/spec/items", value=[]),
        build("add", "/spec/items/-", value=1),
        build("copy", "/spec/more", **{"from": "/spec/items"}),
        build("add", "/spec/items/-", value=2),
    ]
    assert apply_json_patch({}, operations) == {"spec": {"items": [1, 2], "more": [1]}}


def test_the_patches_of_handlers_give_what_handlers_mean() -> None:
    body = {"metadata": {"labels": {"a/b": "1", "c~d": "2"}}, "spec": {"gone": 1, "list": [1]}}
    patch = Patch({"metadata": {"labels": {"a/b": "3", "c~d": None}}, "spec": {"gone": None}})
    patch.fns.append(lambda raw: raw["spec"]["list"].append(2))
    assert apply_json_patch(body, patch.as_json_patch(body)) == {
        "metadata": {"labels": {"a/b": "3"}},
        "spec": {"list": [1, 2]},
    }
