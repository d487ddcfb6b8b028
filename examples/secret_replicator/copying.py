"""Secrets and their copies: what belongs where. No cluster, no framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

TO = "replicator.example.com/to"
FROM = "replicator.example.com/from"


@dataclass(frozen=True)
class Secret:
    """What matters about a Secret."""

    namespace: str
    name: str
    uid: str
    targets: str  # where it must be copied; empty if nowhere
    origin: str  # the path of its source; empty if it is no copy
    type: str
    data: Mapping[str, str]

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}"

    def is_for(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Tell whether a namespace should have a copy. Those of Kubernetes never have one."""
        if namespace == self.namespace or namespace.startswith("kube-"):
            return False
        words = self.targets.replace(",", " ").split()
        return any(fnmatchcase(namespace, word) for word in words) or any(
            f"{key}={value}" in words for key, value in labels.items()
        )


def read_secret(body: Mapping[str, Any]) -> Secret:
    """Return what matters about a Secret."""
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
    sources: Iterable[Secret], present: Secret | None, namespace: str, labels: Mapping[str, str]
) -> Secret | None:
    """Return the source for a namespace: that of the present copy, or else the first by path."""
    fit = sorted(
        (one for one in sources if one.is_for(namespace, labels)), key=lambda one: one.path
    )
    same = [one for one in fit if present is not None and one.path == present.origin]
    return next(iter(same + fit), None)


def build_copy(source: Secret, namespace: str) -> dict[str, Any]:
    """Return a copy that can be created."""
    metadata = {"name": source.name, "namespace": namespace, "annotations": {FROM: source.path}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": source.type,
        "data": source.data,
    }
