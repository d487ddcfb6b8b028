"""Fields of documents: naming, reading, writing, removing."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from webop.objects.fields import (
    FieldPath,
    FieldSpec,
    Snapshot,
    build_without,
    clone,
    ensure,
    parse_field,
    remove,
    resolve,
)


@pytest.mark.feature("FLT-06")
@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (None, ()),
        ("spec", ("spec",)),
        ("spec.field.sub", ("spec", "field", "sub")),
        (("metadata", "annotations", "a.b/c"), ("metadata", "annotations", "a.b/c")),
        (["spec", "x"], ("spec", "x")),
        ((), ()),
    ],
)
def test_fields_are_named_by_dotted_strings_or_sequences(spec: FieldSpec, path: FieldPath) -> None:
    assert parse_field(spec) == path


@pytest.mark.parametrize("spec", ["", "spec..x", ".spec", ("spec", ""), ("spec", 1), 123, {"spec"}])
def test_fields_that_cannot_be_meant_are_refused(spec: Any) -> None:
    with pytest.raises(ValueError, match="field"):
        parse_field(spec)


@pytest.mark.feature("D-59")
@pytest.mark.parametrize(
    ("document", "path", "found"),
    [
        ({"spec": {"x": 1}}, ("spec", "x"), 1),
        ({"spec": {"x": 1}}, (), {"spec": {"x": 1}}),
        ({"spec": MappingProxyType({"x": 1})}, ("spec", "x"), 1),
        ({"spec": {"x": None}}, ("spec", "x"), None),
        ({"spec": {}}, ("spec", "x"), "absent"),
        ({}, ("spec", "x"), "absent"),
        (None, ("spec", "x"), "absent"),
        ({"spec": None}, ("spec", "x"), "absent"),
        ({"spec": "text"}, ("spec", "x"), "absent"),
        ({"spec": {"x": "text"}}, ("spec", "x", "y"), "absent"),
        ({"spec": ["x"]}, ("spec", "x"), "absent"),
    ],
)
def test_a_path_through_what_is_no_mapping_is_absent(
    document: Any, path: FieldPath, found: object
) -> None:
    assert resolve(document, path, "absent") == found


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, {"spec": {"x": {"y": 1}}}),
        ({"spec": {"z": 2}}, {"spec": {"z": 2, "x": {"y": 1}}}),
        ({"spec": None}, {"spec": {"x": {"y": 1}}}),
        ({"spec": {"x": "text"}}, {"spec": {"x": {"y": 1}}}),
    ],
)
def test_setting_a_field_creates_its_parents(document: Any, expected: Any) -> None:
    ensure(document, ("spec", "x", "y"), 1)

    assert document == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"spec": {"x": {"y": 1}}}, {}),
        ({"spec": {"x": {"y": 1, "z": 2}}}, {"spec": {"x": {"z": 2}}}),
        ({"spec": {"x": {"y": 1}}, "status": {}}, {"status": {}}),
        ({"spec": {"x": {}}}, {"spec": {"x": {}}}),
        ({"spec": {"x": "text"}}, {"spec": {"x": "text"}}),
        ({"spec": {}}, {"spec": {}}),
        ({}, {}),
    ],
)
def test_removing_a_field_removes_the_parents_that_it_leaves_empty(
    document: Any, expected: Any
) -> None:
    remove(document, ("spec", "x", "y"))

    assert document == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"spec": {"x": {"y": 1}}, "a": 1}, {"a": 1}),
        ({"spec": {"x": {"y": 1, "z": 2}}}, {"spec": {"x": {"z": 2}}}),
        ({"spec": {"x": {}}, "a": 1}, {"a": 1}),
        ({"spec": {"x": "text"}}, {"spec": {"x": "text"}}),
        ({"spec": None}, {"spec": None}),
        ({}, {}),
    ],
)
def test_a_copy_without_a_field_leaves_the_original_as_it_is(document: Any, expected: Any) -> None:
    original = clone(document)

    assert build_without(document, ("spec", "x", "y")) == expected
    assert document == original


def test_the_whole_document_can_neither_be_set_nor_removed() -> None:
    with pytest.raises(ValueError, match="Name a field"):
        ensure({}, (), 1)
    with pytest.raises(ValueError, match="Name a field"):
        remove({}, ())


def test_a_clone_shares_nothing_and_consists_of_plain_types() -> None:
    document = {"a": [{"b": 1}], "c": MappingProxyType({"d": (1, 2)})}

    copied = clone(document)
    copied["a"][0]["b"] = copied["c"]["d"] = None

    assert document == {"a": [{"b": 1}], "c": {"d": (1, 2)}}
    assert clone(document) == {"a": [{"b": 1}], "c": {"d": [1, 2]}}


@pytest.mark.parametrize("item", [1, {2}, {"x": 1}])
def test_a_document_that_was_changed_in_place_is_restored(item: Any) -> None:
    document: dict[str, Any] = {"spec": {"list": [1]}}
    snapshot = Snapshot(document)
    assert snapshot.restore() is document
    document["spec"]["list"].append(item)
    assert snapshot.restore() == {"spec": {"list": [1]}}
