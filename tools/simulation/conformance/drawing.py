"""Random requests: what operators and their users send, and what they send by mistake. Pure.

Names, namespaces and values are few, so that requests meet each other's objects. The values are in
``drawn.yaml``.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from webop.testing.apiserver import Json

from .requests import JSON, JSON_PATCH, MERGE_PATCH, Drawn, Place, find_place, read

OAKS = Place("oaks", "Oak")
FIRS = Place("firs", "Fir", has_status=True)
LAKES = Place("lakes", "Lake", is_namespaced=False)
CUSTOM = (OAKS, Place("elms", "Elm", has_status=True), FIRS, LAKES)
_DATA = read("drawn")
_BUILTINS = {find_place(name, facts): facts for name, facts in _DATA["builtins"].items()}
_FREE: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRICT: Json = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "minimum": 0, "maximum": 9},
        "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "deep": {"type": "object", "properties": {"list": {"type": "array", "items": _FREE}}},
        "maybe": {"type": "string", "nullable": True},
    },
    "required": ["size"],
}

Chosen = tuple[Place, str, str]


def build_crd(place: Place) -> Json:
    """Return the definition of one of the custom kinds."""
    spec = _STRICT if place is FIRS else _FREE
    return place.build_crd({"spec": spec} if place is LAKES else {"spec": spec, "status": _FREE})


class Drawing:
    def __init__(self, rng: random.Random, namespaces: tuple[str, ...]) -> None:
        self._rng = rng
        self._namespaces = namespaces
        self._count = 0
        self._weighted: dict[Callable[[], Drawn], float] = {
            self._create: 16,
            self._create_wrongly: 8,
            self._get: 6,
            self._list: 10,
            partial(self._patch, "spec", dry=0.1): 8,
            partial(self._patch, "metadata", is_guarded=True): 14,
            partial(self._patch, "status", sub="status"): 8,
            partial(self._patch, "wrong"): 8,
            self._patch_json: 12,
            self._replace: 9,
            self._delete: 14,
            self._use_builtin: 23,
            self._go_astray: 6,
            self._watch: 4,
        }

    def draw(self) -> Drawn:
        self._count += 1
        ways, weights = tuple(self._weighted), tuple(self._weighted.values())
        return self._rng.choices(ways, weights)[0]()

    def _has_luck(self, share: float) -> bool:
        return self._rng.random() < share

    def _choose(self) -> Chosen:
        place = self._rng.choices(CUSTOM, (5, 6, 2, 1))[0]
        namespace = self._rng.choice(self._namespaces) if place.is_namespaced else ""
        return place, namespace, self._rng.choice(_DATA["names"])

    def _draw_body(self, chosen: Chosen, bodies: list[Any]) -> Any:
        """Choose a body, with the placeholders of an object."""
        place, namespace, name = chosen
        return _address(self._rng.choice(bodies), f"{place.plural}/{namespace}/{name}")

    def _ask(
        self, method: str, chosen: Chosen, body: Any = None, form: str = JSON, sub: str = ""
    ) -> Drawn:
        """Ask for an object."""
        place, namespace, name = chosen
        return Drawn(method, place.build_path(namespace, name, sub), place.plural, body, form)

    def _build(self, chosen: Chosen) -> Json:
        place, _, name = chosen
        spec = {"size": self._rng.randrange(4), **copy.deepcopy(self._rng.choice(_DATA["specs"]))}
        body = place.build(name, spec=spec)
        if self._has_luck(0.3):
            body["metadata"]["labels"] = {"colour": self._rng.choice(("red", "blue", ""))}
        if self._has_luck(0.2):
            note = {"kopf.zalando.org/create_fn": '{"started":"2026"}'}
            body["metadata"]["annotations"] = note
        if self._has_luck(0.3):
            finalizers = self._rng.sample(_DATA["finalizers"], self._rng.choice((1, 2)))
            body["metadata"]["finalizers"] = finalizers
        return body

    def _create(self) -> Drawn:
        chosen = place, namespace, _ = self._choose()
        body = self._build(chosen)
        if self._has_luck(0.3):
            body["status"] = {"phase": "new"}
        if self._has_luck(0.1):
            del body["metadata"]["name"]
            body["metadata"]["generateName"] = f"gen-{self._count}-"
        query = {"dryRun": "All"} if self._has_luck(0.05) else {}
        return Drawn("POST", place.build_path(namespace), place.plural, body, query=query)

    def _create_wrongly(self) -> Drawn:
        chosen = place, namespace, _ = self._choose()
        body: Any = copy.deepcopy(self._rng.choice(_DATA["wrong"]))
        if isinstance(body, dict):
            good = self._build(chosen)
            good["metadata"] |= body.pop("metadata+", {})
            body = {key: value for key, value in {**good, **body}.items() if value != "$gone"}
        path = place.build_path(self._rng.choice((namespace, namespace, namespace, "absent", "")))
        return Drawn("POST", path, place.plural, body)

    def _get(self) -> Drawn:
        place, namespace, name = self._choose()
        sub = self._rng.choice(("", "", "", "status", "scale"))
        namespace = "absent" if self._has_luck(0.1) else namespace
        return self._ask("GET", (place, namespace, name), sub=sub)

    def _draw_query(self) -> dict[str, str]:
        rng, query = self._rng, dict[str, str]()
        if self._has_luck(0.5):
            query["limit"] = rng.choice(("1", "2", "3", "500", "0", "-1", "x"))
        for kind, selectors in _DATA["selectors"].items():
            if self._has_luck(0.2):
                query[f"{kind}Selector"] = rng.choice(selectors)
        return query

    def _list(self) -> Drawn:
        place, namespace, _ = self._choose()
        path = place.build_path(self._rng.choice((namespace, namespace, "absent", "")))
        # A token is of the list that it came from: of the same path, that is.
        query = self._draw_query()
        if self._has_luck(0.3):
            query["continue"] = self._rng.choice(("$token", "$token", "$token", "nonsense"))
            place, path = OAKS, OAKS.build_path("")
        elif self._has_luck(0.3):
            place, path = OAKS, OAKS.build_path("")
            query["limit"] = "2"
        return Drawn("GET", path, place.plural, query=query)

    def _patch(
        self, what: str, *, sub: str = "", dry: float = 0.0, is_guarded: bool = False
    ) -> Drawn:
        chosen = self._choose()
        body = self._draw_body(chosen, _DATA["patches"][what])
        if is_guarded:
            body["metadata"] |= self._draw_body(chosen, _DATA["guards"])
        forms = MERGE_PATCH, JSON, "application/strategic-merge-patch+json", JSON_PATCH
        form = self._rng.choices(forms, (9, 1, 1, 1))[0] if what == "wrong" else MERGE_PATCH
        drawn = self._ask("PATCH", chosen, body, form, sub)
        drawn.query.update({"dryRun": "All"} if self._has_luck(dry) else {})
        return drawn

    def _patch_json(self) -> Drawn:
        chosen, sub = self._choose(), "status" if self._has_luck(0.2) else ""
        body = self._draw_body(chosen, _DATA["operations"])
        return self._ask("PATCH", chosen, body, JSON_PATCH, sub)

    def _replace(self) -> Drawn:
        chosen = self._choose()
        body = {**self._build(chosen), "status": {"phase": self._rng.choice(("one", "two"))}}
        metadata: Json = body["metadata"]
        versions = "$version", None, "$past:2", "1", "x", "0"
        version = self._rng.choices(versions, (12, 2, 1, 1, 1, 1))[0]
        metadata |= {} if version is None else {"resourceVersion": version}
        if self._has_luck(0.3):
            metadata["uid"] = self._rng.choice(("$uid", "$uid", "another"))
        if self._has_luck(0.1):
            metadata["name"] = "z"
        if self._has_luck(0.05):
            del metadata["name"]
        whole = self._draw_body(chosen, ["$object" if self._has_luck(0.3) else body])
        return self._ask("PUT", chosen, whole, sub="status" if self._has_luck(0.3) else "")

    def _delete(self) -> Drawn:
        chosen = self._choose()
        drawn = self._ask("DELETE", chosen, self._draw_body(chosen, _DATA["deletions"]))
        drawn.query.update({"dryRun": "All"} if self._has_luck(0.05) else {})
        return drawn

    def _use_builtin(self) -> Drawn:
        weights = [facts["weight"] for facts in _BUILTINS.values()]
        place = self._rng.choices(list(_BUILTINS), weights)[0]
        facts, namespace = _BUILTINS[place], self._rng.choice(self._namespaces)
        if place.plural == "events":
            return self._post_event(place, namespace)
        name = self._rng.choice(facts["names"])
        if not place.is_namespaced:
            namespace, name = "", f"{self._namespaces[0]}-{name}"
        chosen = place, namespace, name
        body = place.build(name, **copy.deepcopy(self._rng.choice(facts["objects"])))
        usual = self._build(chosen)["metadata"] if not place.group and namespace else {}
        body["metadata"] = {**usual, **body["metadata"], "name": name}
        method = self._rng.choice(("POST", "POST", "PUT", "PATCH", "PATCH", "GET", "DELETE"))
        if method == "POST":
            return Drawn("POST", place.build_path(namespace), place.plural, body)
        if place.plural == "namespaces" and method == "PUT":
            return self._use_inside(chosen, body)
        if method in {"PUT", "PATCH"} and self._has_luck(0.5):
            version = self._rng.choices(("$version", "1"), (5, 1))[0]
            body["metadata"]["resourceVersion"] = version
        if method == "PATCH":
            patches = facts["patches"] or [body]
            return self._ask("PATCH", chosen, self._draw_body(chosen, patches), MERGE_PATCH)
        whole = self._draw_body(chosen, [body]) if method == "PUT" else None
        return self._ask(method, chosen, whole)

    def _post_event(self, place: Place, namespace: str) -> Drawn:
        body = place.build("", **copy.deepcopy(self._rng.choice(_BUILTINS[place]["objects"])))
        body["metadata"] = {"generateName": f"ev-{self._count}-", "namespace": namespace}
        body["involvedObject"].setdefault("namespace", namespace)
        return Drawn("POST", place.build_path(namespace), place.plural, body)

    def _use_inside(self, chosen: Chosen, body: Json) -> Drawn:
        """Finalize a namespace, or create something in it."""
        if self._has_luck(0.5):
            return self._ask("PUT", chosen, {**body, "spec": {}}, sub="finalize")
        place, _, name = self._choose()
        path = place.build_path(chosen[2])
        return Drawn("POST", path, place.plural, self._build((place, chosen[2], name)))

    def _go_astray(self) -> Drawn:
        place, namespace, name = self._choose()
        method, form, *body = self._rng.choice(_DATA["astray"])
        path = form.format(
            path=place.build_path(namespace, name),
            list=place.build_path(namespace),
            plural=place.plural,
        )
        return Drawn(method, path, "", *body)

    def _watch(self) -> Drawn:
        place, namespace, _ = self._choose()
        is_lease = self._has_luck(0.2)
        if is_lease:
            place, namespace = next(iter(_BUILTINS)), self._namespaces[0]
        query = {"watch": "true", **self._draw_query()}
        query.pop("limit", None)
        start = self._rng.choices(("list", "past", "0", "x"), (40, 40, 10, 10))[0]
        if start == "list":
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            past = f"$past:{self._rng.randrange(10_000)}"
            query["resourceVersion"] = past if start == "past" else start
        if self._has_luck(0.7):
            query["allowWatchBookmarks"] = "true"
        namespaces = (namespace,) if is_lease else (namespace, namespace, "")
        path = place.build_path(self._rng.choice(namespaces))
        return Drawn("GET", path, place.plural, query=query, is_watch=True)


def _address(value: Any, key: str) -> Any:
    """Return a copy of a body with the placeholders of one object."""
    if isinstance(value, dict):
        return {name: _address(item, key) for name, item in value.items()}
    if isinstance(value, list):
        return [_address(item, key) for item in value]
    if value == "$big":
        return "x" * 300_000
    return f"{value}:{key}" if value in ("$version", "$uid", "$object") else value
