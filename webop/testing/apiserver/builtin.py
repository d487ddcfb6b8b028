"""All kinds of Kubernetes, with the schemas that its API server publishes. Pure.

The file with the schemas is written by ``tools/simulation/conformance/builtin_schemas.py``.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson

from webop.cli.manifests.kinds import list_builtin

from . import workloads
from .kinds import BUILT_IN, CRDS, WEBHOOKS, Kind, keep
from .messages import Json


@cache
def list_kinds() -> tuple[Kind, ...]:
    """Return all kinds that are built into Kubernetes."""
    file = Path(__file__).with_name("builtin_schemas.json.gz")
    content = orjson.loads(gzip.decompress(file.read_bytes()))
    definitions = content["definitions"]
    for schema in definitions.values():
        _link(schema, definitions)
    known = {kind.resource: kind for kind in BUILT_IN}
    found = []
    for one in list_builtin():
        resource = f"{one.plural}.{one.group}".rstrip(".")
        facts = content["kinds"][resource]
        kind = known.get(resource) or Kind(
            one.group,
            one.version,
            one.plural,
            str(one.kind),
            namespaced=bool(one.namespaced),
            short_names=tuple(sorted(one.shortcuts)),
            subresources=tuple(one.subresources),
            updates_without_version=True,
            counted=facts.get("counted", ()),
            selectable=facts.get("selectable", {}),
            deletes_by=facts.get("deletes_by", ""),
            fill_in_new=workloads.fill_in_job if one.kind == "Job" else keep,
        )
        if resource not in (CRDS, *WEBHOOKS.values()):
            schema = definitions[facts["schema"]]
            kind = replace(kind, schema=schema, frozen=facts.get("frozen", kind.frozen))
        if resource not in known or resource == "pods":
            fill_in = partial(workloads.fill_in, facts)
            kind = replace(kind, fill_in=fill_in, find_faults=workloads.find_faults)
        found.append(kind)
    return tuple(found)


def _link(schema: Json, definitions: dict[str, Json]) -> None:
    """Put the definitions in the place of references."""
    for name in ("items", "additionalProperties"):
        if isinstance(below := schema.get(name), dict):
            schema[name] = _resolve(below, definitions)
    for name, below in (schema.get("properties") or {}).items():
        schema["properties"][name] = _resolve(below, definitions)


def _resolve(schema: Json, definitions: dict[str, Json]) -> Json:
    reference: Any = schema.pop("$ref", None)
    if reference is None:
        _link(schema, definitions)
        return schema
    target = definitions[reference]
    return {**target, **schema} if schema else target
