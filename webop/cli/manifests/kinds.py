"""Find the kinds of handlers without a cluster, since RBAC rules need groups and plurals.

Kubernetes' own kinds are in a table here, others in the CRDs that users have in files. For
unknown kinds, the decorator must name group and plural.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from webop.errors import ConfigurationError
from webop.handlers.model import ResourceHandler, Rule
from webop.objects.resources import EVERYTHING, Resource, Selector, guess_plural, rank_version
from webop.objects.rights import Right

# Kinds by API group; "+" if status is a subresource in any supported version, as rights to one that
# is not there do no harm; ":" before each short name.
_NAMESPACED: Final = {
    "": (
        "ConfigMap:cm Endpoints:ep Event:ev LimitRange:limits PersistentVolumeClaim+:pvc Pod+:po "
        "PodTemplate ReplicationController+:rc ResourceQuota+:quota Secret ServiceAccount:sa "
        "Service+:svc"
    ),
    "apps": "ControllerRevision DaemonSet+:ds Deployment+:deploy ReplicaSet+:rs StatefulSet+:sts",
    "autoscaling": "HorizontalPodAutoscaler+:hpa",
    "batch": "CronJob+:cj Job+",
    "coordination.k8s.io": "Lease",
    "discovery.k8s.io": "EndpointSlice",
    "events.k8s.io": "Event:ev",
    "networking.k8s.io": "Ingress+:ing NetworkPolicy:netpol",
    "policy": "PodDisruptionBudget+:pdb",
    "rbac.authorization.k8s.io": "RoleBinding Role",
    "resource.k8s.io": "ResourceClaim+ ResourceClaimTemplate",
    "storage.k8s.io": "CSIStorageCapacity",
}
_CLUSTERWIDE: Final = {
    "": "Namespace+:ns Node+:no PersistentVolume+:pv",
    "admissionregistration.k8s.io": (
        "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration "
        "ValidatingAdmissionPolicy+ ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration"
    ),
    "apiextensions.k8s.io": "CustomResourceDefinition+:crd:crds",
    "apiregistration.k8s.io": "APIService+",
    "certificates.k8s.io": "CertificateSigningRequest+:csr",
    "flowcontrol.apiserver.k8s.io": "FlowSchema+ PriorityLevelConfiguration+",
    "networking.k8s.io": "IngressClass IPAddress:ip ServiceCIDR+",
    "node.k8s.io": "RuntimeClass",
    "rbac.authorization.k8s.io": "ClusterRoleBinding ClusterRole",
    "resource.k8s.io": "DeviceClass ResourceSlice",
    "scheduling.k8s.io": "PriorityClass:pc",
    "storage.k8s.io": (
        "CSIDriver CSINode+ StorageClass:sc VolumeAttachment+ VolumeAttributesClass:vac"
    ),
}
_REMEDY: Final = "Name the file with its CRD with --crd, or use a cluster with --cluster."


def list_builtin() -> Iterator[Resource]:
    """Yield the built-in kinds of Kubernetes 1.36."""
    for table in (_NAMESPACED, _CLUSTERWIDE):
        for group, kinds in table.items():
            for entry in kinds.split():
                name, *shortcuts = entry.split(":")
                kind = name.rstrip("+")
                yield Resource(
                    group,
                    "v2" if group == "autoscaling" else "v1",
                    guess_plural(kind),
                    kind=kind,
                    singular=kind.lower(),
                    shortcuts=frozenset(shortcuts),
                    subresources=frozenset({"status"} if name != kind else ()),
                    namespaced=table is _NAMESPACED,
                )


def read_definitions(paths: Iterable[Path]) -> Iterator[Resource]:
    """Yield the kinds of the CustomResourceDefinitions in files, or in folders of files.

    Raises:
        ConfigurationError: a file cannot be read, or has no definition.
    """
    for path in paths:
        files = sorted((*path.glob("*.yaml"), *path.glob("*.yml"))) if path.is_dir() else [path]
        try:
            found = [
                resource
                for file in files
                for document in yaml.safe_load_all(file.read_text())
                if document and document.get("kind") == "CustomResourceDefinition"
                for resource in parse_definition(document["spec"])
            ]
        except (OSError, ValueError, TypeError, yaml.YAMLError, LookupError, AttributeError) as exc:
            what = f"{type(exc).__name__}: {exc}"
            raise ConfigurationError(f"Cannot read definitions from '{path}': {what}") from exc
        if not found:
            raise ConfigurationError(f"There is no CustomResourceDefinition in '{path}'.")
        yield from found


def parse_definition(spec: dict[str, Any]) -> Iterator[Resource]:
    """Yield the kinds of a CustomResourceDefinition: one for each version that is served."""
    names = spec["names"]
    served = [version for version in spec["versions"] if version.get("served")]
    for version in served:
        yield Resource(
            spec["group"],
            version["name"],
            names["plural"],
            kind=names["kind"],
            singular=names.get("singular") or names["kind"].lower(),
            shortcuts=frozenset(names.get("shortNames") or ()),
            categories=frozenset(names.get("categories") or ()),
            subresources=frozenset(version.get("subresources") or ()),
            namespaced=spec["scope"] == "Namespaced",
            preferred=version is max(served, key=lambda each: rank_version(each["name"])),
        )


def find_kinds(
    users: Iterable[ResourceHandler | Right | Rule],
    known: Collection[Resource],
    *,
    is_complete: bool,
) -> tuple[set[Resource], list[str]]:
    """Return the kinds that handlers and rights select, and warnings about them.

    For EVERYTHING, the plural is "*", as in RBAC rules. The known kinds can be complete: all kinds
    of a cluster.

    Raises:
        ConfigurationError: a selector does not identify its kinds.
    """
    kinds, warnings = set[Resource](), dict[str, None]()
    for user in users:
        selector = user.selector
        if selector is None:
            continue
        if selector.any_name is EVERYTHING:
            kinds.add(Resource(selector.group or "*", "*", "*", namespaced=True))
            which = f"all kinds of the group {selector.group}" if selector.group else "all kinds"
            warnings[f"{user} uses EVERYTHING: the account gets rights to {which}."] = None
        elif not (selector.is_specific or is_complete):
            what = "a function" if selector.fn else f"the category {selector.category}"
            raise ConfigurationError(
                f"{user}: cannot find the kinds of {what} without a cluster. Add --cluster."
            )
        elif found := selector.find_candidates(known):
            if rivals := selector.list_rivals(known):
                raise ConfigurationError(f"{user}: {selector} is ambiguous: {rivals}.")
            kinds.update(found)
        elif (assumed := _assume(selector)) is not None:
            if selector.version is None and any(map(selector.check, kinds)):
                continue  # a right, and handlers that name a version
            if assumed not in kinds:  # one warning for all its handlers
                warnings[
                    f"{user}: the definition of {assumed} is unknown. Assuming that it is "
                    "namespaced and has a status subresource. To be sure, pass its CRD with --crd."
                ] = None
            kinds.add(assumed)
        elif is_complete:
            why = "is not in the cluster" if selector.is_specific else "matches no kind there"
            raise ConfigurationError(f"{user}: {selector} {why}.{selector.suggest(known)}")
        else:
            raise ConfigurationError(
                f"{user}: there is no built-in kind {selector}.{selector.suggest(known)} For a "
                f"kind of your own, write its group and plural. {_REMEDY}"
            )
    return kinds, list(warnings)


def _assume(selector: Selector) -> Resource | None:
    """Return the kind of a selector that has group and plural; None for other selectors."""
    name = selector.any_name
    is_plural = isinstance(name, str) and name.endswith("s") and name.islower()
    plural = selector.plural or (name if is_plural else None)
    if not selector.group or plural is None:
        return None
    version = selector.version or "*"
    status = frozenset({"status"})
    return Resource(selector.group, version, str(plural), subresources=status, namespaced=True)
