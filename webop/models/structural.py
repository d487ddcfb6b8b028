"""Structural schemas: what API servers drop, fill in, and refuse. Pure.

CEL rules are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import orjson

from webop.models.formats import is_of_format
from webop.models.keywords import EMBEDDED, INT_OR_STRING, LIST_KEYS, LIST_TYPE, PRESERVE
from webop.objects.fields import ABSENT_FIELD, Json
from webop.objects.typed_values import is_number

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
UNKNOWN = "field not declared in schema"
_IDENTITY = ("apiVersion", "kind")
_EMBEDDED_METADATA = {
    *("name", "namespace", "generateName", "labels", "annotations", "creationTimestamp")
}
_SIZES: dict[type, str] = {dict: "Properties", list: "Items", str: "Length"}


def fit(value: Any, schema: Json, *, drops_misfits: bool = False, fills: bool = True) -> Any:
    """Return a value with defaults, without unknown fields and forbidden nulls.

    Both share the unchanged parts.

    Args:
        value: the value.
        schema: its schema.
        drops_misfits: whether values of another type are dropped, too; ABSENT_FIELD stands for one.
        fills: whether absent fields get their defaults.
    """
    if drops_misfits and not _can_have(schema, value):
        return ABSENT_FIELD
    again = partial(fit, drops_misfits=drops_misfits, fills=fills)
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
            default = part.get("default", ABSENT_FIELD) if fills else ABSENT_FIELD
            for each in (item, default):
                is_there = each is not ABSENT_FIELD and (each is not None or _takes_null(part))
                item = again(each, part) if is_there else ABSENT_FIELD
                if item is not ABSENT_FIELD:
                    break
        elif part is not True and not schema.get(PRESERVE) and not _is_own(key, schema):
            continue
        if item is not ABSENT_FIELD:
            found[key] = item
    return found


def _can_have(schema: Json, value: Any) -> bool:
    """Return whether there are values of this type, whatever is in them."""
    if value is None:
        return _takes_null(schema)
    return has_type(value, schema) and not (EMBEDDED in schema and is_malformed(value, schema))


def find_faults(
    value: Any,
    schema: Json,
    path: str = "",
    checks: tuple[Check, ...] | None = None,
    fits: Callable[[Any, Json], bool] | None = None,
) -> Iterator[str]:
    """Yield what is wrong, each with the path of the field.

    By default, ``checks`` are all but CEL rules, and a value fits if it is of the type.
    """
    if value is None and _takes_null(schema):
        return
    if not (fits or has_type)(value, schema):
        yield f"{path}: must be of type {schema.get('type', 'integer or string')}"
        return
    for check in _CHECKS if checks is None else checks:
        yield from check(value, schema, path)
    known, rest = schema.get("properties") or {}, schema.get("additionalProperties")
    if isinstance(value, dict):
        for key, item in value.items():
            below = known.get(key) or rest
            if isinstance(below, dict):
                yield from find_faults(item, below, f"{path}.{key}" if path else key, checks, fits)
    elif isinstance(value, list) and isinstance(below := schema.get("items"), dict):
        for index, item in enumerate(value):
            yield from find_faults(item, below, f"{path}[{index}]", checks, fits)


def check_value(value: Any, schema: Json, path: str) -> Iterator[str]:
    """Yield what is wrong with a value itself."""
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: unsupported value {value!r}"
    if (size := _SIZES.get(type(value))) and not (
        schema.get(f"min{size}", 0) <= len(value) <= schema.get(f"max{size}", len(value))
    ):
        yield f"{path}: too long or too short"
    if isinstance(value, str):
        if not _compile(schema.get("pattern", ""))(value):
            yield f"{path}: must match {schema['pattern']}"
    elif is_number(value):
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        is_low = value < low or (value == low and schema.get("exclusiveMinimum"))
        is_high = value > high or (value == high and schema.get("exclusiveMaximum"))
        if not math.isfinite(value) or is_low or is_high:
            yield f"{path}: out of range"
        elif (step := schema.get("multipleOf")) and value % step:
            yield f"{path}: must be a multiple of {step}"


def check_format(value: Any, schema: Json, path: str) -> Iterator[str]:
    """Yield that a value is not in the format of its schema."""
    name = schema.get("format", "")
    if isinstance(value, str):
        is_right = is_of_format(value, name)
    else:
        is_right = name != "int32" or not isinstance(value, int) or -(2**31) <= value < 2**31
    if not is_right:
        yield f"{path}: must be of format {name}, got {value!r}"


def check_required(value: Any, schema: Json, path: str) -> Iterator[str]:
    """Yield the fields that are missing, also in embedded objects."""
    if isinstance(value, dict):
        needed = (*(schema.get("required") or ()), *(_IDENTITY if EMBEDDED in schema else ()))
        yield from (
            f"{path}.{key}: required" if path else f"{key}: required"
            for key in needed
            if key not in value
        )
        if EMBEDDED in schema and is_malformed(value, {EMBEDDED: True}):
            yield f"{path}.metadata: invalid metadata"


def check_keys(value: Any, schema: Json, path: str) -> Iterator[str]:
    """Yield the items of a list whose keys, or that themselves, are there already."""
    kind, keys = schema.get(LIST_TYPE), schema.get(LIST_KEYS) or ()
    if kind not in {"set", "map"} or not isinstance(value, list):
        return
    below = (schema.get("items") or {}).get("properties") or {}
    seen: set[bytes] = set()  # texts: lists can be long, and hostile
    for index, item in enumerate(value):
        found = item
        if keys and isinstance(item, dict):
            found = [item.get(key, below.get(key, {}).get("default")) for key in keys]
        text = orjson.dumps(found, option=orjson.OPT_SORT_KEYS)
        if text in seen:
            yield f"{path}[{index}]: duplicate value"
        seen.add(text)


def check_logic(value: Any, schema: Json, path: str) -> Iterator[str]:
    """Yield what the alternatives of a schema say."""
    yield from (
        fault for part in schema.get("allOf", ()) for fault in find_faults(value, part, path)
    )

    def fits(part: Json) -> bool:
        return not any(find_faults(value, part, path))

    if "anyOf" in schema and not any(map(fits, schema["anyOf"])):
        yield f"{path}: must match a schema of anyOf"
    if "oneOf" in schema and sum(map(fits, schema["oneOf"])) != 1:
        yield f"{path}: must match exactly one schema of oneOf"
    if "not" in schema and fits(schema["not"]):
        yield f"{path}: must not match the schema of not"


def check_unknown(value: Any, schema: Json, path: str) -> Iterator[str]:
    """Yield the fields that the schema does not have."""
    known = schema.get("properties") or {}
    is_open = schema.get(PRESERVE) or schema.get("additionalProperties") or not schema
    if isinstance(value, dict) and not is_open:
        for key in value:
            if key not in known and not _is_own(key, schema):
                yield f"{path}.{key}: {UNKNOWN}"


def _is_own(key: str, schema: Json) -> bool:
    return EMBEDDED in schema and key in {"apiVersion", "kind", "metadata"}


Check = Callable[[Any, Json, str], Iterator[str]]
_CHECKS: tuple[Check, ...] = (check_value, check_format, check_required, check_keys, check_logic)


@cache
def _compile(pattern: str) -> Callable[[str], bool]:
    """Return a check that takes linear time: values can be hostile.

    If only RE2 knows the pattern, all values match.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema  # noqa: PLC0415 - slow

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
    except SchemaError:
        return lambda _: True


def _takes_null(schema: Json) -> bool:
    """Tell whether null is kept: also in fields of which the schema says nothing."""
    is_open = schema.get(PRESERVE) and "type" not in schema
    return bool(schema.get("nullable") or is_open or not schema)


def has_type(value: Any, schema: Json) -> bool:
    """Return whether a value is of the type of its schema."""
    if schema.get(INT_OR_STRING):
        return _is_of_type(value, "integer") or isinstance(value, str)
    return _is_of_type(value, schema.get("type", ""))


def _is_of_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind not in _TYPES or kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, object))


def _is_embedded_object(value: Json) -> bool:
    """Return whether a kind and metadata, if they are there, are such as embedded objects have."""
    metadata = value.get("metadata")
    if not all(isinstance(value.get(key, ""), str) for key in _IDENTITY):
        return False
    if metadata is None:
        return True
    if not isinstance(metadata, dict) or not metadata.keys() <= _EMBEDDED_METADATA:
        return False
    texts = [metadata.get(key) for key in ("name", "namespace", "generateName")]
    for key in ("labels", "annotations"):
        pairs = metadata.get(key)
        if not (pairs is None or isinstance(pairs, dict)):
            return False
        texts += (pairs or {}).values()
    are_texts = all(text is None or isinstance(text, str) for text in texts)
    return are_texts and metadata.get("creationTimestamp") is None


def is_malformed(value: Any, schema: Json) -> bool:
    """Return whether API servers refuse an embedded object, and with it the whole response."""
    if isinstance(value, list):
        return any(is_malformed(item, schema.get("items", {})) for item in value)
    if not (schema and isinstance(value, dict)):
        return False
    if EMBEDDED in schema and not _is_embedded_object(value):
        return True
    parts, more = schema.get("properties", {}), schema.get("additionalProperties") or {}
    inner = ((key, item) for key, item in value.items() if isinstance(item, (dict, list)))
    return any(is_malformed(item, parts.get(key, more)) for key, item in inner)
