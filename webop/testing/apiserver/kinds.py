"""The kinds of objects that are served: those built in, and those that CRDs define. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .messages import Json

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
NAMESPACES = "namespaces"
WEBHOOKS = {
    "Mutating": "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "Validating": "validatingwebhookconfigurations.admissionregistration.k8s.io",
}

_ANY: Json = {"x-kubernetes-preserve-unknown-fields": True}
_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "object", "additionalProperties": _TEXT}
_NUMBER: Json = {"type": "integer"}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def _keep(raw: Json) -> None:
    """Fill in nothing."""


def _accept(raw: Json) -> str:  # noqa: ARG001 - the other ones read it
    """Find no fault."""
    return ""


@dataclass(frozen=True, eq=False)
class Kind:
    """A resource of one version of an API group, with the ways of the API server with it.

    Attributes:
        schema: what its objects can have beside apiVersion, kind and metadata.
        is_custom: whether a CRD defines it: built-in ones are answered differently in places.
        counted: the fields whose changes count as a generation; None if all but the metadata and
            the status subresource do; nothing if there are no generations.
        updates_without_version: whether PUT works without a resource version.
        creates_on_update: whether PUT creates what is absent.
        returns_deleted: whether the answer to DELETE is the object, not a Status.
        fill_in: completes new states of objects.
        find_fault: tells what is invalid beyond the schema, if anything is.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    schema: Json = field(default_factory=lambda: _ANY)
    is_custom: bool = False
    is_terminating: bool = False
    counted: tuple[str, ...] | None = ()
    updates_without_version: bool = False
    creates_on_update: bool = False
    returns_deleted: bool = False
    fill_in: Callable[[Json], None] = _keep
    find_fault: Callable[[Json], str] = _accept

    @property
    def resource(self) -> str:
        """The plural name with the group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The group with the version."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        """Whether the status has a separate endpoint."""
        return "status" in self.subresources

    @property
    def verbs(self) -> list[str]:
        """The verbs of the kind in discovery."""
        if self.is_terminating:
            return ["delete", "deletecollection", "get", "list", "watch"]
        reading = ["delete", "deletecollection", "get", "list", "patch"]
        return [*reading, "create", "update", "watch"]

    def show(self, raw: Json) -> Json:
        """Return an object as of this version of the API."""
        if raw["apiVersion"] == self.api_version:
            return raw
        return {**raw, "apiVersion": self.api_version}


def _fill_namespace(raw: Json) -> None:
    metadata = raw["metadata"]
    name = {"kubernetes.io/metadata.name": metadata["name"]}
    metadata["labels"] = metadata.get("labels", {}) | name
    raw.setdefault("spec", {"finalizers": ["kubernetes"]})
    raw.setdefault("status", {"phase": "Active"})


def _fill_secret(raw: Json) -> None:
    texts = raw.pop("stringData", None)
    if texts:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        raw["data"] = raw.get("data", {}) | encoded
    raw.setdefault("type", "Opaque")


def _fill_lease(raw: Json) -> None:
    raw.setdefault("spec", {})


def _find_lease_fault(raw: Json) -> str:
    spec = raw["spec"]
    if spec.get("leaseDurationSeconds", 1) <= 0:
        return "spec.leaseDurationSeconds: must be greater than 0"
    if spec.get("leaseTransitions", 0) < 0:
        return "spec.leaseTransitions: must be greater than or equal to 0"
    return ""


def _fill_event(raw: Json) -> None:
    raw["source"] = raw.get("source") or {}
    for moment in ("firstTimestamp", "lastTimestamp"):
        text = raw.get(moment)
        raw[moment] = f"{text[:19]}Z" if text else None
    raw["eventTime"] = raw.get("eventTime")
    for name in ("reportingComponent", "reportingInstance"):
        raw.setdefault(name, "")


def _find_event_fault(raw: Json) -> str:
    about = (raw.get("involvedObject") or {}).get("namespace", "")
    own = raw["metadata"]["namespace"]
    if raw["eventTime"]:
        is_right = bool(about) or own in {"default", "kube-system"}
    else:
        # Events about objects of the cluster are in the namespace "default".
        is_right = (about or "default") == own
    return "" if is_right else "involvedObject.namespace: does not match event.namespace"


def _fill_webhooks(raw: Json) -> None:
    if not raw.get("webhooks"):
        raw.pop("webhooks", None)
        return
    common: Json = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": 10,
    }
    if raw["kind"] == "MutatingWebhookConfiguration":
        common["reinvocationPolicy"] = "Never"
    raw["webhooks"] = [_fill_webhook({**common, **webhook}) for webhook in raw["webhooks"]]


def _fill_webhook(webhook: Json) -> Json:
    service = (webhook.get("clientConfig") or {}).get("service")
    if service:
        webhook["clientConfig"] = {**webhook["clientConfig"], "service": {"port": 443, **service}}
    if "rules" in webhook:
        webhook["rules"] = [{"scope": "*", **rule} for rule in webhook["rules"] or ()]
    return webhook


def _find_webhook_fault(raw: Json) -> str:
    for index, webhook in enumerate(raw.get("webhooks", ())):
        place = f"webhooks[{index}]"
        if webhook.get("name", "").count(".") < 2:
            return f"{place}.name: should be a domain with at least three segments"
        if webhook.get("sideEffects") not in {"None", "NoneOnDryRun"}:
            return f"{place}.sideEffects: Required value: must specify one of None, NoneOnDryRun"
        client = webhook.get("clientConfig") or {}
        if ("url" in client) == ("service" in client):
            return f"{place}.clientConfig: Required value: exactly one of url or service"
        if not webhook.get("admissionReviewVersions"):
            return f"{place}.admissionReviewVersions: Required value"
    return ""


def _fill_crd(raw: Json) -> None:
    names = raw["spec"].setdefault("names", {})
    names.setdefault("singular", str(names.get("kind", "")).lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    raw["spec"].setdefault("conversion", {"strategy": "None"})
    stored = [version["name"] for version in raw["spec"]["versions"] if version.get("storage")]
    empty = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}}
    raw.setdefault("status", {**empty, "storedVersions": stored})


def _find_crd_fault(raw: Json) -> str:
    spec = raw["spec"]
    if raw["metadata"]["name"] != f"{spec['names'].get('plural')}.{spec.get('group')}":
        return 'metadata.name: must be spec.names.plural+"."+spec.group'
    if spec.get("scope") not in {"Namespaced", "Cluster"}:
        return "spec.scope: Unsupported value"
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        return "spec.versions: must have exactly one version marked as storage version"
    if not all(version.get("schema") for version in spec["versions"]):
        return "spec.versions: schemas are required"
    return ""


def _fill_pod(raw: Json) -> None:
    raw.setdefault("status", {"phase": "Pending"})


_LEASE_SPEC = _object(
    holderIdentity=_TEXT,
    leaseDurationSeconds=_NUMBER,
    acquireTime=_TEXT,
    renewTime=_TEXT,
    leaseTransitions=_NUMBER,
    strategy=_TEXT,
    preferredHolder=_TEXT,
)
_ADMISSION: dict[str, Any] = {
    "namespaced": False,
    "schema": _object(webhooks={"type": "array", "items": {"type": "object", **_ANY}}),
    "counted": ("webhooks",),
    "fill_in": _fill_webhooks,
    "find_fault": _find_webhook_fault,
}
_FREE: Json = {"type": "object", **_ANY}

BUILT_IN: tuple[Kind, ...] = (
    Kind(
        "",
        "v1",
        "namespaces",
        "Namespace",
        namespaced=False,
        short_names=("ns",),
        subresources=("finalize", "status"),
        schema=_object(spec=_FREE, status=_FREE),
        updates_without_version=True,
        returns_deleted=True,
        fill_in=_fill_namespace,
    ),
    Kind(
        "",
        "v1",
        "configmaps",
        "ConfigMap",
        short_names=("cm",),
        schema=_object(data=_TEXTS, binaryData=_TEXTS, immutable={"type": "boolean"}),
        updates_without_version=True,
    ),
    Kind(
        "",
        "v1",
        "secrets",
        "Secret",
        schema=_object(data=_TEXTS, stringData=_TEXTS, type=_TEXT, immutable={"type": "boolean"}),
        updates_without_version=True,
        fill_in=_fill_secret,
    ),
    Kind(
        "",
        "v1",
        "events",
        "Event",
        short_names=("ev",),
        schema=_object(
            **dict.fromkeys(("involvedObject", "source", "related", "series"), _FREE),
            **dict.fromkeys(("reason", "message", "type", "action"), _TEXT),
            **dict.fromkeys(("firstTimestamp", "lastTimestamp", "eventTime"), _TEXT),
            **dict.fromkeys(("reportingComponent", "reportingInstance"), _TEXT),
            count=_NUMBER,
        ),
        updates_without_version=True,
        creates_on_update=True,
        fill_in=_fill_event,
        find_fault=_find_event_fault,
    ),
    Kind(
        "",
        "v1",
        "pods",
        "Pod",
        short_names=("po",),
        categories=("all",),
        subresources=("status",),
        schema=_object(spec=_FREE, status=_FREE),
        counted=("spec",),
        updates_without_version=True,
        returns_deleted=True,
        fill_in=_fill_pod,
    ),
    Kind(
        "coordination.k8s.io",
        "v1",
        "leases",
        "Lease",
        schema=_object(spec=_LEASE_SPEC),
        creates_on_update=True,
        fill_in=_fill_lease,
        find_fault=_find_lease_fault,
    ),
    *(
        Kind(
            "admissionregistration.k8s.io",
            "v1",
            resource.partition(".")[0],
            f"{kind}WebhookConfiguration",
            categories=("api-extensions",),
            **_ADMISSION,
        )
        for kind, resource in WEBHOOKS.items()
    ),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=("status",),
        schema=_object(
            spec={**_object(versions={"type": "array", "items": _FREE}), **_ANY}
            | {"required": ["versions"]},
            status=_FREE,
        )
        | {"required": ["spec"]},
        counted=("spec",),
        fill_in=_fill_crd,
        find_fault=_find_crd_fault,
    ),
)


def build_custom_kinds(crd: Json) -> list[Kind]:
    """Return the kinds of a definition: one for each version that is served."""
    spec, names = crd["spec"], crd["spec"]["names"]
    return [
        Kind(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            namespaced=spec["scope"] == "Namespaced",
            singular=names["singular"],
            list_kind=names["listKind"],
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(sorted(version.get("subresources") or ())),
            schema=(version.get("schema") or {}).get("openAPIV3Schema") or {},
            is_custom=True,
            is_terminating="deletionTimestamp" in crd["metadata"],
            counted=None,
        )
        for version in spec["versions"]
        if version.get("served")
    ]
