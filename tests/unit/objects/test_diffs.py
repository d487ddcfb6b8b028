"""Differences between states of an object."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from tests.kit.rows import rows
from webop import Diff, FieldPath
from webop.objects.diffs import diff
from webop.objects.fields import resolve

OLD = {
    "metadata": {"labels": {"label2": "old-value", "label3": "old-value"}},
    "spec": {"size": "1G"},
}
NEW = {
    "metadata": {"labels": {"label1": "new-value", "label2": "new-value"}},
    "spec": {"size": "2G"},
}


def diff_field(old: Any, new: Any, path: FieldPath) -> Diff:
    """Compare a field of two states, as causes do for handlers of a field."""
    return diff(resolve(old, path), resolve(new, path))


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
    assert diff_field(OLD, NEW, ("metadata", "labels")) == (
        ("add", ("label1",), None, "new-value"),
        ("change", ("label2",), "old-value", "new-value"),
        ("remove", ("label3",), "old-value", None),
    )


@pytest.mark.feature("EVT-13", "EVT-14", "EVT-16")
@rows(
    ("old", "new", "expected"),
    [
        (None, None, ()),
        ({}, {}, ()),
        (None, {"a": 1}, [("add", (), None, {"a": 1})]),
        ({"a": 1}, None, [("remove", (), {"a": 1}, None)]),
        ({"a": None}, {}, ()),
        ({}, {"a": None}, ()),
        ({"a": None}, {"a": 1}, [("add", ("a",), None, 1)]),
        ({"a": 1}, {"a": None}, [("remove", ("a",), 1, None)]),
        ({"a": [1, 2]}, {"a": [1, 3]}, [("change", ("a",), [1, 2], [1, 3])]),
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


@pytest.mark.feature("EVT-15", "FLT-09")
@rows(
    ("old", "new", "path", "expected"),
    [
        ({"spec": {"x": 1}}, {"spec": {"x": 2}}, (), [("change", ("spec", "x"), 1, 2)]),
        ({"spec": {"x": 1}}, {"spec": {"x": 2}}, ("spec", "x"), [("change", (), 1, 2)]),
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
    assert list(diff_field(old, new, path)) == expected


# Large and deep states: users choose them.


def nest(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


@rows(
    ("old", "new"),
    [
        ({f"k{i}": 1 for i in range(100_000)}, {f"k{i}": 2 for i in range(100_000)}),
        (nest(200, {f"k{i}": 1 for i in range(4_000)}), nest(200, {})),
    ],
)
def test_a_diff_of_any_two_states_takes_little_time_and_memory(old: Any, new: Any) -> None:
    started = time.process_time()
    tracemalloc.start()
    found = diff(old, new)
    assert tracemalloc.get_traced_memory()[1] < 10_000  # nobody has read it
    assert 1 <= len(found) <= 5000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15_000_000
    assert time.process_time() - started < 1  # with the tracing of memory


def test_too_many_differences_are_joined_to_one_of_their_mapping() -> None:
    old = {"metadata": {"labels": {"a": "b"}}, "data": {f"k{i}": i for i in range(6_000)}, "x": 1}
    new = {"metadata": {"labels": {"a": "c"}}, "data": {f"k{i}": -1 for i in range(6_000)}, "x": 2}
    assert diff(old, new) == (
        ("change", ("metadata", "labels", "a"), "b", "c"),
        ("change", ("data",), old["data"], new["data"]),
        ("change", ("x",), 1, 2),
    )
    assert diff_field(old, new, ("data", "k7")) == [("change", (), 7, -1)]
    assert diff(old["data"], new["data"]) == [("change", (), old["data"], new["data"])]
