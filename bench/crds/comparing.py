"""Compares the CustomResourceDefinition of a model with the original, field by field. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from webop.models.keywords import INT_OR_STRING, LIST_TYPE, RULES
from webop.models.schema import find_part

Json = dict[str, Any]
Path = tuple[str, ...]

_STRUCTURE = ("description", "properties", "items", "additionalProperties", "required", "title")
_OF_TEXT = ("minLength", "maxLength", "pattern")
_OF_KUBERNETES = ("apiVersion", "kind", "metadata")  # the API server knows them itself


@dataclass
class Difference:
    """A keyword that differs at some places.

    Attributes:
        what: the keyword, or "rule", "required", "column" and the like.
        theirs: of the original, as text; "" if it says nothing.
        ours: of the model.
        places: where: paths of fields, or "the definition".
    """

    what: str
    theirs: str
    ours: str
    places: list[str] = field(default_factory=list)


@dataclass
class Comparison:
    """How a model compares with the original.

    Attributes:
        fields: the number of fields of the original, of any depth.
        equal: how many have the same schema in the model.
        missing: the fields that the model does not have.
        more: those that only the model has.
        differences: all that differs, grouped.
        rules: the number of CEL rules of the original.
    """

    fields: int
    equal: int
    missing: list[str]
    more: list[str]
    differences: list[Difference]
    rules: int


def compare(theirs: Json, ours: Json) -> Comparison:
    """Compare an original with the definition of a model, in the version of the model."""
    (version,) = ours["spec"]["versions"]
    others = {each["name"]: each for each in theirs["spec"]["versions"]}
    original = others[version["name"]]
    old, new = _list_parts(original), _list_parts(version)
    found: dict[tuple[str, str, str], Difference] = {}
    unequal: set[Path] = set()
    for path in old.keys() & new.keys():
        for what, before, after in _compare(old[path], new[path]):
            _put(found, what, before, after, name_place(path))
            unequal.add(_strip(path))
    for what, before, after in _compare_definitions(theirs, original, ours, version):
        _put(found, what, before, after, "the definition")
    fields = {path for path in old if _is_field(path)}
    missing, more = fields - new.keys(), {path for path in new if _is_field(path)} - fields
    return Comparison(
        fields=len(fields),
        equal=len(fields - missing - unequal),
        missing=sorted(map(name_place, missing)),
        more=sorted(map(name_place, more)),
        differences=sorted(found.values(), key=lambda each: (each.what, each.theirs)),
        rules=sum(len(part.get(RULES, ())) for part in old.values()),
    )


def name_place(path: Path) -> str:
    """Return a path as text, such as ``spec.ports[].name``."""
    return ".".join(path).replace(".[", "[")


def _put(
    found: dict[tuple[str, str, str], Difference], what: str, theirs: str, ours: str, place: str
) -> None:
    each = found.setdefault((what, theirs, ours), Difference(what, theirs, ours))
    each.places = sorted([*each.places, place])


def _is_field(path: Path) -> bool:
    return bool(path) and path[-1] not in ("[]", "[key]")


def _strip(path: Path) -> Path:
    """Return the path of the field that has the items."""
    while path and not _is_field(path):
        path = path[:-1]
    return path


def _list_parts(version: Json) -> dict[Path, Json]:
    """Return the parts of a schema by their paths, each as it would be written shortest."""
    root = version["schema"]["openAPIV3Schema"]
    found = {}
    for path, part in _iterate_parts(root):
        if path and path[0] not in _OF_KUBERNETES:
            parent = find_part(_to_objects(root), path[:-1]) or {}
            found[path] = _normalise(part, path[-1] in parent.get("required", ()))
    return found


def _iterate_parts(schema: Json, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    """Yield all fields of a schema, with their places; "[]" and "[key]" stand for items."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _iterate_parts(part, (*path, name))
    for key, step in (("items", "[]"), ("additionalProperties", "[key]")):
        if isinstance(schema.get(key), dict):
            yield from _iterate_parts(schema[key], (*path, step))


def _to_objects(schema: Json) -> Json:
    """Return a schema in which items of lists and maps are found by "[]" and "[key]"."""
    steps = {"items": "[]", "additionalProperties": "[key]"}
    inner = {step: schema[key] for key, step in steps.items() if isinstance(schema.get(key), dict)}
    parts = schema.get("properties", {}) | inner
    return {**schema, "properties": {name: _to_objects(part) for name, part in parts.items()}}


def _normalise(part: Json, is_required: bool) -> Json:  # noqa: FBT001
    """Return what a schema says besides its structure, without what changes nothing."""
    found = {key: value for key, value in part.items() if key not in _STRUCTURE}
    if found.get(INT_OR_STRING):
        found.pop("anyOf", None)
        found.pop("type", None)
    if found.get(LIST_TYPE) == "atomic":  # lists are, without it
        del found[LIST_TYPE]
    if "enum" in found:
        values = [value for value in found["enum"] if value is not None]
        found = {key: value for key, value in found.items() if key not in _OF_TEXT}
        found["enum"] = sorted(values, key=json.dumps)
    if is_required and "default" not in part:
        found["required"] = True
    return found


def _compare(theirs: Json, ours: Json) -> Iterator[tuple[str, str, str]]:
    yield from _compare_rules(theirs.get(RULES, ()), ours.get(RULES, ()))
    for key in {*theirs, *ours} - {RULES}:
        if theirs.get(key) != ours.get(key):
            yield key, _format(theirs.get(key)), _format(ours.get(key))


def _compare_rules(theirs: Sequence[Json], ours: Sequence[Json]) -> Iterator[tuple[str, str, str]]:
    left = [dict(rule) for rule in ours]
    for rule in theirs:
        same = [each for each in left if _squeeze(each) == _squeeze(rule)]
        alike = [each for each in left if each.get("message", "?") == rule.get("message")]
        if not (same or alike):
            yield "rule", rule["rule"], ""
            continue
        match = (same or alike)[0]
        left.remove(match)
        if not same:
            yield "rule in other words", "", ""
        elif match.get("message") != rule.get("message"):
            yield "message of a rule", rule.get("message", ""), match.get("message", "")
    for rule in left:
        yield "rule", "", rule["rule"]


def _squeeze(rule: Json) -> str:
    return "".join(rule["rule"].split())


def _compare_definitions(
    theirs: Json, original: Json, ours: Json, version: Json
) -> Iterator[tuple[str, str, str]]:
    for name in (each["name"] for each in theirs["spec"]["versions"]):
        if name != version["name"]:
            yield "version", name, ""
    names = theirs["spec"]["names"], ours["spec"]["names"]
    pairs: list[tuple[Json, Json, Sequence[str]]] = [
        (theirs["spec"], ours["spec"], ("group", "scope")),
        (*names, ("kind", "plural", "singular", "shortNames", "categories")),
        (original, version, ("served", "storage", "subresources", "selectableFields")),
    ]
    for before, after, keys in pairs:
        for key in keys:
            if (before.get(key) or None) != (after.get(key) or None):
                yield key, _format(before.get(key)), _format(after.get(key))
    columns = _list_columns(original), _list_columns(version)
    for name in {*columns[0], *columns[1]}:
        if columns[0].get(name) != columns[1].get(name):
            yield "column", _format(columns[0].get(name)), _format(columns[1].get(name))


def _list_columns(version: Json) -> dict[str, Json]:
    return {
        each["name"]: {key: value for key, value in each.items() if key != "description"}
        for each in version.get("additionalPrinterColumns", ())
    }


def _format(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)
