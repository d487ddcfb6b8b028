"""What to ask of the API server, so that it asks a webhook, and nothing changes. Pure.

A dry run goes all the way but for the store (Kubernetes API concepts: "Dry-run").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from webop.client.calls import JSON, MERGE_PATCH
from webop.doctor.records import Json, Record
from webop.doctor.selectors import build_labels
from webop.objects.resources import Resource

ANNOTATION = "webop.dev/doctor"

_NAME_PREFIX = "webop-doctor-"
_DRY = frozenset({"None", "NoneOnDryRun"})
# What the API server or controllers put into objects, and must not be in new ones.
_OWN_METADATA = ("labels", "annotations")


@dataclass(frozen=True, slots=True)
class Target:
    """Something that a webhook is asked about, and in which operations."""

    resource: Resource
    operations: frozenset[str]
    subresource: str | None = None

    def __str__(self) -> str:
        suffix = f"/{self.subresource}" if self.subresource else ""
        return f"{self.resource.plural}{suffix}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request to be made as a dry run.

    Attributes:
        method: the HTTP method.
        path: from the root of the API server.
        body: what to send.
        content_type: of the body.
        description: in words.
    """

    method: str
    path: str
    body: Json
    content_type: str
    description: str

    @property
    def key(self) -> tuple[str, str, bytes]:
        """What tells different requests apart."""
        return self.method, self.path, orjson.dumps(self.body)


def list_targets(record: Record, resources: Collection[Resource]) -> Iterator[Target]:
    """Return what a webhook can be tried with, of the resources of the cluster.

    Only main bodies and their status can: the operations on other subresources do something else.
    """
    for rule in record.webhook.get("rules") or ():
        operations = set(rule.get("operations") or ())
        wanted = {"CREATE", "UPDATE"} if "*" in operations else operations & {"CREATE", "UPDATE"}
        for name in rule.get("resources") or ():
            plural, _, subresource = name.partition("/")
            if subresource not in ("", "status") or not wanted:
                continue
            for resource in _select(rule, plural, resources):
                if not subresource or subresource in resource.subresources:
                    yield Target(resource, frozenset(wanted), subresource or None)


def explain_impossible(record: Record) -> str:
    """Say why a webhook must not be tried; empty if it may be."""
    side_effects = record.webhook.get("sideEffects")
    if side_effects not in _DRY:
        return f"it may have side effects even in a dry run (sideEffects {side_effects})"
    return ""


def build_update(target: Target, body: Json) -> Attempt:
    """Return a change of an object that changes nothing but an annotation."""
    metadata = body["metadata"]
    namespace, name = metadata.get("namespace"), metadata["name"]
    return Attempt(
        "PATCH",
        target.resource.get_url(namespace=namespace, name=name, subresource=target.subresource),
        {"metadata": {"annotations": {ANNOTATION: "probe"}}},
        MERGE_PATCH,
        f"an UPDATE of {target} {'/'.join(filter(None, (namespace, name)))}",
    )


def build_creation(
    target: Target, namespace: str | None, selector: Json | None, model: Json | None
) -> Attempt:
    """Return a creation of an object.

    Args:
        target: of what.
        namespace: where; None if the objects do not belong to namespaces.
        selector: which objects the webhook is asked about.
        model: an object to make another one of, which the schema accepts then; None if there is
            none.
    """
    resource = target.resource
    kept: Json = {} if model is None else model
    metadata = {key: (kept.get("metadata") or {}).get(key) or {} for key in _OWN_METADATA}
    labels = {**build_labels(selector), **metadata["labels"]}
    body: dict[str, Any] = {
        **{key: value for key, value in kept.items() if key != "status"},
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "generateName": _NAME_PREFIX,
            "labels": labels,
            "annotations": metadata["annotations"],
        },
    }
    where = f" in {namespace}" if namespace else ""
    path = resource.get_url(namespace=namespace)
    return Attempt("POST", path, body, JSON, f"a CREATE of {target}{where}")


def _select(rule: Json, plural: str, resources: Iterable[Resource]) -> list[Resource]:
    """Return the resources that a rule is for, in order of their names."""
    scope = rule.get("scope", "*")
    excluded = {"Namespaced": False, "Cluster": True}.get(scope)
    found = [
        resource
        for resource in resources
        if _contains(rule, "apiGroups", resource.group)
        and _contains(rule, "apiVersions", resource.version)
        and plural in ("*", resource.plural)
        and (excluded is None or resource.namespaced is not excluded)
    ]
    return sorted(found, key=lambda resource: resource.name)


def _contains(rule: Json, key: str, value: str) -> bool:
    values = rule.get(key) or ()
    return "*" in values or value in values
