"""Find CEL rules that can exceed the cost budget of the API server. Pure.

The API server estimates what a rule costs at most, from the maximal lengths in the schema, and
refuses the CustomResourceDefinition if that is too much. Without a limit, two things cost too much:
a rule inside of a list or map, and a function that reads each item or character. (Kubernetes:
"Validation rules", "Resource use by validation functions".)
"""

from __future__ import annotations

import re
from typing import Any, Final

from webop.errors import ConfigurationError
from webop.models.rules import RULES

_LIMITS: Final = {
    "string": ("maxLength", "max_length"),
    "array": ("maxItems", "max_length"),
    "object": ("maxProperties", "max_length"),
}
_BOUNDED_FORMATS: Final = frozenset({"date-time", "date", "uuid", "ipv4", "ipv6", "duration"})
_find_calls = re.compile(
    r"\b(?:self|oldSelf)((?:\.[A-Za-z_]\w*)*)\."
    r"(all|exists|exists_one|map|filter|matches|find|findAll|split|replace|sort|sum|min|max|"
    r"indexOf|lastIndexOf)\("
).finditer
_TIMES: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})


def check_costs(schema: dict[str, Any], owner: str) -> None:
    """Check all rules of a schema.

    Raises:
        ConfigurationError: a rule has no limit; the message names the field that needs one.
    """
    _check(schema, owner, None)


def _check(schema: dict[str, Any], place: str, unbounded: str | None) -> None:
    for rule in schema.get(RULES, ()):
        text = rule["rule"]
        if unbounded is not None:
            _refuse(place, text, f"is checked for each item of {unbounded}", unbounded)
        for found in _find_calls(text):
            path = [name for name in found[1].split(".") if name]
            part, where = schema, place
            for name in path:
                part, where = part.get("properties", {}).get(name, {}), f"{where}.{name}"
            if _is_unbounded(part):
                verb = "visits each item of" if found[2] in _TIMES else "reads all of"
                _refuse(place, text, f"{verb} {where}", where)
    for name, part in schema.get("properties", {}).items():
        _check(part, f"{place}.{name}", unbounded)
    for key, step in (("items", "[]"), ("additionalProperties", "[key]")):
        if isinstance(inner := schema.get(key), dict):
            is_endless = _is_unbounded(schema)
            _check(inner, f"{place}{step}", unbounded or (place if is_endless else None))


def _is_unbounded(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if kind not in _LIMITS or "enum" in part or part.get("format") in _BOUNDED_FORMATS:
        return False
    if kind == "object" and "additionalProperties" not in part:
        return False
    return _LIMITS[kind][0] not in part


def _refuse(place: str, rule: str, why: str, where: str) -> None:
    raise ConfigurationError(
        f"{place}: the rule {rule!r} {why}, which has no maximal length: the API server would "
        f"refuse its cost. Set pydantic.Field(max_length=…) for {where}."
    )
