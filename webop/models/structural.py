"""Structural schemas: what API servers drop, fill in, and refuse. Pure.

The part of OpenAPI v3 that operators' CRDs use most; CEL rules and formats are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import pydantic
from pydantic_core import SchemaError, SchemaValidator, core_schema

from webop.models.cel_rules import EMBEDDED, INT_OR_STRING, PRESERVE
from webop.objects.fields import ABSENT_FIELD

Json = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_SIZES: dict[type, str] = {dict: "Properties", list: "Items", str: "Length"}


def fit(value: Any, schema: Json, *, drops_misfits: bool = False) -> Any:
    """Return a value with defaults, without unknown fields and forbidden nulls.

    Both share the unchanged parts.

    Args:
        value: the value.
        schema: its schema.
        drops_misfits: whether values of another type are dropped, too; ABSENT_FIELD stands for one.
    """
    if drops_misfits and not _can_have(schema, value):
        return ABSENT_FIELD
    again = partial(fit, drops_misfits=drops_misfits)
    if isinstance(value, list) and (part := schema.get("items")):
        items = (again(item, part) for item in value)
        return [item for item in items if item is not ABSENT_FIELD]
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    if not isinstance(value, dict) or not (known or rest or schema.get("type")):
        return value
    found = {}
    for key in dict.fromkeys((*value, *known)):
        part, item = known.get(key, rest), value.get(key, ABSENT_FIELD)
        if isinstance(part, dict):
            for each in (item, part.get("default", ABSENT_FIELD)):
                is_there = each is not ABSENT_FIELD and (each is not None or _takes_null(part))
                item = again(each, part) if is_there else ABSENT_FIELD
                if item is not ABSENT_FIELD:
                    break
        elif part is not True and not schema.get(PRESERVE):
            continue
        if item is not ABSENT_FIELD:
            found[key] = item
    return found


def _can_have(schema: Json, value: Any) -> bool:
    """Return whether there are values of this type, whatever is in them."""
    if value is None:
        return _takes_null(schema)
    if schema.get(INT_OR_STRING):
        return _is_of_type(value, "integer") or isinstance(value, str)
    is_right = _is_of_type(value, schema.get("type", ""))
    return is_right and not (EMBEDDED in schema and is_malformed(value, schema))


def find_faults(value: Any, schema: Json, path: str = "") -> Iterator[str]:
    """Yield what is wrong, each with the path of the field."""
    if value is None and _takes_null(schema):
        return
    kind = schema.get("type")
    if kind and not _is_of_type(value, kind):
        yield f"{path}: must be of type {kind}"
        return
    for part in (schema, *schema.get("allOf", ())):
        if "enum" in part and value not in part["enum"]:
            yield f"{path}: unsupported value {value!r}"
    if (size := _SIZES.get(type(value))) and not (
        schema.get(f"min{size}", 0) <= len(value) <= schema.get(f"max{size}", len(value))
    ):
        yield f"{path}: too long or too short"
    if isinstance(value, dict):
        yield from _find_faults_of_fields(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from find_faults(item, schema["items"], f"{path}[{index}]")
    elif isinstance(value, str):
        if not _matches(schema.get("pattern", ""), value):
            yield f"{path}: must match {schema['pattern']}"
    elif isinstance(value, int | float) and not (
        math.isfinite(value)
        and schema.get("minimum", value) <= value <= schema.get("maximum", value)
    ):
        yield f"{path}: out of range"


def _matches(pattern: str, value: str) -> bool:
    """Return whether a value matches, also if only RE2 knows the pattern."""
    try:
        return _compile(pattern).isinstance_python(value)
    except SchemaError:
        return True


@cache
def _compile(pattern: str) -> SchemaValidator:
    """Return a check that takes linear time: values can be hostile."""
    return SchemaValidator(core_schema.str_schema(pattern=pattern))


def _find_faults_of_fields(value: Json, schema: Json, path: str) -> Iterator[str]:
    for key in schema.get("required") or ():
        if key not in value:
            yield f"{path}.{key}: required"
    known = schema.get("properties") or {}
    rest = schema.get("additionalProperties")
    for key, item in value.items():
        below = known.get(key) or (rest if isinstance(rest, dict) else None)
        if below is not None:
            yield from find_faults(item, below, f"{path}.{key}" if path else key)


def _takes_null(schema: Json) -> bool:
    """Tell whether null is kept: also in fields of which the schema says nothing."""
    is_open = schema.get(PRESERVE) and "type" not in schema
    return bool(schema.get("nullable") or is_open or not schema)


def _is_of_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind not in _TYPES or kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, object))


class _EmbeddedMetadata(pydantic.BaseModel, strict=True, extra="forbid"):
    """The fields of metadata that embedded objects have, with the types that they need."""

    name: str | None = None
    namespace: str | None = None
    generateName: str | None = None  # noqa: N815
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    creationTimestamp: None = None  # noqa: N815


class _EmbeddedObject(pydantic.BaseModel, strict=True):
    apiVersion: str = ""  # noqa: N815
    kind: str = ""
    metadata: _EmbeddedMetadata | None = None


def is_malformed(value: Any, schema: Json) -> bool:
    """Return whether API servers refuse an embedded object, and with it the whole response."""
    if isinstance(value, list):
        return any(is_malformed(item, schema.get("items", {})) for item in value)
    if not (schema and isinstance(value, dict)):
        return False
    if EMBEDDED in schema:
        try:
            _EmbeddedObject.model_validate(value)
        except pydantic.ValidationError:
            return True
    parts, more = schema.get("properties", {}), schema.get("additionalProperties") or {}
    inner = ((key, item) for key, item in value.items() if isinstance(item, (dict, list)))
    return any(is_malformed(item, parts.get(key, more)) for key, item in inner)
