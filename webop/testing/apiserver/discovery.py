"""Discovery of the kinds that the server serves (Kubernetes API: "API discovery"). Pure."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import orjson

from webop.objects.resources import rank_version

from .kinds import Kind
from .messages import Json, NoSuchPathError

_READING = ["get", "patch", "update"]


@lru_cache(16)  # operators ask again and again, and kinds seldom change
def discover(path: str, kinds: tuple[Kind, ...], *, is_aggregated: bool) -> tuple[Json, str]:
    """Answer a request about a root, a group, or a version of a group.

    Returns:
        The body, and its ETag.

    Raises:
        NoSuchPathError: there is no such group or version.
    """
    found = _describe(path, kinds, is_aggregated=is_aggregated)
    return found, f'"{hashlib.sha256(orjson.dumps(found)).hexdigest().upper()}"'


def _describe(path: str, kinds: tuple[Kind, ...], *, is_aggregated: bool) -> Json:
    groups: dict[str, dict[str, list[Kind]]] = {}
    for kind in sorted(kinds, key=lambda kind: (kind.group, kind.plural)):
        groups.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
    root, *parts = path.strip("/").split("/")
    core = groups.pop("")
    if root == "api":
        parts, groups = ["", *parts], {"": core}
    if is_aggregated and parts in ([], [""]):
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": [_build_group_discovery(name, groups[name]) for name in groups],
        }
    match parts:
        case [""]:
            return {"kind": "APIVersions", "versions": list(core)}
        case []:
            listed = [_build_group(name, groups[name]) for name in groups]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case [group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_build_group(group, groups[group])}
        case [group, version] if version in groups.get(group, ()):
            found = groups[group][version]
            resources = [item for kind in found for item in _build_resources(kind)]
            name = found[0].api_version
            body = {"kind": "APIResourceList", "groupVersion": name, "resources": resources}
            return {"apiVersion": "v1", **body} if group else body
    raise NoSuchPathError


def _build_group_discovery(name: str, versions: dict[str, list[Kind]]) -> Json:
    return {
        "metadata": {"name": name} if name else {},
        "versions": [
            {
                "version": version,
                "resources": [_build_resource_discovery(kind) for kind in kinds],
                "freshness": "Current",
            }
            for version, kinds in _sort_versions(versions)
        ],
    }


def _build_resource_discovery(kind: Kind) -> Json:
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
            {"subresource": name, "responseKind": response, "verbs": _READING}
            for name in kind.subresources
        ]
    return result


def _build_group(name: str, versions: dict[str, list[Kind]]) -> Json:
    listed = [
        {"groupVersion": f"{name}/{version}", "version": version}
        for version, _ in _sort_versions(versions)
    ]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _build_resources(kind: Kind) -> list[Json]:
    common = {"namespaced": kind.namespaced, "kind": kind.kind}
    result: Json = {
        "name": kind.plural,
        "singularName": kind.singular or kind.kind.lower(),
        **common,
        "verbs": kind.verbs,
    }
    if kind.short_names:
        result["shortNames"] = list(kind.short_names)
    if kind.categories:
        result["categories"] = list(kind.categories)
    return [
        result,
        *(
            {"name": f"{kind.plural}/{name}", "singularName": "", **common, "verbs": _READING}
            for name in kind.subresources
        ),
    ]


def _sort_versions(versions: dict[str, list[Kind]]) -> list[tuple[str, list[Kind]]]:
    """Sort them by priority: v2, v1, v1beta1, v1alpha1."""
    return sorted(versions.items(), key=lambda item: rank_version(item[0]), reverse=True)
