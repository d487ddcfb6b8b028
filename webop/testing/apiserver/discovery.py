"""Discovery of the kinds that the server serves (Kubernetes API: "API discovery"). Pure."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import orjson

from webop.objects.resources import rank_version

from .kinds import Kind
from .messages import Json

ROOTS = {"/api", "/apis"}


@lru_cache(16)  # operators ask again and again, and kinds seldom change
def discover(root: str, kinds: tuple[Kind, ...]) -> tuple[Json, str]:
    """Answer a request for the aggregated discovery of the core group, or of all others.

    Returns:
        The body, and its ETag.
    """
    groups: dict[str, dict[str, list[Kind]]] = {}
    for kind in sorted(kinds, key=lambda kind: (kind.group, kind.plural)):
        if (root == "/api") is (kind.group == ""):
            groups.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
    found: Json = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [_build_group(name, versions) for name, versions in groups.items()],
    }
    return found, f'"{hashlib.sha256(orjson.dumps(found)).hexdigest().upper()}"'


def _build_group(name: str, versions: dict[str, list[Kind]]) -> Json:
    return {
        "metadata": {"name": name} if name else {},
        "versions": [
            {
                "version": version,
                "resources": [_build_resource(kind) for kind in versions[version]],
                "freshness": "Current",
            }
            for version in sorted(versions, key=rank_version, reverse=True)  # v2, v1, v1beta1
        ],
    }


def _build_resource(kind: Kind) -> Json:
    response = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    result: Json = {
        "resource": kind.plural,
        "responseKind": response,
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular or kind.kind.lower(),
        "verbs": kind.verbs,
    }
    if kind.short_names:
        result["shortNames"] = list(kind.short_names)
    if kind.categories:
        result["categories"] = list(kind.categories)
    if kind.subresources:
        result["subresources"] = [
            {"subresource": name, "responseKind": response, "verbs": ["get", "patch", "update"]}
            for name in kind.subresources
        ]
    return result
