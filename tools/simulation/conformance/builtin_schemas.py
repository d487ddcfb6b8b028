"""``python -m tools.simulation.conformance.builtin_schemas``: write the schemas of built-in kinds.

A real kube-apiserver publishes them as OpenAPI. It does not publish its defaults, nor all that it
requires: ``builtin_schemas.yaml`` adds those of workloads.
"""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path
from typing import Any

import orjson

import webop.testing.apiserver
from webop.cli.manifests.kinds import list_builtin
from webop.controlplane.cluster import LocalCluster
from webop.testing.apiserver import Json, Request

from .requests import read
from .sides import RealSide

FILE = Path(webop.testing.apiserver.__file__).with_name("builtin_schemas.json.gz")
_KEPT = {
    "additionalProperties",
    "default",
    "enum",
    "format",
    "items",
    "properties",
    "required",
    "type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
}
_FREE: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_REPLACED: dict[str, Json] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"format": "quantity"},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"x-kubernetes-int-or-string": True},
    "io.k8s.apimachinery.pkg.runtime.RawExtension": _FREE,
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": _FREE,
}
_FACTS = read("builtin_schemas")
_CHANGING = {"activeDeadlineSeconds", "containers", "initContainers", "tolerations"}  # of Pods
# What nodes and controllers write is not checked.
_UNCHECKED = ("AttachedVolume", "Condition", "HTTPHeader", "Node", "ObjectReference", "Status")


def build(side: RealSide) -> bytes:
    """Return the content of the file."""
    known: dict[str, Json] = {}
    _, index = side.send(Request("GET", "/openapi/v3"))
    for entry in index["paths"].values():
        path, _, query = entry["serverRelativeURL"].partition("?")
        _, found = side.send(Request("GET", path, dict([query.split("=", 1)])))
        known |= found.get("components", {}).get("schemas", {})
    names = {
        (one["group"], one["version"], one["kind"]): name
        for name, schema in known.items()
        for one in schema.get("x-kubernetes-group-version-kind", ())
    }
    made: dict[str, Json] = {}
    kinds = {}
    for kind in list_builtin():
        name = names[kind.group, kind.version, str(kind.kind)]
        _add(name, known, made)
        kinds[f"{kind.plural}.{kind.group}".rstrip(".")] = name
    for name, schema in made.items():
        if name.endswith("Status"):
            for below in schema.get("properties", {}).values():
                below.pop("enum", None)  # nobody checks them
    for root in set(kinds.values()):
        for field in ("apiVersion", "kind", "metadata"):
            made[root]["properties"].pop(field, None)
    while _trim_required(made):
        pass
    for name, fields in _FACTS["added"].items():
        for field, added in fields.items():
            made[_lengthen(name)]["properties"][field] |= added
    for name, required in _FACTS["required"].items():
        made[_lengthen(name)]["required"] = required
    facts = {name: _describe(name, schema, made) for name, schema in kinds.items()}
    content = {"kinds": facts, "definitions": made}
    return gzip.compress(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), mtime=0)


def _describe(resource: str, schema: str, made: dict[str, Json]) -> Json:
    """Return what is known of a kind beside its schema."""
    frozen = _FACTS["frozen"].get(resource, [])
    if resource == "pods":
        fields = sorted(made[_lengthen("core.PodSpec")]["properties"].keys() - _CHANGING)
        frozen = [f"spec.{field}" for field in fields]
    facts: Json = {"schema": schema} | ({"frozen": frozen} if frozen else {})
    facts |= {"counted": ["spec"]} if resource in _FACTS["counted"] else {}
    for part in ("status", "spec"):
        if resource in _FACTS[part]:
            facts[part] = _FACTS[part][resource]
    if resource == "jobs.batch":
        facts |= {"selectable": {"status.successful": "0"}, "deletes_by": "Orphan"}
    return facts


def _lengthen(name: str) -> str:
    """Return the name of a definition, of which the file has the end."""
    group, _, kind = name.partition(".")
    return f"io.k8s.api.{group}.v1.{kind}"


def _add(name: str, known: dict[str, Json], made: dict[str, Json]) -> None:
    if name not in made:
        made[name] = {}
        made[name] |= _REPLACED.get(name) or _convert(known[name], known, made)


def _convert(schema: Json, known: dict[str, Json], made: dict[str, Json]) -> Json:
    result = {key: value for key, value in schema.items() if key in _KEPT}
    if result.get("format") == "byte":
        result["format"] = "base64"
    if not result.get("default", True):
        del result["default"]  # the zero value of a type
    if reference := schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref"):
        name = result["$ref"] = reference.rpartition("/")[2]
        _add(name, known, made)
    for key in ("items", "additionalProperties"):
        if isinstance(result.get(key), dict):
            result[key] = _convert(result[key], known, made)
    if "properties" in result:
        result["properties"] = {
            key: _convert(value, known, made) for key, value in result["properties"].items()
        }
    return result


def _trim_required(made: dict[str, Json]) -> bool:
    """Keep what objects cannot do without: texts and lists, which must not be empty then.

    Numbers have zero values, and an absent object is an empty one. Return whether it was
    changed.
    """
    has_changed = False
    for name, schema in made.items():
        wanted = []
        is_checked = not any(part in name.rpartition(".")[2] for part in _UNCHECKED)
        for field in schema.get("properties", {}).keys() & schema.get("required", ()):
            below: Any = schema["properties"][field]
            target = made.get(below.get("$ref", ""), {})
            if not is_checked:
                continue
            if below.get("type") in {"string", "array"}:
                below["minLength" if below["type"] == "string" else "minItems"] = 1
                wanted.append(field)
            elif target.get("required"):
                wanted.append(field)
        has_changed |= sorted(wanted) != schema.get("required", [])
        if "required" in schema:
            schema["required"] = sorted(wanted)
            if not wanted:
                del schema["required"]
    return has_changed


def main() -> None:
    """Write the file."""
    with LocalCluster() as cluster, contextlib.closing(RealSide(cluster)) as side:
        FILE.write_bytes(build(side))


if __name__ == "__main__":
    main()
