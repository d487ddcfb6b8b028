"""Differences between states of an object."""

from __future__ import annotations

from typing import Any

import pytest

from webop.objects.body import Body
from webop.objects.diffs import DiffItem, DiffOperation, diff, reduce
from webop.objects.fields import FieldPath

OLD = {
    "metadata": {"labels": {"label2": "old-value", "label3": "old-value"}},
    "spec": {"size": "1G"},
}
NEW = {
    "metadata": {"labels": {"label1": "new-value", "label2": "new-value"}},
    "spec": {"size": "2G"},
}


@pytest.mark.feature("EVT-13", "EVT-14")
def test_a_diff_is_that_of_the_manual() -> None:
    assert diff(OLD, NEW) == (
        ("add", ("metadata", "labels", "label1"), None, "new-value"),
        ("change", ("metadata", "labels", "label2"), "old-value", "new-value"),
        ("remove", ("metadata", "labels", "label3"), "old-value", None),
        ("change", ("spec", "size"), "1G", "2G"),
    )


@pytest.mark.feature("EVT-15")
def test_a_diff_of_a_field_is_that_of_the_manual() -> None:
    assert reduce(diff(OLD, NEW), ("metadata", "labels")) == (
        ("add", ("label1",), None, "new-value"),
        ("change", ("label2",), "old-value", "new-value"),
        ("remove", ("label3",), "old-value", None),
    )


@pytest.mark.feature("EVT-13", "EVT-14", "EVT-16")
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, None, ()),
        ({}, {}, ()),
        (None, {"a": 1}, [("add", (), None, {"a": 1})]),
        ({"a": 1}, None, [("remove", (), {"a": 1}, None)]),
        (1, 2, [("change", (), 1, 2)]),
        ({"a": None}, {}, ()),
        ({}, {"a": None}, ()),
        ({"a": None}, {"a": 1}, [("add", ("a",), None, 1)]),
        ({"a": 1}, {"a": None}, [("remove", ("a",), 1, None)]),
        ({"a": [1, 2]}, {"a": [1, 3]}, [("change", ("a",), [1, 2], [1, 3])]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1}]}, ()),
        ({"a": {"b": 1}}, {"a": "text"}, [("change", ("a",), {"b": 1}, "text")]),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, [("change", ("a", "b", "c"), 1, 2)]),
        ({"a": {"b": 1}}, {"a": {}}, [("remove", ("a", "b"), 1, None)]),
        ({"a": {}}, {"a": {"b": {"c": 1}}}, [("add", ("a", "b"), None, {"c": 1})]),
    ],
)
def test_mappings_are_compared_deeply_and_lists_as_a_whole(
    old: Any, new: Any, expected: Any
) -> None:
    assert list(diff(old, new)) == list(expected)


@pytest.mark.feature("EVT-16")
def test_views_are_compared_as_the_mappings_that_they_show() -> None:
    old, new = Body({"spec": {"x": 1}}), Body({"spec": {"x": 2}})

    assert diff(old, new) == (("change", ("spec", "x"), 1, 2),)
    assert diff(old.spec, {"x": 1}) == ()


@pytest.mark.feature("EVT-15", "FLT-09")
@pytest.mark.parametrize(
    ("old", "new", "path", "expected"),
    [
        ({"spec": {"x": 1}}, {"spec": {"x": 2}}, (), [("change", ("spec", "x"), 1, 2)]),
        ({"spec": {"x": 1}}, {"spec": {"x": 2}}, ("spec", "x"), [("change", (), 1, 2)]),
        ({"spec": {"x": 1}}, {"spec": {"x": 2}}, ("spec", "y"), []),
        ({"spec": {"x": 1}}, {"spec": {"xy": 2}}, ("spec", "xyz"), []),
        ({}, {"spec": {"x": {"y": 1}}}, ("spec", "x"), [("add", (), None, {"y": 1})]),
        ({"spec": {"x": {"y": 1}}}, {}, ("spec", "x", "y"), [("remove", (), 1, None)]),
        ({}, {"spec": {"z": 1}}, ("spec", "x"), []),
        (None, {"spec": {"x": 1}}, ("spec", "x"), [("add", (), None, 1)]),
        ({"spec": "text"}, {"spec": {"x": 1}}, ("spec", "x"), [("add", (), None, 1)]),
        ({"spec": {"x": "a"}}, {"spec": {"x": "b"}}, ("spec", "x", "y"), []),
    ],
)
def test_a_change_of_a_parent_is_a_change_of_the_field_as_far_as_it_differs(
    old: Any, new: Any, path: FieldPath, expected: Any
) -> None:
    assert list(reduce(diff(old, new), path)) == expected


@pytest.mark.feature("REF-66", "REF-67", "EVT-13")
def test_items_are_tuples_with_names() -> None:
    (item,) = diff({"a": 1}, {"a": 2})
    operation, field, old, new = item

    assert item == DiffItem(DiffOperation.CHANGE, ("a",), 1, 2)
    assert tuple(item) == ("change", ("a",), 1, 2)
    assert (operation, field, old, new) == (DiffOperation.CHANGE, ("a",), 1, 2)
    assert item.op is item.operation is DiffOperation.CHANGE
    assert item[0] == "change"
    assert f"{item.op}" == "change"
    assert repr(item) == "('change', ('a',), 1, 2)"


@pytest.mark.feature("REF-67")
def test_the_operations_have_their_documented_values() -> None:
    assert {op.name: op.value for op in DiffOperation} == {
        "ADD": "add",
        "CHANGE": "change",
        "REMOVE": "remove",
    }
