"""Find how a new CustomResourceDefinition breaks stored objects and clients. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from webop.models.cel_rules import INT_OR_STRING, LIST_KEYS, PRESERVE, RULES, find_values
from webop.models.schema import Schema

_UPPER: Final = ("maximum", "maxLength", "maxItems", "maxProperties")
_LOWER: Final = ("minimum", "minLength", "minItems", "minProperties")
_WIDER: Final = (
    *(("integer", "number"), ("integer", "int or string"), ("string", "int or string")),
)
_EQUAL: Final = ("pattern", "format", "multipleOf", "x-kubernetes-list-type")


def compare(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return what breaks if a definition in the cluster is replaced, one text for each problem.

    Args:
        present: the CustomResourceDefinition of the cluster.
        wanted: that of the models.
    """
    problems = []
    old, new = present["spec"], wanted["spec"]
    for key, what in (("scope", "the scope"), ("group", "the group")):
        if old[key] != new[key]:
            problems.append(f"{what} changes from {old[key]} to {new[key]}, which is impossible")
    for key in ("plural", "kind"):
        if old["names"][key] != new["names"][key]:
            before, after = old["names"][key], new["names"][key]
            problems.append(f"the {key} changes from {before!r} to {after!r}")
    former = {each["name"]: each for each in old["versions"]}
    later = {each["name"]: each for each in new["versions"]}
    stored = (present.get("status") or {}).get("storedVersions") or []
    for name in former.keys() - later.keys():
        if name in stored:
            problems.append(
                f"version {name} goes, but objects are stored in it: run 'webop crd migrate' first"
            )
        else:
            problems.append(f"version {name} goes: clients that use it fail")
    for name in former.keys() & later.keys():
        if former[name]["served"] and not later[name]["served"]:
            problems.append(f"version {name} is no longer served: clients that use it fail")
        problems += [f"{name}: {text}" for text in _compare_access(former[name], later[name])]
        before, after = (_get_schema(each[name]) for each in (former, later))
        problems += [f"{name}: {text}" for text in _compare(before, after, "")]
    return problems


def _compare_access(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Compare the subresources and the selectable fields of a version."""
    for name in (old.get("subresources") or {}).keys() - (new.get("subresources") or {}).keys():
        yield f"the subresource {name} goes: clients that use it fail"
    paths = [[each["jsonPath"] for each in v.get("selectableFields") or ()] for v in (old, new)]
    for path in [path for path in paths[0] if path not in paths[1]]:
        yield f"{path} can no longer be selected: clients that do so fail"


def _get_schema(version: Mapping[str, Any]) -> Schema:
    found: Schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    return found


def _compare(old: Schema, new: Schema, path: str) -> Iterator[str]:
    place = path or "the object"
    old_type, new_type = _name_type(old), _name_type(new)
    if new_type not in (old_type, "anything") and (old_type, new_type) not in _WIDER:
        yield f"{place} changes from {old_type} to {new_type}"
        return
    yield from _compare_limits(old, new, place)
    properties, others = new.get("properties", {}), old.get("properties", {})
    for name, part in others.items():
        where = f"{path}.{name}".lstrip(".")
        if name in properties:
            yield from _compare(part, properties[name], where)
        elif not new.get(PRESERVE) and not isinstance(new.get("additionalProperties"), dict):
            yield f"{where} is removed: stored values are dropped"
    for name in {*new.get("required", ())} - {*old.get("required", ())}:
        if "default" not in properties.get(name, {}):
            where = f"{path}.{name}".lstrip(".")
            yield f"{where} becomes required, without a default: objects without it are refused"
    if _is_open(old) and new.get("type") == "object" and not _is_open(new):
        yield f"{place} no longer keeps unknown fields: stored values are dropped"
    for key, step in (("items", "[]"), ("additionalProperties", "[key]")):
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            yield from _compare(old[key], new[key], f"{path}{step}")


def _compare_limits(old: Schema, new: Schema, place: str) -> Iterator[str]:
    for key in (*_UPPER, *_LOWER):
        if _is_narrower(old, new, key, -1 if key in _LOWER else 1):
            yield f"{place}: {key} becomes {new[key]}"
    for key in _EQUAL:
        if key in new and new[key] != old.get(key):
            yield f"{place}: {key} becomes {new[key]!r}"
    before, after = (each.get(LIST_KEYS, ()) for each in (old, new))
    if after and (gone := [key for key in before if key not in after]):
        names = " and ".join(map(repr, gone))
        yield f"{place}: items that differ only in {names} are no longer allowed"
    yield from _compare_values(old, new, place)


def _is_narrower(old: Schema, new: Schema, key: str, sign: int) -> bool:
    if key not in new:
        return False
    exclusive = f"exclusive{key.capitalize()}"
    limits = [
        (sign * each[key], not each.get(exclusive)) if key in each else (float("inf"), True)
        for each in (old, new)
    ]
    return limits[1] < limits[0]


def _compare_values(old: Schema, new: Schema, place: str) -> Iterator[str]:
    before, after = find_values(old), find_values(new)
    if gone := [value for value in before if after and value not in after]:
        yield f"{place}: {', '.join(map(repr, gone))} is no longer allowed"
    elif after and not before:
        yield f"{place}: only {', '.join(map(repr, after))} stay allowed"
    if old.get("nullable") and not new.get("nullable"):
        yield f"{place} can no longer be null"
    former = {rule["rule"] for rule in old.get(RULES, ())}
    for rule in new.get(RULES, ()):
        if rule["rule"] not in former:
            yield f"{place}: a new rule, {rule['rule']!r}"
    if "default" in old and "default" not in new:
        yield f"{place} has no default any more"


def _is_open(schema: Schema) -> bool:
    return bool(schema.get(PRESERVE)) or isinstance(schema.get("additionalProperties"), dict)


def _name_type(schema: Schema) -> str:
    if schema.get(INT_OR_STRING):
        return "int or string"
    return str(schema.get("type", "anything"))
