"""Find how a new CustomResourceDefinition breaks stored objects and clients. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from webop.models.crds import get_storage_version
from webop.models.keywords import EMBEDDED, INT_OR_STRING, LIST_KEYS, PRESERVE, RULES
from webop.models.schema import Schema, find_values

# A rule that holds as long as nothing changes.
_COMPARES: Final = re.compile(r"self((?:\.\w+)*)\s*(?:==|>=|<=)\s*oldSelf\1")
_UPPER: Final = ("maximum", "maxLength", "maxItems", "maxProperties")
_LOWER: Final = ("minimum", "minLength", "minItems", "minProperties")
_WIDER: Final = (
    *(("integer", "number"), ("integer", "int or string"), ("string", "int or string")),
)
_ANYTHING: Final[Schema] = {PRESERVE: True, "nullable": True}
_EQUAL: Final = ("pattern", "format", "multipleOf", "x-kubernetes-list-type")


def compare(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return what breaks if a definition in the cluster is replaced, one text for each problem."""
    old, new = present["spec"], wanted["spec"]
    problems = [
        f"the {key} changes from {old[key]} to {new[key]}, which is impossible"
        for key in ("scope", "group")
        if old[key] != new[key]
    ]
    problems += [
        f"the {key} changes from {old['names'][key]!r} to {new['names'][key]!r}"
        for key in ("plural", "kind")
        if old["names"][key] != new["names"][key]
    ]
    former = {each["name"]: each for each in old["versions"]}
    later = {each["name"]: each for each in new["versions"]}
    stored = (present.get("status") or {}).get("storedVersions") or []
    for name in former.keys() - later.keys():
        advice = ", but objects are stored in it: run 'webop crd migrate' first"
        what = advice if name in stored else ": clients that use it fail"
        problems.append(f"version {name} goes{what}")
    for name in former.keys() & later.keys():
        if former[name]["served"] and not later[name]["served"]:
            problems.append(f"version {name} is no longer served: clients that use it fail")
        problems += [f"{name}: {text}" for text in _compare_access(former[name], later[name])]
        before, after = (_get_schema(each[name]) for each in (former, later))
        problems += [f"{name}: {text}" for text in _compare(before, after, "")]
    return problems


def compare_versions(definition: dict[str, Any], stored: Collection[str] = ()) -> list[str]:
    """Return what objects lose between the versions of a definition, if no function converts them.

    They can be stored in the present storage version, and in further versions.
    """
    storage, versions = get_storage_version(definition), definition["spec"]["versions"]
    used = [each["name"] for each in versions if each["served"] or each["name"] in stored]
    pairs = [pair for name in used for pair in ((name, storage), (storage, name))]
    return [drop for pair in pairs for drop in list_drops(definition, *pair)]


def list_drops(definition: Mapping[str, Any], source: str, target: str) -> Iterator[str]:
    """Yield what objects of one version lose in another one, if no function converts them.

    API servers only change ``apiVersion`` then, and drop the fields that the schema does not have.
    """
    schemas = {each["name"]: _get_schema(each) for each in definition["spec"]["versions"]}
    yield from _list_drops(schemas[source], schemas[target], "", (source, target))


def _list_drops(old: Schema, new: Schema, path: str, names: tuple[str, str]) -> Iterator[str]:
    for where, before, after in _pair_parts(old, new, path):
        if after is None:
            yield f"{names[1]} does not have {where} of {names[0]}, and API servers drop it"
        elif _is_other_type(before, after):
            types = f"{_name_type(before)} in {names[0]}, but {_name_type(after)} in {names[1]}"
            yield f"{where} is {types}, and API servers do not convert it"
        else:
            yield from _list_drops(before, after, where, names)


def _compare_access(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Compare the subresources and the selectable fields of a version."""
    before, after = ((each.get("subresources") or {}).keys() for each in (old, new))
    for name in before - after:
        yield f"the subresource {name} goes: clients that use it fail"
    if "status" in after - before and "status" in _get_schema(old).get("properties", {}):
        yield "the subresource status comes: a status that is written with the object is ignored"
    paths = [[each["jsonPath"] for each in v.get("selectableFields") or ()] for v in (old, new)]
    for path in [path for path in paths[0] if path not in paths[1]]:
        yield f"{path} can no longer be selected: clients that do so fail"


def _get_schema(version: Mapping[str, Any]) -> Schema:
    found: Schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    return found


def _compare(old: Schema, new: Schema, path: str) -> Iterator[str]:
    place = path or "the object"
    if _is_other_type(old, new):
        yield f"{place} changes from {_name_type(old)} to {_name_type(new)}"
        return
    yield from _compare_limits(old, new, place)
    for name in {*new.get("required", ())} - {*old.get("required", ())}:
        if "default" not in new.get("properties", {}).get(name, {}):
            where = f"{path}.{name}".lstrip(".")
            yield f"{where} becomes required, without a default: objects without it are refused"
    for where, before, after in _pair_parts(old, new, path):
        if after is None and before is _ANYTHING:
            yield f"{place} no longer keeps unknown fields: stored values are dropped"
        elif after is None:
            yield f"{where} is removed: stored values are dropped"
        else:
            yield from _compare(before, after, where)


def _pair_parts(old: Schema, new: Schema, path: str) -> Iterator[tuple[str, Schema, Schema | None]]:
    """Yield the places in values of a schema, each with its part and that of another schema.

    None stands for no part: API servers drop such values.
    """
    if old == new:
        return
    parts = [each.get("properties", {}) for each in (old, new)]
    rests = [_get_rest(each) for each in (old, new)]
    for name in {**parts[0], **parts[1]}:
        before, after = (part.get(name, rest) for part, rest in zip(parts, rests, strict=True))
        if before is not None:
            yield f"{path}.{name}".lstrip("."), before, after
    if rests[0] is not None:
        yield f"{path}[key]", rests[0], rests[1]
    if "items" in old and "items" in new:
        yield f"{path}[]", old["items"], new["items"]


def _get_rest(schema: Schema) -> Schema | None:
    """Return the schema of the fields that a schema does not name."""
    more = schema.get("additionalProperties")
    return more if isinstance(more, dict) else _ANYTHING if schema.get(PRESERVE) else None


def _compare_limits(old: Schema, new: Schema, place: str) -> Iterator[str]:
    for key in (*_UPPER, *_LOWER):
        if key.endswith("Items") and new.get("type") != "array":
            continue  # of strings with a format, where they refuse what is no string
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
    if new.get(EMBEDDED) and not old.get(EMBEDDED):
        yield f"{place} must be an object of Kubernetes, with apiVersion, kind and metadata"
    if old.get("nullable") and not new.get("nullable"):
        yield f"{place} can no longer be null"
    former = {rule["rule"] for rule in old.get(RULES, ())}
    for rule in new.get(RULES, ()):
        if rule["rule"] not in former and not _COMPARES.fullmatch(rule["rule"].strip()):
            yield f"{place}: a new rule, {rule['rule']!r}"
    if "default" in old and "default" not in new:
        yield f"{place} has no default any more"


def _is_other_type(old: Schema, new: Schema) -> bool:
    """Return whether a schema refuses values because of the type that another one allows."""
    types = _name_type(old), _name_type(new)
    return types[1] not in (types[0], "anything") and types not in _WIDER


def _name_type(schema: Schema) -> str:
    if schema.get(INT_OR_STRING):
        return "int or string"
    return str(schema.get("type", "anything"))
