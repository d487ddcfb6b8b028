"""Find CEL rules that can exceed the cost budget of the API server. Pure.

The API server estimates what a rule costs at most, from the maximal lengths in the schema, and
refuses the CustomResourceDefinition if that is too much. It assumes an endless number of items
for a list or map without a maximal length. A rule of such items is cheap enough, unless it also
visits each item of another list, or reads all of a text, without a maximal length. (Kubernetes:
"Validation rules", "Resource use by validation functions".)

Caveats: other rules can cost too much, such as nested visits. Only the API server knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from webop.errors import ConfigurationError
from webop.models.keywords import RULES

_LIMITS: Final = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}
_BOUNDED_FORMATS: Final = frozenset({"date-time", "date", "uuid", "ipv4", "ipv6", "duration"})
_PATH: Final = r"\b(?:self|oldSelf)((?:\.[A-Za-z_]\w*)*)"
_find_methods = re.compile(
    rf"{_PATH}\.(all|exists|exists_one|map|filter|sum|min|max|isSorted|contains|matches|find|"
    r"findAll|split|replace|substring|trim|indexOf|lastIndexOf|lowerAscii|upperAscii)\("
).finditer
_find_functions = re.compile(rf"\b(?:isQuantity|quantity|isIP|isCIDR)\({_PATH}\)").finditer
_TIMES: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})


def find_values(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values of an enum, without null; for other schemas, nothing."""
    parts = (schema, *schema.get("allOf", ()))  # null is refused in a plain enum
    return [value for part in parts for value in part.get("enum", ()) if value is not None]


def check_costs(schema: dict[str, Any], place: str, unbounded: str = "") -> None:
    """Check all rules of a schema.

    Args:
        schema: of a class, or of a part of it.
        place: the name of the class, and the path of the part.
        unbounded: the outermost list or map without a maximal length around it.

    Raises:
        ConfigurationError: a rule has no limit; the message names the field that needs one.
    """
    if unbounded:
        _check_rules(schema, place, unbounded)
    for name, part in schema.get("properties", {}).items():
        check_costs(part, f"{place}.{name}", unbounded)
    for key, step in (("items", "[]"), ("additionalProperties", "[key]")):
        if isinstance(inner := schema.get(key), dict):
            around = unbounded or (place if _is_unbounded(schema) else "")
            check_costs(inner, f"{place}{step}", around)


def _check_rules(schema: dict[str, Any], place: str, unbounded: str) -> None:
    for rule in schema.get(RULES, ()):
        text = rule["rule"]
        for found in (*_find_methods(text), *_find_functions(text)):
            part, where = schema, place
            for name in filter(None, found[1].split(".")):
                part, where = part.get("properties", {}).get(name, {}), f"{where}.{name}"
            if _is_unbounded(part):
                is_visit = found.re.groups > 1 and found[2] in _TIMES
                verb = "visits each item of" if is_visit else "reads all of"
                _refuse(place, text, f"{verb} {where}", unbounded, where)


def _is_unbounded(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if kind not in _LIMITS or find_values(part) or part.get("format") in _BOUNDED_FORMATS:
        return False
    if kind == "object" and "additionalProperties" not in part:
        return False
    return _LIMITS[kind] not in part


def _refuse(place: str, rule: str, what: str, unbounded: str, where: str) -> None:
    raise ConfigurationError(
        f"{place}: the rule {rule!r} is checked for each item of {unbounded}, and {what}. Neither "
        "has a maximal length: the API server would refuse its cost. Set "
        f"pydantic.Field(max_length=…) for {where}."
    )
