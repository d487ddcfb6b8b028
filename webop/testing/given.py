"""Fill an API server in memory with the objects that exist at the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from webop.controlplane.cluster_client import Manifest, read_manifest
from webop.errors import ConfigurationError
from webop.objects.fields import Json
from webop.testing.apiserver import Cluster, Request
from webop.testing.conversions import add_conversions

_CRD: Final = "CustomResourceDefinition"
_ORDER: Final = {_CRD: 0, "Namespace": 1}


def add_given(
    server: Cluster, given: Iterable[Manifest], namespace: str, *, converts: bool = False
) -> None:
    """Create definitions, namespaces and objects, with their statuses.

    Args:
        server: where.
        given: as for ``LocalCluster.apply``.
        namespace: that of objects that name none; it is created, too.
        converts: whether definitions say, as operators do, that the kinds with functions are
            converted.

    Raises:
        ConfigurationError: an object is invalid, or its kind is unknown.
    """
    bodies: list[Mapping[str, Any]] = []
    for body in (body for each in given for body in read_manifest(each)):
        # Each version of a kind has the definition of all versions.
        if body["kind"] != _CRD or body not in bodies:
            bodies.append(body)
    copies = orjson.loads(orjson.dumps(bodies))
    if converts:
        add_conversions(body for body in copies if body["kind"] == _CRD)
    _add_namespace(server, namespace)
    for body in sorted(copies, key=lambda body: _ORDER.get(body["kind"], 2)):
        _add(server, body, namespace)


def _add(server: Cluster, body: Json, namespace: str) -> None:
    group, _, version = body["apiVersion"].rpartition("/")
    kinds = [kind for kind in server.kinds.list_served() if kind.kind == body["kind"]]
    found = [kind for kind in kinds if (kind.group, kind.version) == (group, version)]
    if not found:
        raise ConfigurationError(
            f"There is no kind {body['apiVersion']} {body['kind']}. Pass the class of the kind "
            "or its CustomResourceDefinition, too."
        )
    metadata = body.setdefault("metadata", {})
    if found[0].namespaced:
        _add_namespace(server, metadata.setdefault("namespace", namespace))
    metadata.pop("resourceVersion", None)
    stored = _request(server, "POST", found[0].build_path({**metadata, "name": ""}), body)
    if "status" in body and found[0].has_status:
        whole = {**stored, "status": body["status"]}
        _request(server, "PUT", f"{found[0].build_path(stored['metadata'])}/status", whole)


def _add_namespace(server: Cluster, name: str) -> None:
    if name not in server.get_objects("namespaces"):
        server.add_namespace(name)


def _request(server: Cluster, method: str, path: str, body: Json) -> Json:
    headers = {"content-type": "application/json"}
    response = server.handle(Request(method, path, {}, headers, orjson.dumps(body), "given"))
    if response.status >= 300:
        name = body["metadata"].get("name", "")
        raise ConfigurationError(
            f"{body['kind']} {name} cannot exist at the start: {response.body.get('message')}"
        )
    return response.body
