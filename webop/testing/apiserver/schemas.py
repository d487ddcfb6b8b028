"""Structural schemas: what is dropped, filled in, and refused in objects. Pure.

The part of OpenAPI v3 that operators' CRDs use most; CEL rules and formats are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .messages import Json

KEEPS_UNKNOWN = "x-kubernetes-preserve-unknown-fields"

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def fit(value: Any, schema: Json) -> Any:
    """Return the value without unknown fields and forbidden nulls, with defaults.

    Both share the unchanged parts.
    """
    if isinstance(value, list):
        items = schema.get("items")
        return [fit(item, items) for item in value] if items else value
    if not isinstance(value, dict):
        return value
    known: Json = schema.get("properties") or {}
    if not known and schema.get(KEEPS_UNKNOWN):
        return value
    rest = schema.get("additionalProperties")
    result: Json = {}
    for key, item in value.items():
        below = known.get(key) or (rest if isinstance(rest, dict) else None)
        if below is not None:
            is_dropped = item is None and not _takes_null(below)
            if not is_dropped:
                result[key] = fit(item, below)
        elif schema.get(KEEPS_UNKNOWN) or rest is True:
            result[key] = item
    for key, below in known.items():
        if "default" in below and key not in result:
            result[key] = below["default"]
    return result


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
    if isinstance(value, dict):
        yield from _find_faults_of_fields(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from find_faults(item, schema["items"], f"{path}[{index}]")
    elif isinstance(value, str):
        yield from _find_faults_of_text(value, schema, path)
    elif isinstance(value, int | float) and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
    ):
        yield f"{path}: out of range"


def _find_faults_of_text(value: str, schema: Json, path: str) -> Iterator[str]:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{path}: too long or too short"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: must match {schema['pattern']}"


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
    is_open = schema.get(KEEPS_UNKNOWN) and "type" not in schema
    return bool(schema.get("nullable") or is_open)


def _is_of_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])
