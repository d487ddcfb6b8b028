"""Structural schemas of pydantic classes: what each type becomes, and what cannot be said."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import re
import uuid
from collections.abc import Hashable
from typing import Annotated, Any, Literal
from unittest.mock import ANY

import pydantic
import pytest
from pydantic import Field, StringConstraints, create_model

import webop
from tests.kit.rows import rows
from webop.models.schema import Schema, build_schema

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
INT_OR_STRING = {"x-kubernetes-int-or-string": True, "anyOf": [INTEGER, STRING]}
FORMATTED = {**STRING, "pattern": ANY, "minItems": 1, "maxItems": 0}
PRESERVE = "x-kubernetes-preserve-unknown-fields"
Key = Annotated[str, Field(pattern="^[a-z]+$", max_length=30)]


def array(items: Schema, kind: str = "", **rest: Any) -> Schema:
    """Return the schema of a list, of the kind "set", "map" or "atomic" if it is of one."""
    kinds = {"x-kubernetes-list-type": kind} if kind else {}
    return {"type": "array", "items": items, **kinds, **rest}


def rule(text: str, message: str) -> Schema:
    return {"x-kubernetes-validations": [{"rule": text, "message": message}]}


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(webop.Struct):
    """A part."""

    part_name: str
    count: int = 1


class Tree(pydantic.BaseModel):
    children: list[Tree] = Field(default_factory=list)


class S3(pydantic.BaseModel):
    kind: Literal["s3"]
    bucket: str


class Other(pydantic.BaseModel):
    kind: Literal["other"]
    bucket: int


class Place(webop.OneOf):
    namespace: str | None = None
    in_: str | None = Field(None, alias="in")
    any_of: str | None = Field(None, alias="any-of")


@webop.Atomic()
class Whole(pydantic.BaseModel):
    f: int


PART = {
    "type": "object",
    "description": "A part.",
    "required": ["partName"],
    "properties": {"partName": STRING, "count": {**INTEGER, "default": 1}},
}


def convert(annotation: Any, default: Any = ...) -> Schema:
    model = create_model("M", f=(annotation, default))
    found: Schema = build_schema(model)["properties"]["f"]
    return found


def build_object(required: Any = (), **properties: Schema) -> Schema:
    more = {"required": [*required]} if required else {}
    return {"type": "object", "properties": properties, **more}


PLACE = build_object(namespace=STRING, **{"in": STRING, "any-of": STRING})
ONE_PLACE = rule(
    "[has(self.__namespace__), has(self.__in__), has(self.any__dash__of)].exists_one(x, x)",
    "exactly one must be set of namespace, in, any-of",
)
ATOMIC = {"x-kubernetes-map-type": "atomic"}
KEYS = {"x-kubernetes-list-map-keys": ["partName"]}


# How API servers judge values of all types by these schemas: tests/cluster/models/test_values.py
@rows(
    ("annotation", "schema"),
    [
        (str, STRING),
        (int | None, {**INTEGER, "nullable": True}),
        (int | str, INT_OR_STRING),
        (int | float, {"type": "number"}),
        (Any, {PRESERVE: True, "nullable": True}),
        (dict[str, Any], {"type": "object", PRESERVE: True}),
        (dict[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (set[str], array(STRING, "set")),
        (Literal["a", "b"], {**STRING, "enum": ["a", "b"]}),
        (Literal["a"] | None, {**STRING, "allOf": [{"enum": ["a"]}], "nullable": True}),
        (dt.datetime, {**FORMATTED, "format": "date-time"}),
        (Part, PART),
        (
            Annotated[int, Field(gt=1, le=5)],
            {**INTEGER, "minimum": 1, "exclusiveMinimum": True, "maximum": 5},
        ),
        (
            Annotated[str, Field(pattern="^a", max_length=3)],
            {**STRING, "pattern": "^a", "maxLength": 3},
        ),
        (Annotated[list[Part], webop.ListKeys("partName")], array(PART, "map", **KEYS)),
        (
            Annotated[list[dict[str, str]], webop.Unique()],
            array({"type": "object", "additionalProperties": STRING, **ATOMIC}, "set"),
        ),
        (
            Annotated[webop.Int32, Field(ge=1, lt=5)],
            {**INTEGER, "format": "int32", "minimum": 1, "maximum": 5, "exclusiveMaximum": True},
        ),
        (webop.Quantity, {**INT_OR_STRING, "pattern": ANY}),
        (Whole, {**build_object(("f",), f=INTEGER), **ATOMIC}),
        (Annotated[list[str], webop.Atomic()], array(STRING, "atomic")),
        (
            Annotated[dict[str, Any], webop.Embedded()],
            {"type": "object", PRESERVE: True, "x-kubernetes-embedded-resource": True},
        ),
        (Place, {**PLACE, **ONE_PLACE}),
        # The cost of the rule has no limit here.
        (list[Place], array({**PLACE, "minProperties": 1, "maxProperties": 1})),
    ],
)
def test_each_type_has_its_schema(annotation: Any, schema: Schema) -> None:
    assert convert(annotation) == schema


@rows(
    ("annotation", "default", "schema"),
    [
        (int, 5, {**INTEGER, "default": 5}),
        (int | None, None, INTEGER),
        (int | None, 5, {**INTEGER, "default": 5, "nullable": True}),
        (Annotated[int | None, webop.Nullable()], None, {**INTEGER, "nullable": True}),
        (Color, Color.RED, {**STRING, "enum": ["red", "blue"], "default": "red"}),
        (list[int], Field(default_factory=list), array(INTEGER, default=[])),
        (str, Field(default_factory=lambda: str(uuid.uuid4())), STRING),  # no default in the schema
        (Part, Part(part_name="x"), {**PART, "default": {"partName": "x", "count": 1}}),
    ],
)
def test_defaults_are_those_of_the_class(annotation: Any, default: Any, schema: Schema) -> None:
    assert convert(annotation, default) == schema


@rows(
    ("annotation", "message"),
    [
        (tuple[int, str], "M.f: a tuple has a type for each place"),
        (decimal.Decimal, "M.f: a Decimal can be a number or a string"),
        (bytes, "M.f: bytes have no form in JSON"),
        (dt.timedelta, "M.f: a timedelta is an ISO 8601 duration"),
        (pydantic.SecretStr, "M.f: a secret is written as asterisks"),
        (Part | S3, "M.f: Kubernetes knows no union"),
        (Tree, "M.f.children[]: the class contains itself"),
        (pydantic.IPvAnyAddress, "M.f: Kubernetes does not check the format 'ipvanyaddress'"),
        (Annotated[S3 | Other, Field(discriminator="kind")], "M.f.bucket: the classes of the"),
        (
            Annotated[list[Part], webop.ListKeys("nope")],
            "M.f: ListKeys('nope') must name a field of the items, in JSON",
        ),
        (Annotated[dict[str, int], webop.Unique()], "M.f: Unique() and ListKeys() are"),
        (dict[float, int], "M.f: API servers cannot check keys"),
        *(
            (annotation, "M.f: API servers check keys and rules only of values with a type")
            for annotation in (
                *(dict[Key, Any], dict[int, Any], dict[Key, list[Any]]),
                Annotated[Any, webop.CEL("self == oldSelf")],
                Annotated[list[Any], webop.CEL("self.size() > 1")],
            )
        ),
        (Annotated[float, Field(multiple_of=0.1)], "M.f: API servers cannot check a multiple_of="),
        *(
            (kind, "M.f: API servers cannot check this type of Python")
            for kind in (Hashable, complex, pydantic.NewPath, pydantic.ImportString[int])
        ),
        (pydantic.NaiveDatetime, "M.f: Kubernetes has no times without a time zone"),
        (Annotated[str, StringConstraints(strip_whitespace=True)], "M.f: API servers check"),
    ],
)
def test_what_kubernetes_cannot_say_is_named_with_the_field(annotation: Any, message: str) -> None:
    with pytest.raises(webop.ConfigurationError) as caught:
        convert(annotation)
    assert str(caught.value).startswith(message)


@rows(
    ("annotation", "default"),
    [
        (Any, float("nan")),
        (list[float], [float("inf")]),
        (dt.datetime, dt.datetime(2026, 1, 1)),  # noqa: DTZ001 - without a time zone
        (Annotated[str, Field(pattern="^a")], "b"),
    ],
)
def test_a_default_that_api_servers_refuse_is_an_error_at_import(
    annotation: Any, default: Any
) -> None:
    with pytest.raises(webop.ConfigurationError, match="the default does not fit the type"):
        convert(annotation, default)


@rows(
    "pattern",
    [
        *("(?x)a b", r"\u{61}", "^.{1,1500}$", "[a-z&&[^aeiou]]", "[a--b]", r"\ba", r"\W", r"\D"),
        *(r"[^\d]", r"[\S]", r"[^\p{L}]", r"\<", r"\p{Alphabetic}", "a**", r"(?-u:a)"),
    ],
)
def test_a_pattern_that_means_something_else_to_api_servers_is_refused(pattern: str) -> None:
    with pytest.raises(webop.ConfigurationError, match=r"M.f: the pattern .* API servers"):
        convert(Annotated[str, Field(pattern=pattern)])


@rows(
    "pattern",
    [
        *(r"^\d+(\.\d+)?(m|k|Ki)?$", r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", r"\x{61}\x41", r"[]a^-]"),
        *(r"(?i)^[[:alpha:]\w-]+$", r"^(?P<year>[0-9]{4})(?:-\d{2}){0,2}?$", r"\\b\[\^"),
        r"\pL\p{Greek}",
    ],
)
def test_a_pattern_that_both_understand_stays_as_it_is(pattern: str) -> None:
    assert convert(Annotated[str, Field(pattern=pattern)]) == {**STRING, "pattern": pattern}


def test_no_space_means_none_of_unicode_to_api_servers_too() -> None:
    for pattern in (r"^\S+$", r"^[^\s]+$"):
        found = convert(Annotated[str, Field(pattern=pattern)])["pattern"]
        assert re.search(found, "ä,b")
        assert not re.search(found, "a\u2028b")


def test_classes_and_fields_have_descriptions() -> None:
    class Described(webop.Struct):
        """What it is for."""

        size: int = 0
        """How large it is, in liters."""

    schema = build_schema(Described)
    assert schema["description"] == "What it is for."
    assert schema["properties"]["size"]["description"] == "How large it is, in liters."


def test_rules_of_classes_and_fields_are_all_kept_in_order() -> None:
    @webop.CEL("self.low <= self.high", message="low must not exceed high", field_path=".low")
    @webop.CEL("self.high < 10")
    class Range(webop.Struct):
        low: Annotated[int, webop.CEL("self > 1"), webop.CEL("self >= oldSelf")]
        high: int

    class Holder(webop.Struct):
        range: Annotated[Range, webop.CEL("self.low != 5")]

    schema = build_schema(Holder)["properties"]["range"]
    assert [rule["rule"] for rule in schema["x-kubernetes-validations"]] == [
        "self.high < 10",
        "self.low <= self.high",
        "self.low != 5",
    ]
    low = schema["properties"]["low"]["x-kubernetes-validations"]
    assert [rule["rule"] for rule in low] == ["self > 1", "self >= oldSelf"]
