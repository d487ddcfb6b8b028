"""Random requests: what operators and their users send, and what they send by mistake. Pure.

Names, namespaces and values are few, so that requests meet each other's objects.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from webop.testing.apiserver import Json

GROUP = "drawn.webop.dev"
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_NAMES = ("a", "b", "c", "d-e.f")
_FINALIZERS = ("kopf.zalando.org/KopfFinalizerMarker", "example.com/two", "plain")
_LABELS = ("red", "blue", "")
_PROGRESS = "kopf.zalando.org/create_fn"


@dataclass(frozen=True)
class Place:
    """A resource, and how its requests are addressed."""

    plural: str
    kind: str
    group: str = GROUP
    is_namespaced: bool = True
    has_status: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    def build_path(self, namespace: str, name: str = "", sub: str = "") -> str:
        path = f"/{'apis' if self.group else 'api'}/{self.api_version}"
        if self.is_namespaced and namespace:
            path += f"/namespaces/{namespace}"
        return "/".join(filter(None, (path, self.plural, name, sub)))


OAKS = Place("oaks", "Oak")
ELMS = Place("elms", "Elm", has_status=True)
FIRS = Place("firs", "Fir", has_status=True)
LAKES = Place("lakes", "Lake", is_namespaced=False)
CONFIG_MAPS = Place("configmaps", "ConfigMap", "")
SECRETS = Place("secrets", "Secret", "")
EVENTS = Place("events", "Event", "")
LEASES = Place("leases", "Lease", "coordination.k8s.io")
NAMESPACES = Place("namespaces", "Namespace", "", is_namespaced=False)
HOOKS = Place(
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    "admissionregistration.k8s.io",
    is_namespaced=False,
)
CUSTOM = (OAKS, ELMS, FIRS, LAKES)

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


def build_crd(place: Place) -> Json:
    """Return the definition of one of the custom kinds."""
    spec = _STRICT if place is FIRS else _FREE
    properties = {"spec": spec} if place is LAKES else {"spec": spec, "status": _FREE}
    version: Json = {"name": "v1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    if place.has_status:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{place.plural}.{place.group}"},
        "spec": {
            "group": place.group,
            "scope": "Namespaced" if place.is_namespaced else "Cluster",
            "names": {"plural": place.plural, "kind": place.kind, "shortNames": [place.plural[:3]]},
            "versions": [version],
        },
    }


@dataclass(frozen=True)
class Drawn:
    """A request with placeholders; see :mod:`tools.simulation.conformance.sides`.

    Attributes:
        is_watch: whether it is a watch that stays open.
        needs_cache: whether the answer comes out of the watch cache, which has to be up to date.
    """

    method: str
    path: str
    resource: str
    body: Any = None
    content_type: str = JSON
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    is_watch: bool = False

    def __str__(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self.query.items())
        body = "" if self.body is None else f" {self.content_type} {self.body}"
        return f"{self.method} {self.path}?{query}{body}"[:1000]

    @property
    def needs_cache(self) -> bool:
        """Whether the answer comes out of the watch cache, which can be late."""
        return self.method == "GET" and "resourceVersion" in self.query


class Drawing:
    def __init__(self, rng: random.Random, namespaces: tuple[str, ...]) -> None:
        self._rng = rng
        self._namespaces = namespaces
        self._count = 0
        self._weighted: dict[Callable[[], Drawn], int] = {
            self._create: 16,
            self._create_wrongly: 8,
            self._get: 6,
            self._list: 10,
            self._patch_spec: 8,
            self._patch_metadata: 14,
            self._patch_status: 8,
            self._patch_wrongly: 8,
            self._patch_json: 12,
            self._replace: 9,
            self._delete: 14,
            self._delete_many: 1,
            self._use_lease: 6,
            self._use_builtin: 8,
            self._use_event: 2,
            self._use_namespace: 4,
            self._use_hooks: 3,
            self._ask_discovery: 2,
            self._go_astray: 4,
            self._watch: 4,
        }

    def draw(self) -> Drawn:
        self._count += 1
        kinds, weights = tuple(self._weighted), tuple(self._weighted.values())
        return self._rng.choices(kinds, weights)[0]()

    def _choose(self) -> tuple[Place, str, str]:
        place = self._rng.choices(CUSTOM, (5, 6, 2, 1))[0]
        namespace = self._rng.choice(self._namespaces) if place.is_namespaced else ""
        return place, namespace, self._rng.choice(_NAMES)

    def _on_object(
        self,
        method: str,
        chosen: tuple[Place, str, str],
        body: Any,
        content_type: str = JSON,
        sub: str = "",
        **query: str,
    ) -> Drawn:
        place, namespace, name = chosen
        path = place.build_path(namespace, name, sub)
        return Drawn(method, path, place.plural, body, content_type, query)

    def _build(self, chosen: tuple[Place, str, str], **fields: Any) -> Json:
        place, _, name = chosen
        metadata: Json = {"name": name}
        if self._rng.random() < 0.3:
            metadata["labels"] = {"colour": self._rng.choice(_LABELS)}
        if self._rng.random() < 0.2:
            metadata["annotations"] = {_PROGRESS: '{"started":"2026"}'}
        if self._rng.random() < 0.3:
            metadata["finalizers"] = self._rng.sample(_FINALIZERS, self._rng.choice((1, 2)))
        return {
            "apiVersion": place.api_version,
            "kind": place.kind,
            "metadata": metadata,
            "spec": self._draw_spec(),
            **fields,
        }

    def _draw_spec(self) -> Json:
        spec: Json = {"size": self._rng.randrange(4)}
        extras: tuple[Json, ...] = (
            {},
            {"deep": {"list": [{"a": None}, {"b": [1, 2]}], "unknown": 1}},
            {"colour": "blue", "maybe": None},
            {"text": "ä\u2028\n", "number": 1.5, "flag": True, "nothing": None},
        )
        return spec | self._rng.choice(extras)

    def _create(self) -> Drawn:
        chosen = self._choose()
        body = self._build(chosen)
        if self._rng.random() < 0.3:
            body["status"] = {"phase": "new"}
        if self._rng.random() < 0.1:
            del body["metadata"]["name"]
            body["metadata"]["generateName"] = f"gen-{self._count}-"
        query = {"dryRun": "All"} if self._rng.random() < 0.05 else {}
        place, namespace, _ = chosen
        return Drawn("POST", place.build_path(namespace), place.plural, body, query=query)

    def _create_wrongly(self) -> Drawn:
        place, namespace, _ = chosen = self._choose()
        good = self._build(chosen)
        metadata: Json = good["metadata"]
        bodies: tuple[Any, ...] = (
            {**good, "kind": "Other"},
            {**good, "apiVersion": f"{GROUP}/v2"},
            {**good, "metadata": {**metadata, "namespace": "elsewhere"}},
            {**good, "metadata": {**metadata, "name": self._rng.choice(("A", "a_b", "-", 5))}},
            {**good, "metadata": {}},
            {**good, "metadata": "text"},
            {**good, "metadata": {**metadata, "resourceVersion": "5"}},
            {**good, "metadata": {**metadata, "labels": {"a": 1}}},
            {**good, "metadata": {**metadata, "labels": {"a b": "c"}}},
            {**good, "metadata": {**metadata, "labels": {"a": "c d"}}},
            {**good, "metadata": {**metadata, "annotations": {"a b": "c"}}},
            {**good, "metadata": {**metadata, "finalizers": "text"}},
            {**good, "metadata": {**metadata, "finalizers": ["no good/"]}},
            {**good, "metadata": {**metadata, "ownerReferences": [{"kind": "K"}]}},
            {**good, "metadata": {**metadata, "uid": "u", "generation": 7, "selfLink": "x"}},
            {**good, "metadata": {**metadata, "deletionTimestamp": "2020-01-01T00:00:00Z"}},
            {**good, "metadata": {**metadata, "unknown": 7, "labels": {}, "annotations": None}},
            {**good, "spec": {"size": 3.0, "whole": [{"number": 1.0}]}},
            {**good, "spec": "text"},
            {**good, "spec": None},
            {**good, "spec": []},
            {**good, "junk": {"a": 1}},
            {**good, "status": 5},
            {key: value for key, value in good.items() if key != "kind"},
            {key: value for key, value in good.items() if key != "apiVersion"},
            [good],
            5,
            None,
        )
        path = place.build_path(self._rng.choice((namespace, namespace, namespace, "absent")))
        if self._rng.random() < 0.1 and place.is_namespaced:
            path = place.build_path("")
        return Drawn("POST", path, place.plural, self._rng.choice(bodies))

    def _get(self) -> Drawn:
        place, _, name = chosen = self._choose()
        sub = self._rng.choice(("", "", "", "status", "scale"))
        if self._rng.random() < 0.1:
            chosen = (place, "absent", name)
        return self._on_object("GET", chosen, None, sub=sub)

    def _draw_query(self) -> dict[str, str]:
        query: dict[str, str] = {}
        if self._rng.random() < 0.5:
            query["limit"] = self._rng.choice(("1", "2", "3", "500", "0", "-1", "x"))
        if self._rng.random() < 0.2:
            query["fieldSelector"] = self._rng.choice(
                ("metadata.name=a", "metadata.name!=a", "metadata.namespace=x", "spec.x=1", "x")
            )
        if self._rng.random() < 0.2:
            query["labelSelector"] = self._rng.choice(
                (
                    "colour=red",
                    "colour!=red",
                    "colour in (red,blue)",
                    "!colour",
                    "colour",
                    "a in",
                    "%",
                )
            )
        if self._rng.random() < 0.3:
            query["resourceVersion"] = self._draw_version()
            if self._rng.random() < 0.5:
                query["resourceVersionMatch"] = self._rng.choice(("Exact", "NotOlderThan", "X"))
        elif self._rng.random() < 0.4:
            query["continue"] = self._rng.choice(("$token", "$token", "$token", "nonsense"))
        return query

    def _draw_version(self) -> str:
        past = f"$past:{self._rng.randrange(10_000)}"
        # For one that is not there yet, the real server waits for seconds.
        return self._rng.choices((past, "0", "x", "99999999"), (60, 20, 19, 1))[0]

    def _list(self) -> Drawn:
        place, namespace, _ = self._choose()
        path = place.build_path(self._rng.choice((namespace, namespace, "absent", "")))
        # A token is of the list that it came from: of the same path, that is.
        query = self._draw_query()
        if "continue" in query:
            place, path = OAKS, OAKS.build_path("")
        elif self._rng.random() < 0.3:
            place, path = OAKS, OAKS.build_path("")
            query["limit"] = "2"
        return Drawn("GET", path, place.plural, query=query)

    def _patch_spec(self) -> Drawn:
        patch = self._rng.choice(
            (
                {"spec": self._draw_spec()},
                {"spec": {"size": self._rng.randrange(4), "deep": {"list": None}}},
                {"spec": {"field": {"a": {"b": None, "c": 1}}}},
                {"spec": None},
                {"spec": {"size": 20}},
                {"spec": {"same": self._rng.choice((True, 1, "1"))}},
                {"spec": {"size": None}},
                {"spec": "text"},
                {},
            )
        )
        query = {"dryRun": "All"} if self._rng.random() < 0.1 else {}
        return self._on_object("PATCH", self._choose(), patch, MERGE_PATCH, **query)

    def _patch_metadata(self) -> Drawn:
        place, namespace, name = chosen = self._choose()
        key = f"{place.plural}/{namespace}/{name}"
        metadata: Json = dict(
            self._rng.choice(
                (
                    {"finalizers": list(_FINALIZERS[:1])},
                    {"finalizers": list(_FINALIZERS[:2])},
                    {"finalizers": []},
                    {"finalizers": None},
                    {"labels": {"colour": self._rng.choice((*_LABELS, None))}},
                    {"labels": None},
                    {"annotations": {_PROGRESS: self._rng.choice(("{}", "{ }", None))}},
                    {"annotations": {"a": "b", "bad key": "x"}},
                    {
                        "ownerReferences": [
                            {"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"}
                        ]
                    },
                )
            )
        )
        chance = self._rng.random()
        if chance < 0.3:
            metadata["resourceVersion"] = f"$version:{key}"
        elif chance < 0.4:
            metadata["resourceVersion"] = self._rng.choice(("$past:3", "1", "", "0", "x", None))
        elif chance < 0.6:
            metadata["uid"] = self._rng.choice((f"$uid:{key}", f"$uid:{key}", "another", "", None))
        patch: Json = {"metadata": metadata}
        if self._rng.random() < 0.3:
            patch["status"] = {"kopf": {"progress": None, "done": True}}
        return self._on_object("PATCH", chosen, patch, MERGE_PATCH)

    def _patch_status(self) -> Drawn:
        place, namespace, name = chosen = self._choose()
        key = f"{place.plural}/{namespace}/{name}"
        patch = self._rng.choice(
            (
                {"status": {"phase": self._rng.choice(("one", "two")), "gone": None}},
                {"status": {"kopf": {"progress": {"fn": {"retries": self._rng.randrange(3)}}}}},
                {"status": None},
                {"status": "text"},
                {"status": {"a": 1}, "spec": {"size": 3}, "metadata": {"labels": {"x": "y"}}},
                {"status": {"a": 2}, "metadata": {"uid": f"$uid:{key}"}},
                {"status": {"a": 3}, "metadata": {"uid": "another"}},
                {"status": {"a": 4}, "metadata": {"resourceVersion": f"$version:{key}"}},
                {"status": {"a": 5}, "metadata": {"resourceVersion": "1"}},
                {"status": {"a": 6}, "metadata": {"finalizers": []}},
            )
        )
        return self._on_object("PATCH", chosen, patch, MERGE_PATCH, sub="status")

    def _patch_wrongly(self) -> Drawn:
        body: Any = self._rng.choice(
            (
                {"metadata": {"name": "z"}},
                {"metadata": {"namespace": "z"}},
                {"metadata": None},
                {"metadata": "text"},
                {"metadata": {"labels": {"a": 5}}},
                {"metadata": {"labels": {"a": "- -"}}},
                {"metadata": {"finalizers": ["no good/"]}},
                {"metadata": {"finalizers": [5]}},
                {"metadata": {"generation": 77, "creationTimestamp": None}},
                {"metadata": {"annotations": {"big": "x" * 300_000}}},
                {"metadata": {"unknown": "x"}},
                {"kind": "Other"},
                {"kind": None},
                {"apiVersion": f"{GROUP}/v3"},
                {"junk": 1},
                [1],
                "text",
                None,
            )
        )
        content_type = self._rng.choices(
            (MERGE_PATCH, JSON, "application/strategic-merge-patch+json", JSON_PATCH), (9, 1, 1, 1)
        )[0]
        return self._on_object("PATCH", self._choose(), body, content_type)

    def _patch_json(self) -> Drawn:
        place, namespace, name = chosen = self._choose()
        key = f"{place.plural}/{namespace}/{name}"
        pointer = "/metadata/annotations/" + _PROGRESS.replace("/", "~1")
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": f"$version:{key}"}
        index = self._rng.choice(("0", "1", "-", "9", "-1", "x"))
        finalizer = self._rng.choice(_FINALIZERS)
        fields = "/metadata/finalizers"
        operations: Any = self._rng.choice(
            (
                [{"op": "add", "path": fields, "value": list(_FINALIZERS[:1])}],
                [{"op": "add", "path": f"{fields}/{index}", "value": finalizer}],
                [version, {"op": "add", "path": f"{fields}/-", "value": finalizer}],
                [
                    {"op": "test", "path": f"{fields}/{index}", "value": finalizer},
                    {"op": "remove", "path": f"{fields}/{index}"},
                ],
                [version, {"op": "remove", "path": f"{fields}/0"}],
                [version, {"op": "replace", "path": "/spec/size", "value": 3}],
                [{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}],
                [{"op": "test", "path": "/metadata/uid", "value": f"$uid:{key}"}],
                [{"op": "add", "path": pointer, "value": "{}"}],
                [{"op": "remove", "path": pointer}],
                [{"op": "replace", "path": "/spec/absent", "value": 1}],
                [{"op": "remove", "path": "/spec/absent"}],
                [{"op": "remove", "path": "/absent/absent"}],
                [{"op": "add", "path": "/absent/absent", "value": 1}],
                [{"op": "test", "path": "/spec/absent", "value": self._rng.choice((None, 1))}],
                [{"op": "test", "path": "/spec/size", "value": self._rng.choice((0, 1, 1.0, "1"))}],
                [{"op": "copy", "from": "/spec/size", "path": "/spec/copied"}],
                [{"op": "copy", "from": "/spec/absent", "path": "/spec/copied"}],
                [{"op": "move", "from": "/spec/copied", "path": "/spec/moved"}],
                [{"op": "add", "path": "/spec/size/below", "value": 1}],
                [{"op": "add", "path": "/status", "value": {"a": 1}}],
                [{"op": "replace", "path": "", "value": {}}],
                [{"op": "replace", "path": "/metadata", "value": "text"}],
                [{"op": "what", "path": "/spec"}],
                [{"op": "add", "path": "no pointer", "value": 1}],
                [{"op": "remove", "path": "/metadata/resourceVersion"}],
                {"op": "add"},
                [5],
                [],
            )
        )
        sub = "status" if self._rng.random() < 0.2 else ""
        return self._on_object("PATCH", chosen, operations, JSON_PATCH, sub=sub)

    def _replace(self) -> Drawn:
        place, namespace, name = chosen = self._choose()
        key = f"{place.plural}/{namespace}/{name}"
        body = self._build(chosen, status={"phase": self._rng.choice(("one", "two"))})
        metadata: Json = body["metadata"]
        version = self._rng.choices(
            (f"$version:{key}", None, "$past:2", "1", "x", "0"), (12, 2, 1, 1, 1, 1)
        )[0]
        if version is not None:
            metadata["resourceVersion"] = version
        if self._rng.random() < 0.3:
            metadata["uid"] = self._rng.choice((f"$uid:{key}", f"$uid:{key}", "another"))
        if self._rng.random() < 0.1:
            metadata["name"] = "z"
        if self._rng.random() < 0.05:
            del metadata["name"]
        whole: Any = f"$object:{key}" if self._rng.random() < 0.3 else body
        sub = "status" if self._rng.random() < 0.3 else ""
        return self._on_object("PUT", chosen, whole, sub=sub)

    def _delete(self) -> Drawn:
        place, namespace, name = chosen = self._choose()
        key = f"{place.plural}/{namespace}/{name}"
        body: Any = self._rng.choices(
            (
                None,
                {"apiVersion": "v1", "kind": "DeleteOptions"},
                {"preconditions": {"uid": f"$uid:{key}"}},
                {"preconditions": {"uid": "another"}},
                {"preconditions": {"resourceVersion": f"$version:{key}"}},
                {"preconditions": {"resourceVersion": "1"}},
                {"propagationPolicy": "Background"},
                {"propagationPolicy": "Foreground"},
                {"propagationPolicy": "Orphan"},
                {"propagationPolicy": "Nonsense"},
                {"gracePeriodSeconds": 30},
                [],
            ),
            (12, 2, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1),
        )[0]
        query = {"dryRun": "All"} if self._rng.random() < 0.05 else {}
        return self._on_object("DELETE", chosen, body, **query)

    def _delete_many(self) -> Drawn:
        place, namespace, _ = self._choose()
        query = self._rng.choice(({}, {"labelSelector": "colour=red"}))
        return Drawn("DELETE", place.build_path(namespace), place.plural, query=query)

    def _use_lease(self) -> Drawn:
        namespace = self._rng.choice(self._namespaces)
        chosen = LEASES, namespace, self._rng.choice(("one", "two"))
        key = f"leases/{namespace}/{chosen[2]}"
        spec: Json = {"holderIdentity": self._rng.choice("xy"), "leaseDurationSeconds": 15}
        spec["renewTime"] = f"2026-01-01T00:00:{self._rng.randrange(10, 60)}.123456Z"
        if self._rng.random() < 0.1:
            spec["leaseDurationSeconds"] = self._rng.choice((0, -1, "x", None))
        metadata: Json = {"name": chosen[2]}
        chance = self._rng.random()
        if chance < 0.5:
            metadata["resourceVersion"] = self._rng.choices((f"$version:{key}", "1"), (5, 1))[0]
        body = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
        method = self._rng.choice(("POST", "PUT", "PUT", "PATCH", "PATCH", "GET", "DELETE"))
        if method == "POST":
            metadata.pop("resourceVersion", None)
            return Drawn("POST", LEASES.build_path(namespace), "leases", body)
        if method == "PATCH":
            return self._on_object("PATCH", chosen, body, MERGE_PATCH)
        return self._on_object(method, chosen, body if method == "PUT" else None)

    def _use_builtin(self) -> Drawn:
        place = self._rng.choice((CONFIG_MAPS, SECRETS))
        chosen = place, self._rng.choice(self._namespaces), self._rng.choice(_NAMES[:2])
        key = f"{place.plural}/{chosen[1]}/{chosen[2]}"
        body = self._build(chosen)
        del body["spec"]
        body["data"] = self._rng.choice(({"a": "YWJj"}, {"a": "eHl6", "b": "eHl6"}, {}, {"a": 5}))
        method = self._rng.choice(("POST", "POST", "PUT", "PATCH", "PATCH", "GET", "DELETE"))
        if method == "POST":
            return Drawn("POST", place.build_path(chosen[1]), place.plural, body)
        if method == "PATCH":
            patch: Any = self._rng.choice(
                (
                    {"data": {"a": "YQ==", "c": None}},
                    {"metadata": {"uid": f"$uid:{key}", "finalizers": None}},
                    {"metadata": {"uid": "another"}},
                    {"metadata": {"resourceVersion": "1"}},
                    {"data": None, "metadata": {"finalizers": []}},
                    {"unknown": 5},
                )
            )
            return self._on_object("PATCH", chosen, patch, MERGE_PATCH)
        if method == "PUT" and self._rng.random() < 0.5:
            body["metadata"]["resourceVersion"] = f"$version:{key}"
        return self._on_object(method, chosen, body if method == "PUT" else None)

    def _use_event(self) -> Drawn:
        namespace = self._rng.choice(self._namespaces)
        body: Json = {
            "metadata": {"generateName": f"ev-{self._count}-", "namespace": namespace},
            "involvedObject": {"kind": "Oak", "name": "a", "namespace": namespace},
            "type": "Normal",
            "reason": "Tested",
            "message": "text",
            "source": {"component": "kopf"},
            "reportingComponent": "kopf",
            "reportingInstance": "dev",
            "action": "Action?",
            "firstTimestamp": "2026-01-01T00:00:00.123456Z",
            "lastTimestamp": "2026-01-01T00:00:00.123456Z",
            "eventTime": "2026-01-01T00:00:00.123456Z",
        }
        if self._rng.random() < 0.2:
            body["involvedObject"]["namespace"] = "elsewhere"
        return Drawn("POST", EVENTS.build_path(namespace), "events", body)

    def _use_namespace(self) -> Drawn:
        name = f"{self._namespaces[0]}-{self._rng.choice('xyz')}"
        chosen = NAMESPACES, "", name
        method = self._rng.choice(("POST", "POST", "PATCH", "GET", "DELETE", "PUT", "INSIDE"))
        body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        if method == "POST":
            return Drawn("POST", NAMESPACES.build_path(""), "namespaces", body)
        if method == "PATCH":
            patch = {"metadata": {"labels": {"a": self._rng.choice("bc")}}}
            return self._on_object("PATCH", chosen, patch, MERGE_PATCH)
        if method == "PUT":
            return self._on_object("PUT", chosen, {**body, "spec": {}}, sub="finalize")
        if method == "INSIDE":
            place, _, inside = self._choose()
            created = self._build((place, name, inside))
            return Drawn("POST", place.build_path(name), place.plural, created)
        return self._on_object(method, chosen, None)

    def _use_hooks(self) -> Drawn:
        name = f"{self._namespaces[0]}-hook"
        chosen = HOOKS, "", name
        webhook = {
            "name": self._rng.choice(("one.example.com", "two.example.com", "short")),
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [
                {
                    "apiGroups": ["absent.example.com"],
                    "apiVersions": ["v1"],
                    "operations": ["*"],
                    "resources": ["*"],
                }
            ],
            "sideEffects": self._rng.choices(("None", "Unknown"), (5, 1))[0],
            "admissionReviewVersions": ["v1"],
        }
        webhooks: Any = self._rng.choice(([webhook], [], None))
        body = {
            "apiVersion": HOOKS.api_version,
            "kind": HOOKS.kind,
            "metadata": {"name": name, "annotations": {"a": self._rng.choice("bc")}},
            "webhooks": webhooks,
        }
        method = self._rng.choice(("POST", "PATCH", "PATCH", "GET", "DELETE"))
        if method == "POST":
            return Drawn("POST", HOOKS.build_path(""), HOOKS.plural, body)
        if method == "PATCH":
            return self._on_object("PATCH", chosen, body, MERGE_PATCH)
        return self._on_object(method, chosen, None)

    def _ask_discovery(self) -> Drawn:
        path = self._rng.choice((f"/apis/{GROUP}", f"/apis/{GROUP}/v1", "/apis/absent.example.com"))
        return Drawn("GET", path, "")

    def _go_astray(self) -> Drawn:
        place, namespace, name = self._choose()
        path, list_path = place.build_path(namespace, name), place.build_path(namespace)
        choices = (
            Drawn("GET", f"/apis/{GROUP}/v1/absent", ""),
            Drawn("GET", f"/apis/{GROUP}/v2/{place.plural}", ""),
            Drawn("GET", "/apis/absent.example.com/v1/things", ""),
            Drawn("GET", "/api/v1/absent", ""),
            Drawn("GET", "/api/v2/pods", ""),
            Drawn("PUT", list_path, "", {}),
            Drawn("PATCH", list_path, "", {}, MERGE_PATCH),
            Drawn("DELETE", f"{path}/status", ""),
            Drawn("POST", f"{path}/status", "", {}),
            Drawn("DELETE", "/api/v1/namespaces", ""),
            Drawn("GET", f"{path}/status/more", ""),
            Drawn("POST", list_path, place.plural, {}, "text/plain"),
        )
        return self._rng.choice(choices)

    def _watch(self) -> Drawn:
        place, namespace, _ = self._choose()
        if self._rng.random() < 0.2:
            place, namespace = LEASES, self._namespaces[0]
        query = {"watch": "true", **self._draw_query()}
        query.pop("continue", None)
        query.pop("limit", None)
        if self._rng.random() < 0.4:
            query["sendInitialEvents"] = self._rng.choice(("true", "true", "false"))
            if self._rng.random() < 0.8:
                query["resourceVersionMatch"] = "NotOlderThan"
        if self._rng.random() < 0.7:
            query["allowWatchBookmarks"] = "true"
        if query.get("resourceVersion") == "99999999":
            query["resourceVersion"] = "0"  # the real server would wait for seconds
        path = place.build_path(self._rng.choice((namespace, namespace, "")))
        if place is LEASES:
            path = place.build_path(namespace)
        return Drawn("GET", path, place.plural, query=query, is_watch=True)
