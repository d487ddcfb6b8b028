"""Random requests, most of them with a mistake: which of them do API servers refuse? Pure.

Each case has an object of its own, so that one difference brings no others: first it is created as
it should be, then comes the request that counts. Objects and changes are in
``strict_requests.yaml``.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webop.testing.apiserver import Json

from .requests import APPLY, JSON, JSON_PATCH, MERGE_PATCH, Drawn, Place, find_place, read

_DATA = read("strict_requests")
_KINDS = {find_place(name, facts): facts for name, facts in _DATA["kinds"].items()}
_SELECTORS = ["metadata.name=a", "spec.what=a"]
_WEIGHTS = {"rocks": 10, "deployments": 7, "jobs": 5, "secrets": 5, "configmaps": 3, "pods": 1}
_WRONG: list[Any] = [None, 5, "x", True, [], {}, 1.5]
_STATUSES: list[Json] = [
    {"phase": "a"},
    {"phase": 5},
    {"what": 1},
    {"conditions": [{"what": 1}]},
    {},
]
ROCKS = next(place for place in _KINDS if place.plural == "rocks")


def build_crd() -> Json:
    """Return the definition of the kind with a rich schema."""
    spec = {name: field["schema"] for name, field in _DATA["fields"].items()}
    spec["need"] = {"type": "string"}
    properties = {
        "spec": {"type": "object", "properties": spec, "required": ["need"]},
        "status": {"type": "object", "properties": {"phase": {"type": "string", "default": "?"}}},
    }
    selectable = [{"jsonPath": f".spec.{name}"} for name in ("need", "number", "flag")]
    return ROCKS.build_crd(properties, selectableFields=selectable)


@dataclass(frozen=True)
class Case:
    """A request, and those that come before it."""

    place: Place
    before: tuple[Drawn, ...]
    request: Drawn

    @property
    def kind(self) -> str:
        """Its row in the table."""
        return self.place.plural if self.place.plural in _WEIGHTS else "other kinds"


class Cases:
    """Draws cases; the same seed, the same cases."""

    def __init__(self, rng: random.Random, namespace: str) -> None:
        self._rng = rng
        self._namespace = namespace
        self._count = 0
        self._ways: dict[Callable[[Place, Json], Case], int] = {
            self._create: 6,
            self._replace: 3,
            self._merge: 5,
            self._patch_one_field: 2,
            self._apply_new: 4,
            self._apply_again: 4,
            self._write_status: 2,
            self._list: 1,
        }

    def draw(self) -> Case:
        self._count += 1
        weights = [_WEIGHTS.get(place.plural, 0.2) for place in _KINDS]
        place = self._rng.choices(list(_KINDS), weights)[0]
        ways = list(self._ways)
        way = self._rng.choices(ways, list(self._ways.values()))[0]
        return way(place, self._draw_change(place))

    @property
    def _name(self) -> str:
        return f"case-{self._count}"

    def _draw_change(self, place: Place) -> Json:
        rng, changes = self._rng, _DATA["changes"]
        if rng.random() < 0.12:
            chosen = rng.choice(_DATA["common"])
        elif place is ROCKS:
            chosen = _draw_rock(rng)
        else:
            name = f"{place.plural}.{place.group}".rstrip(".")
            chosen = rng.choice(changes.get(name, changes["others"]))
        return _expand(copy.deepcopy(chosen), _KINDS[place]["object"])

    def _draw_query(self) -> dict[str, str]:
        return {"fieldValidation": "Strict"} if self._rng.random() < 0.2 else {}

    def _build(self, place: Place, change: Json | None = None) -> Json:
        body = place.build(self._name, **copy.deepcopy(_KINDS[place]["object"]))
        return _merge(body, change or {})

    def _post(self, place: Place, body: Json, **query: str) -> Drawn:
        path = place.build_path(self._namespace)
        return Drawn("POST", path, place.plural, body, query=query)

    def _send(
        self, method: str, place: Place, body: Any, content: str = JSON, sub: str = "", **query: str
    ) -> Drawn:
        path = place.build_path(self._namespace, self._name, sub)
        query |= self._draw_query()
        return Drawn(method, path, place.plural, body, content, query)

    def _before(self, place: Place) -> tuple[Drawn, ...]:
        body = self._build(place)
        if place.plural in {"configmaps", "secrets"} and self._rng.random() < 0.3:
            body["immutable"] = True
        return (self._post(place, body, fieldManager="first"),)

    def _create(self, place: Place, change: Json) -> Case:
        body = self._build(place, change)
        return Case(place, (), self._post(place, body, **self._draw_query()))

    def _replace(self, place: Place, change: Json) -> Case:
        body = self._build(place, change)
        if isinstance(body["metadata"], dict):
            key = f"{place.plural}/{self._namespace}/{self._name}"
            body["metadata"]["resourceVersion"] = f"$version:{key}"
        return Case(place, self._before(place), self._send("PUT", place, body))

    def _merge(self, place: Place, change: Json) -> Case:
        request = self._send("PATCH", place, change, MERGE_PATCH)
        return Case(place, self._before(place), request)

    def _patch_one_field(self, place: Place, change: Json) -> Case:
        path = ""
        value: Any = change
        while isinstance(value, dict) and len(value) == 1 and (not path or path.count("/") < 2):
            key, value = next(iter(value.items()))
            path += f"/{key}"
        operations = [{"op": "add", "path": path or "/metadata/labels", "value": value}]
        return Case(place, self._before(place), self._send("PATCH", place, operations, JSON_PATCH))

    def _apply_new(self, place: Place, change: Json) -> Case:
        return Case(place, (), self._apply(place, self._build(place, change), "second"))

    def _apply_again(self, place: Place, change: Json) -> Case:
        manager = self._rng.choice(("first", "second"))
        before = self._before(place)
        if self._rng.random() < 0.5:
            before = (self._apply(place, self._build(place), "first"),)
        return Case(place, before, self._apply(place, self._build(place, change), manager))

    def _apply(self, place: Place, body: Json, manager: str) -> Drawn:
        force = {"force": "true"} if self._rng.random() < 0.5 else {}
        return self._send("PATCH", place, body, APPLY, fieldManager=manager, **force)

    def _write_status(self, place: Place, change: Json) -> Case:
        if not place.has_status:
            return self._create(place, change)
        status = {"status": self._rng.choice(_STATUSES)}
        request = self._send("PATCH", place, status, MERGE_PATCH, "status")
        return Case(place, self._before(place), request)

    def _list(self, place: Place, change: Json) -> Case:
        del change
        selectors = _KINDS[place].get("selectors", _SELECTORS)
        query = {"fieldSelector": self._rng.choice(selectors), "labelSelector": "my=own"}
        body = self._build(place, {"metadata": {"labels": {"my": "own"}}})
        path = place.build_path(self._namespace)
        request = Drawn("GET", path, place.plural, query=query)
        removal = Drawn("DELETE", path, place.plural, query={"labelSelector": "my=own"})
        return Case(place, (removal, self._post(place, body)), request)


def _draw_rock(rng: random.Random) -> Json:
    chance, fields = rng.random(), _DATA["fields"]
    if chance < 0.05:
        return {"spec": rng.choice(({"what": 1}, {"need": None}, {"inner": {"what": 1}}, None, 5))}
    if chance < 0.1:
        return {"status": rng.choice(({"phase": "new"}, {"phase": 5}, {"what": 1}, {}))}
    names = rng.sample(list(fields), rng.choice((1, 1, 2)))
    values = {name: rng.choice(fields[name]["values"]) for name in names}
    if rng.random() < 0.1:
        values[rng.choice(names)] = rng.choice(_WRONG)
    return {"spec": values}


def _expand(change: Json, base: Json) -> Json:
    """Return a change without abbreviations."""
    if "container" in change:
        (container,) = base["spec"]["template"]["spec"]["containers"]
        change = {"pod": {"containers": [{**container, **change["container"]}]}}
    if "pod" in change:
        return {"spec": {"template": {"spec": change["pod"]}}}
    if "$long" in (change.get("data") or ()):
        return {"data": {"x" * 254: "d"}}
    if change == {"data": {"big": "$big"}}:
        return {"data": {"big": "x" * 1_100_000}}
    return change


def _merge(target: Json, change: Json) -> Json:
    """Return an object with other fields; null stays, lists are replaced."""
    result = dict(target)
    for key, value in change.items():
        before = result.get(key)
        is_deep = isinstance(before, dict) and isinstance(value, dict) and key != "data"
        result[key] = _merge(before, value) if is_deep else value  # type: ignore[arg-type]
    return result
