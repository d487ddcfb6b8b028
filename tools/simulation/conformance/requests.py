"""Requests with placeholders, and the custom kinds that they are about. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml

from webop.testing.apiserver import Json, Request

GROUP = "drawn.webop.dev"
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


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

    def build(self, name: str, **fields: Any) -> Json:
        """Return an object."""
        head = {"apiVersion": self.api_version, "kind": self.kind}
        return {**head, "metadata": {"name": name}, **fields}

    def build_crd(self, properties: Json, **version: Any) -> Json:
        """Return the definition of a custom kind."""
        schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema, **version}
        if self.has_status:
            version["subresources"] = {"status": {}}
        names = {"plural": self.plural, "kind": self.kind, "shortNames": [self.plural[:3]]}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{self.group}"},
            "spec": {
                "group": self.group,
                "scope": "Namespaced" if self.is_namespaced else "Cluster",
                "names": names,
                "versions": [version],
            },
        }


@dataclass(frozen=True)
class Drawn:
    """A request with placeholders; see :mod:`tools.simulation.conformance.sides`.

    Attributes:
        is_watch: whether it is a watch that stays open.
    """

    method: str
    path: str
    resource: str
    body: Any = None
    content_type: str = JSON
    query: dict[str, str] = field(default_factory=dict)
    is_watch: bool = False

    def __str__(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self.query.items())
        body = "" if self.body is None else f" {self.content_type} {self.body}"
        return f"{self.method} {self.path}?{query}{body}"[:1000]


def build_request(
    method: str, path: str, body: Any = None, form: str = JSON, **query: str
) -> Request:
    content = None if body is None else orjson.dumps(body)
    return Request(method, path, query, {"content-type": form}, content)


def read(name: str) -> Any:
    """Return the content of one of the files beside this module."""
    return yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text())


def find_place(name: str, facts: Json) -> Place:
    """Return the resource ``plural.group`` of a file."""
    plural, _, group = name.partition(".")
    chosen = {key: facts[key] for key in ("is_namespaced", "has_status") if key in facts}
    return Place(plural, facts["kind"], group, **chosen)
