"""Fields of documents: naming, reading, writing, removing."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from webop import FieldPath, FieldSpec
from webop.objects.fields import parse_field, resolve


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
