"""Decide which Secret belongs in which namespace. Plain functions, without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

TO = "replicator.example.com/to"
FROM = "replicator.example.com/from"


@dataclass(frozen=True)
class Secret:
    """The relevant parts of a Secret."""

    namespace: str
    name: str
    uid: str
    targets: str  # patterns and labels of the target namespaces; empty if it is no source
    origin: str  # the path of its source; empty if it is no copy
    type: str
    data: Mapping[str, str]

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}"

    def is_for(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a namespace should have a copy; those of Kubernetes never do."""
        if namespace == self.namespace or namespace.startswith("kube-"):
            return False
        words = self.targets.replace(",", " ").split()
        return any(fnmatchcase(namespace, word) for word in words) or any(
            f"{key}={value}" in words for key, value in labels.items()
        )


def read_secret(body: Mapping[str, Any]) -> Secret:
    """Return the relevant parts of a Secret."""
    metadata = body["metadata"]
    annotations = metadata.get("annotations", {})
    return Secret(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        targets=annotations.get(TO, ""),
        origin=annotations.get(FROM, ""),
        type=body.get("type", "Opaque"),
        data=dict(body.get("data", {})),
    )


def choose_source(
    sources: Iterable[Secret], existing: Secret | None, namespace: str, labels: Mapping[str, str]
) -> Secret | None:
    """Return the source for a namespace: that of the existing copy, else the first by path."""
    fit = sorted(
        (one for one in sources if one.is_for(namespace, labels)), key=lambda one: one.path
    )
    same = [one for one in fit if existing is not None and one.path == existing.origin]
    return next(iter(same + fit), None)


def build_copy(source: Secret, namespace: str) -> dict[str, Any]:
    """Return the copy of a source for a namespace."""
    metadata = {"name": source.name, "namespace": namespace, "annotations": {FROM: source.path}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": source.type,
        "data": source.data,
    }
