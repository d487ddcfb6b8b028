"""Does the fake client accept too much? Requests with mistakes, to it and to a real API server.

Each case has an object of its own, so that one difference brings no others: first it is created as
it should be, then comes the request that counts. Objects and changes are in ``strictness.yaml``.
"""

from __future__ import annotations

import contextlib
import copy
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from webop.testing import FakeClient
from webop.testing.apiserver import Json, Request

from .requests import (
    APPLY,
    CRDS,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    Drawn,
    Place,
    build_request,
    find_place,
    read,
)
from .sides import Memory, RealSide, reduce

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

CLASSES = ("false green", "false red", "other status", "other content", "other causes")

_DATA = read("strictness")
_KINDS = {find_place(name, facts): facts for name, facts in _DATA["kinds"].items()}
_ROCKS = next(place for place in _KINDS if place.plural == "rocks")
_SELECTORS = ["metadata.name=a", "spec.what=a"]
_WEIGHTS, _WAYS = _DATA["weights"], _DATA["ways"]


@dataclass
class Outcome:
    """What was compared.

    Attributes:
        sent: the requests by kind.
        counts: the differences by kind and class.
        stories: the class and a description of each difference.
    """

    sent: Counter[str] = field(default_factory=Counter)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    stories: list[tuple[str, str]] = field(default_factory=list)

    def build_table(self) -> str:
        """Return a table in Markdown."""
        lines = [f"| Kind | requests | {' | '.join(CLASSES)} |", "|---" * 7 + "|"]
        for kind in (*sorted(self.sent), "all"):
            kinds = self.sent if kind == "all" else {kind}
            counts = [sum(self.counts[one, name] for one in kinds) for name in CLASSES]
            sent = sum(self.sent[one] for one in kinds)
            lines.append(f"| {kind} | {sent} | {' | '.join(map(str, counts))} |")
        return "\n".join(lines)


def compare(cluster: LocalCluster, seed: int, count: int) -> Outcome:
    """Send so many requests to both servers."""
    outcome, rng = Outcome(), random.Random(seed)
    namespace = f"strict-{time.time_ns() // 1_000_000:x}"
    with contextlib.closing(RealSide(cluster)) as real:
        sides = (real, _FakeSide(namespace))
        body = {"metadata": {"name": namespace}}
        real.send(build_request("POST", "/api/v1/namespaces", body))
        for side in sides:
            side.send(build_request("POST", CRDS, _build_crd()))
        while real.send(Request("GET", _ROCKS.build_path(namespace)))[0] != 200:
            time.sleep(0.1)
        for number in range(count):
            weights = [_WEIGHTS.get(place.plural, 0.2) for place in _KINDS]
            place = rng.choices(list(_KINDS), weights)[0]
            requests = _Case(rng, place, namespace, f"case-{number}").draw()
            kind = place.plural if place.plural in _WEIGHTS else "other kinds"
            outcome.sent[kind] += 1
            if found := _find_difference(requests[-1], *(_play(side, requests) for side in sides)):
                outcome.counts[kind, found[0]] += 1
                outcome.stories.append(found)
        real.send(Request("DELETE", f"/api/v1/namespaces/{namespace}"))
    return outcome


class _FakeSide:
    def __init__(self, namespace: str) -> None:
        self._server = FakeClient(namespace=namespace)._server

    def send(self, request: Request) -> tuple[int, Any]:
        response = self._server.handle(request)
        return response.status, orjson.loads(response.encode()) if not response.text else "text"


def _build_crd() -> Json:
    """Return the definition of the kind with a rich schema."""
    spec = {name: field["schema"] for name, field in _DATA["fields"].items()}
    spec["need"] = {"type": "string"}
    properties = {
        "spec": {"type": "object", "properties": spec, "required": ["need"]},
        "status": {"type": "object", "properties": {"phase": {"type": "string", "default": "?"}}},
    }
    selectable = [{"jsonPath": f".spec.{name}"} for name in ("need", "number", "flag")]
    return _ROCKS.build_crd(properties, selectableFields=selectable)


@dataclass
class _Case:
    rng: random.Random
    place: Place
    namespace: str
    name: str

    def draw(self) -> list[Drawn]:
        """Return requests, of which the last one counts."""
        rng, place, change = self.rng, self.place, self._draw_change()
        way = rng.choices(list(_WAYS), list(_WAYS.values()))[0]
        body = self._build(change)
        if way == "create" or (way == "write status" and not place.has_status):
            return [self._post(body, **self._draw_query())]
        if way == "apply":
            return [self._apply(body, "second")]
        if way == "list":
            labelled = self._build({"metadata": {"labels": {"my": self.name}}})
            path, selectors = place.build_path(self.namespace), _KINDS[place].get("selectors")
            chosen = rng.choice(selectors or _SELECTORS)
            query = {"labelSelector": f"my={self.name}", "fieldSelector": chosen}
            return [self._post(labelled), Drawn("GET", path, place.plural, query=query)]
        present = self._build({})
        if place.plural in {"configmaps", "secrets"} and rng.random() < 0.3:
            present["immutable"] = True
        creation = self._post(present, fieldManager="first")
        if way == "apply again":
            if rng.random() < 0.5:
                creation = self._apply(self._build({}), "first")
            request = self._apply(body, rng.choice(("first", "second")))
        elif way == "replace":
            if isinstance(body["metadata"], dict):
                key = f"{place.plural}/{self.namespace}/{self.name}"
                body["metadata"]["resourceVersion"] = f"$version:{key}"
            request = self._send("PUT", body)
        elif way == "merge":
            request = self._send("PATCH", change, MERGE_PATCH)
        elif way == "write status":
            status = {"status": rng.choice(_DATA["statuses"])}
            request = self._send("PATCH", status, MERGE_PATCH, "status")
        else:
            request = self._send("PATCH", [_build_operation(change)], JSON_PATCH)
        return [creation, request]

    def _draw_change(self) -> Json:
        rng, place = self.rng, self.place
        if rng.random() < 0.12:
            chosen = rng.choice(_DATA["common"])
        elif place is _ROCKS:
            chosen = _draw_rock(rng)
        else:
            name = f"{place.plural}.{place.group}".rstrip(".")
            chosen = rng.choice(_DATA["changes"].get(name, _DATA["changes"]["others"]))
        return _expand(copy.deepcopy(chosen), _KINDS[place]["object"])

    def _draw_query(self) -> dict[str, str]:
        return {"fieldValidation": "Strict"} if self.rng.random() < 0.2 else {}

    def _build(self, change: Json) -> Json:
        body = self.place.build(self.name, **copy.deepcopy(_KINDS[self.place]["object"]))
        return _merge(body, change)

    def _post(self, body: Json, **query: str) -> Drawn:
        path = self.place.build_path(self.namespace)
        return Drawn("POST", path, self.place.plural, body, query=query)

    def _send(self, method: str, body: Any, form: str = JSON, sub: str = "", **query: str) -> Drawn:
        path = self.place.build_path(self.namespace, self.name, sub)
        query |= self._draw_query()
        return Drawn(method, path, self.place.plural, body, form, query)

    def _apply(self, body: Json, manager: str) -> Drawn:
        force = {"force": "true"} if self.rng.random() < 0.5 else {}
        return self._send("PATCH", body, APPLY, fieldManager=manager, **force)


def _draw_rock(rng: random.Random) -> Json:
    chance, fields = rng.random(), _DATA["fields"]
    if chance < 0.05:
        return {"spec": rng.choice(_DATA["specs"])}
    if chance < 0.1:
        return {"status": rng.choice(_DATA["statuses"])}
    names = rng.sample(list(fields), rng.choice((1, 1, 2)))
    values = {name: rng.choice(fields[name]["values"]) for name in names}
    if rng.random() < 0.1:
        values[rng.choice(names)] = rng.choice(_DATA["wrong"])
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


def _build_operation(change: Json) -> Json:
    """Return an operation of a JSON patch that sets one field, at most two levels deep."""
    path = ""
    value: Any = change
    while isinstance(value, dict) and len(value) == 1 and path.count("/") < 2:
        ((key, value),) = value.items()
        path += f"/{key}"
    return {"op": "add", "path": path or "/metadata/labels", "value": value}


def _play(side: Any, requests: list[Drawn]) -> tuple[int, Any, Any]:
    """Return the status, the content or the reason, and the fields of the causes."""
    memory = Memory(is_ranking=False)
    for drawn in requests:
        status, body = side.send(memory.build(drawn))
        memory.take(drawn.resource, status, body)
        if status >= 400:
            break
    content, known = memory.normalise(status, body), body if isinstance(body, dict) else {}
    if status < 400:
        # Jobs have their uid in labels, too.
        uid = known.get("metadata", {}).get("uid", "no uid")
        text = orjson.dumps(content[1:], option=orjson.OPT_SORT_KEYS).decode()
        return status, text.replace(uid, "a uid"), None
    causes = (known.get("details") or {}).get("causes") or ()
    # Without a field is what says that rules were not evaluated.
    return status, content[1:2], sorted({cause.get("field", "") for cause in causes} - {"<nil>"})


def _find_difference(request: Drawn, real: Any, fake: Any) -> tuple[str, str] | None:
    """Return the class of a difference, and a description."""
    is_real, is_fake = real[0] < 400, fake[0] < 400
    parts = zip(CLASSES[2:], real, fake, strict=True)
    differing = [name for name, one, other in parts if one != other]
    if is_real == is_fake and not differing:
        return None
    name = differing[0]
    if is_real != is_fake:
        name = "false green" if is_fake else "false red"
    texts = [f"{status} {content} {causes}" for status, content, causes in (real, fake)]
    if name == "other content" and is_real:
        texts = [str(part) for part in reduce(*(orjson.loads(side[1]) for side in (real, fake)))]
    return name, f"{request}\n   real: {texts[0][:700]}\n   fake: {texts[1][:700]}"
