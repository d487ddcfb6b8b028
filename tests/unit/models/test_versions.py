"""Versions of a kind: the ways between them, what must be written, what a function may change."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import webop
from tests.kit.rows import rows
from webop.handlers.validation import check_registry
from webop.models.keywords import PRESERVE
from webop.models.structural import fit
from webop.models.versions import FunctionCall, collect_versions

GROUP = "ways.webop.dev"


class Plain(webop.Struct):
    size: int = 1


@webop.resource(GROUP, "v1", kind="Box", stored=False)
class BoxV1(webop.Model):
    spec: Plain


@webop.resource(GROUP, "v2", kind="Box")
class BoxV2(webop.Model):
    spec: Plain


@webop.resource(GROUP, "v3", kind="Box", stored=False, served=False)
class BoxV3(webop.Model):
    spec: Plain


@webop.resource(GROUP, "v1", kind="Bag")
class Bag(webop.Model):
    spec: Plain


def build(registry: webop.OperatorRegistry, *pairs: tuple[Any, Any]) -> None:
    for source, target in pairs:
        webop.on.convert(source, to=target, registry=registry)(lambda old: old)


def test_paths_are_direct_or_through_the_stored_version(registry: webop.OperatorRegistry) -> None:
    build(registry, (BoxV1, BoxV2), (BoxV2, BoxV1), (BoxV3, BoxV2), (BoxV2, BoxV3))
    kind = collect_versions(registry.select_converters())[f"boxes.{GROUP}"]
    assert kind.hub == "v2"

    def find(source: str, target: str) -> list[Any] | None:
        path = kind.find_path(source, target)
        return None if path is None else [(one.source, one.target) for one in path]

    assert find("v1", "v1") == []
    assert find("v1", "v2") == [(BoxV1, BoxV2)]
    assert find("v1", "v3") == [(BoxV1, BoxV2), (BoxV2, BoxV3)]
    assert find("v1", "v4") is None
    build(registry, (BoxV1, BoxV3))
    kind = collect_versions(registry.select_converters())[f"boxes.{GROUP}"]
    assert find("v1", "v3") == [(BoxV1, BoxV3)]


def test_missing_functions_are_named_when_the_operator_starts(
    registry: webop.OperatorRegistry,
) -> None:
    build(registry, (BoxV1, BoxV2))
    with pytest.raises(webop.ConfigurationError) as caught:
        check_registry(registry)
    first, second = str(caught.value).splitlines()
    # Nobody reads objects in a version that is not served.
    assert "from v2 to v1: decorate a function with @webop.on.convert(BoxV2, to=BoxV1)" in first
    assert "from v3 to v2: decorate a function with @webop.on.convert(BoxV3, to=BoxV2)" in second
    build(registry, (BoxV2, BoxV1), (BoxV3, BoxV2))
    assert check_registry(registry) == []


def test_an_index_of_a_version_that_is_not_stored_is_a_warning(
    registry: webop.OperatorRegistry,
) -> None:
    build(registry, (BoxV1, BoxV2), (BoxV2, BoxV1), (BoxV3, BoxV2))
    webop.index(BoxV1)(index_boxes)
    (warning,) = check_registry(registry)
    assert "not the stored version" in warning
    assert "Use BoxV2" in warning


def index_boxes(**_: Any) -> None: ...


def test_two_functions_for_the_same_are_an_error(registry: webop.OperatorRegistry) -> None:
    build(registry, (BoxV1, BoxV2), (BoxV1, BoxV2))
    with pytest.raises(webop.ConfigurationError, match="Two functions convert objects of boxes"):
        check_registry(registry)


@rows(
    ("source", "target", "text"),
    [
        (BoxV1, "v2", "needs two classes"),
        (Plain, BoxV1, "Plain is of no kind"),
        (BoxV1, Bag, "for two versions of one kind"),
        (BoxV1, BoxV1, "both classes are boxes.v1.ways.webop.dev"),
    ],
)
def test_mistakes_in_the_decorator_are_errors_at_import(
    source: Any, target: Any, text: str
) -> None:
    with pytest.raises(webop.ConfigurationError, match=text):
        webop.on.convert(source, to=target)


def no_argument() -> None: ...
def two_arguments(old: Any, other: Any) -> None: ...


@rows("fn", [no_argument, two_arguments])
def test_a_function_must_take_one_argument(fn: Any) -> None:
    with pytest.raises(TypeError, match=f"The converter {fn.__name__}"):
        webop.on.convert(BoxV1, to=BoxV2)(fn)


BODY: dict[str, Any] = {
    "apiVersion": f"{GROUP}/v1",
    "kind": "Box",
    "metadata": {
        "name": "one",
        "uid": "1",
        "labels": {"a": "b"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {"size": 2},
}


def convert(change: Any) -> dict[str, Any]:
    body = copy.deepcopy(BODY)
    call = FunctionCall.begin(BoxV1, body)
    result = change(call.model)
    converted = call.end(BoxV2, result)
    assert body == BODY
    return converted


def test_metadata_stays_as_it_is() -> None:
    expected = {**BODY, "apiVersion": f"{GROUP}/v2"}
    assert convert(lambda old: BoxV2(spec=old.spec)) == expected
    assert convert(lambda old: BoxV2(metadata=old.metadata, spec=old.spec)) == expected
    dumped = convert(lambda old: BoxV2.model_validate({**old.model_dump(), "kind": "Other"}))
    assert dumped == expected


@rows(
    ("metadata", "labels", "annotations"),
    [
        (webop.Metadata(labels={}), {}, None),
        (webop.Metadata(labels={"c": "d"}), {"c": "d"}, None),
        (webop.Metadata(annotations={"c": "d"}), {"a": "b"}, {"c": "d"}),
    ],
)
def test_labels_and_annotations_can_be_changed(
    metadata: webop.Metadata, labels: Any, annotations: Any
) -> None:
    found = convert(lambda old: BoxV2(metadata=metadata, spec=old.spec))["metadata"]
    assert (found.pop("labels"), found.pop("annotations", None)) == (labels, annotations)
    assert found == {name: value for name, value in BODY["metadata"].items() if name != "labels"}


def test_labels_can_be_changed_in_place() -> None:
    def change(old: BoxV1) -> BoxV2:
        old.metadata.labels["c"] = "d"
        old.metadata.annotations["e"] = "f"
        return BoxV2(metadata=old.metadata, spec=old.spec)

    found = convert(change)["metadata"]
    assert found["labels"] == {"a": "b", "c": "d"}
    assert found["annotations"] == {"e": "f"}


@rows(
    ("metadata", "fields"),
    [
        ({"name": "two"}, "metadata.name"),
        ({"uid": "2", "namespace": "other"}, "metadata.namespace and metadata.uid"),
    ],
)
def test_other_changes_of_metadata_are_errors(metadata: Any, fields: str) -> None:
    with pytest.raises(ValueError, match=f"must not change {fields}:"):
        convert(lambda old: BoxV2(metadata=webop.Metadata(**metadata), spec=old.spec))


@rows(
    ("result", "text"),
    [
        (None, "must return a BoxV2, but returned nothing"),
        (Plain(), "must return a BoxV2, but returned a Plain"),
    ],
)
def test_other_results_are_errors(result: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        convert(lambda _: result)


TEXT, OBJECT = {"type": "string"}, {"type": "object"}
INT_OR_STRING, BOTH = {"x-kubernetes-int-or-string": True}, {"a": 1, "b": "1"}


@rows(
    ("value", "schema", "expected"),
    [
        ({"a": None}, {**OBJECT, "properties": {"a": TEXT}}, {}),
        ({"a": None}, {**OBJECT, "properties": {"a": {**TEXT, "nullable": True}}}, {"a": None}),
        ({"a": None, "b": 5}, {**OBJECT, PRESERVE: True}, {"a": None, "b": 5}),
        ({"a": 5, "b": "x"}, {**OBJECT, "additionalProperties": TEXT}, {"b": "x"}),
        ({"a": 5, "b": "x"}, {**OBJECT, "properties": {"a": TEXT}}, {}),
        ({"a": 5}, {**OBJECT, "properties": {"a": {**TEXT, "default": "y"}}}, {"a": "y"}),
        (["x", 5, None], {"type": "array", "items": TEXT}, ["x"]),
        ({"a": 1, "b": "1", "c": 1.5}, {**OBJECT, "additionalProperties": INT_OR_STRING}, BOTH),
    ],
)
def test_of_a_value_there_is_what_the_schema_can_have(
    value: Any, schema: Any, expected: Any
) -> None:
    assert fit(value, schema, drops_misfits=True) == expected
