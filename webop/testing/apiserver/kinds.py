"""The kinds of objects that are served: those built in, and those that CRDs define. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import orjson

from .conversions import Converter, Versions
from .messages import Json

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
NAMESPACES = "namespaces"
WEBHOOKS = {
    "Mutating": "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "Validating": "validatingwebhookconfigurations.admissionregistration.k8s.io",
}

_ANY: Json = {"x-kubernetes-preserve-unknown-fields": True}
_SIZE_LIMIT = 1024 * 1024  # bytes
_KEYS_OF_SECRETS = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
TEXT: Json = {"type": "string"}
TEXTS: Json = {"type": "object", "additionalProperties": TEXT}
NUMBER: Json = {"type": "integer"}
FLAG: Json = {"type": "boolean"}
_MOMENT: Json = {"type": "string", "format": "date-time"}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def _array(items: Json, kind: str, *keys: str) -> Json:
    schema: Json = {"type": "array", "items": items, "x-kubernetes-list-type": kind}
    return schema | ({"x-kubernetes-list-map-keys": list(keys)} if keys else {})


_OWNER = _object(
    **dict.fromkeys(("apiVersion", "kind", "name", "uid"), TEXT),
    **dict.fromkeys(("controller", "blockOwnerDeletion"), FLAG),
)
METADATA: Json = _object(
    name=TEXT,
    generateName=TEXT,
    namespace=TEXT,
    selfLink=TEXT,
    uid=TEXT,
    resourceVersion=TEXT,
    generation=NUMBER,
    creationTimestamp=_MOMENT,
    deletionTimestamp=_MOMENT,
    deletionGracePeriodSeconds=NUMBER,
    labels=TEXTS,
    annotations=TEXTS,
    ownerReferences=_array(_OWNER, "map", "uid"),
    finalizers=_array(TEXT, "set"),
    managedFields={"type": "array", "items": _ANY},
)


def keep(raw: Json) -> None:
    """Fill in nothing."""


def _accept(raw: Json) -> Iterator[str]:  # noqa: ARG001 - the other ones read it
    """Find no fault."""
    yield from ()


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
        fill_in_new: completes new objects before that.
        find_faults: tells what is invalid beyond the schema, if anything is.
        frozen: the fields that updates cannot change.
        selectable: the fields of field selectors, with their values if they are absent.
        deletes_by: what becomes of the dependents of deleted objects by default.
        versions: all versions of a custom kind.
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
    counted: Sequence[str] | None = ()
    updates_without_version: bool = False
    creates_on_update: bool = False
    returns_deleted: bool = False
    fill_in: Callable[[Json], None] = keep
    fill_in_new: Callable[[Json], None] = keep
    find_faults: Callable[[Json], Iterator[str]] = _accept
    frozen: Sequence[str] = ()
    selectable: dict[str, str] = field(default_factory=dict)
    deletes_by: str = ""
    versions: Versions | None = field(default=None, repr=False)

    @cached_property
    def whole_schema(self) -> Json:
        """The schema with the metadata."""
        own = {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA}
        return {**self.schema, "properties": {**(self.schema.get("properties") or {}), **own}}

    @property
    def resource(self) -> str:
        """The plural name with the group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The group with the version."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def build_path(self, metadata: Json) -> str:
        """Return the path of an object; that of its collection if it has no name."""
        path = f"/{'apis' if self.group else 'api'}/{self.api_version}"
        if self.namespaced:
            path += f"/namespaces/{metadata['namespace']}"
        name = metadata.get("name")
        return f"{path}/{self.plural}/{name}" if name else f"{path}/{self.plural}"

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
        """Return a stored object as of this version of the API.

        Raises:
            Refusal: it cannot be converted.
        """
        if self.versions is not None and self.versions.converter is not None:
            return self.versions.read(raw, self.api_version)
        if raw["apiVersion"] == self.api_version:
            return raw
        return {**raw, "apiVersion": self.api_version}

    def find_version(self, api_version: str) -> Kind:
        """Return the kind in another version; this one if there is no such version."""
        return self if self.versions is None else self.versions.kinds.get(api_version, self)

    def convert(self, raw: Json) -> Json:
        """Return an object of any version in this one.

        Raises:
            Refusal: it cannot be converted.
        """
        return raw if self.versions is None else self.versions.convert(raw, self.api_version)

    def store(self, raw: Json) -> Json:
        """Return an object of this version as it is stored.

        Raises:
            Refusal: it cannot be converted.
        """
        if self.versions is None:
            return raw
        return self.versions.convert(raw, self.versions.storage)


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


def _find_faults_of_keys(raw: Json) -> Iterator[str]:
    content = {name: raw.get(name) or {} for name in ("data", "binaryData")}
    for name, items in content.items():
        for key in items:
            if not re.fullmatch(r"(?!\.\.?$|\.\.)[-._a-zA-Z0-9]{1,253}", key):
                yield f"{name}[{key}]: Invalid value: must be a valid key: [-._a-zA-Z0-9]+"
    if twice := content["data"].keys() & content["binaryData"]:
        yield f"data[{twice.pop()}]: Invalid value: is also in binaryData"
    texts = (len(text.encode()) for text in content["data"].values())
    encoded = (len(text) * 3 // 4 for text in content["binaryData"].values())
    if raw["kind"] == "ConfigMap" and sum(texts) + sum(encoded) > _SIZE_LIMIT:
        yield f": Too long: may not be more than {_SIZE_LIMIT} bytes"


def _find_secret_faults(raw: Json) -> Iterator[str]:
    data, kind = raw.get("data") or {}, raw["type"]
    yield from _find_faults_of_keys(raw)
    if sum(len(text) * 3 // 4 for text in data.values()) > _SIZE_LIMIT:
        yield f"data: Too long: may not be more than {_SIZE_LIMIT} bytes"
    account = "kubernetes.io/service-account.name"
    is_named = bool(raw["metadata"].get("annotations", {}).get(account))
    if kind == "kubernetes.io/service-account-token" and not is_named:
        yield f"metadata.annotations[{account}]: Required value"
    if kind == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        yield from (f"data[{key}]: Required value" for key in ("username", "password"))
    for key in _KEYS_OF_SECRETS.get(kind, ()):
        if not data.get(key) and (key not in data or key == "ssh-privatekey"):
            yield f"data[{key}]: Required value"
        elif key.startswith(".docker") and not _is_json(base64.b64decode(data[key])):
            yield f"data[{key}]: Invalid value: is no JSON"


def _is_json(content: bytes) -> bool:
    try:
        orjson.loads(content)
    except ValueError:
        return False
    return True


def _fill_lease(raw: Json) -> None:
    raw.setdefault("spec", {})


def _find_lease_faults(raw: Json) -> Iterator[str]:
    spec = raw["spec"]
    if spec.get("leaseDurationSeconds", 1) <= 0:
        yield "spec.leaseDurationSeconds: must be greater than 0"
    if spec.get("leaseTransitions", 0) < 0:
        yield "spec.leaseTransitions: must be greater than or equal to 0"


def _fill_event(raw: Json) -> None:
    raw["source"] = raw.get("source") or {}
    for moment in ("firstTimestamp", "lastTimestamp"):
        text = raw.get(moment)
        raw[moment] = f"{text[:19]}Z" if text else None
    raw["eventTime"] = raw.get("eventTime")
    for name in ("reportingComponent", "reportingInstance"):
        raw.setdefault(name, "")


def _find_event_faults(raw: Json) -> Iterator[str]:
    about = (raw.get("involvedObject") or {}).get("namespace", "")
    own = raw["metadata"]["namespace"]
    if raw["eventTime"]:
        is_right = bool(about) or own in {"default", "kube-system"}
    else:
        # Events about objects of the cluster are in the namespace "default".
        is_right = (about or "default") == own
    if not is_right:
        yield "involvedObject.namespace: does not match event.namespace"


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


def _find_webhook_faults(raw: Json) -> Iterator[str]:
    for index, webhook in enumerate(raw.get("webhooks", ())):
        place = f"webhooks[{index}]"
        if webhook.get("name", "").count(".") < 2:
            yield f"{place}.name: should be a domain with at least three segments"
        if webhook.get("sideEffects") not in {"None", "NoneOnDryRun"}:
            yield f"{place}.sideEffects: Required value: must specify one of None, NoneOnDryRun"
        client = webhook.get("clientConfig") or {}
        if ("url" in client) == ("service" in client):
            yield f"{place}.clientConfig: Required value: exactly one of url or service"
        if not webhook.get("admissionReviewVersions"):
            yield f"{place}.admissionReviewVersions: Required value"


def _fill_crd(raw: Json) -> None:
    names = raw["spec"].setdefault("names", {})
    names.setdefault("singular", str(names.get("kind", "")).lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    conversion = {"strategy": "None", **(raw["spec"].get("conversion") or {})}
    if webhook := conversion.get("webhook"):
        conversion["webhook"] = _fill_webhook({**webhook})
    raw["spec"]["conversion"] = conversion
    stored = [version["name"] for version in raw["spec"]["versions"] if version.get("storage")]
    empty: Json = {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": [],
    }
    status = {**empty, **(raw.get("status") or {})}
    status["storedVersions"] = list(dict.fromkeys((*status["storedVersions"], *stored)))
    raw["status"] = status


def _find_crd_faults(raw: Json) -> Iterator[str]:
    spec = raw["spec"]
    if raw["metadata"]["name"] != f"{spec['names'].get('plural')}.{spec.get('group')}":
        yield 'metadata.name: must be spec.names.plural+"."+spec.group'
    if spec.get("scope") not in {"Namespaced", "Cluster"}:
        yield "spec.scope: Unsupported value"
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        yield "spec.versions: must have exactly one version marked as storage version"
    conversion = spec["conversion"]
    if conversion["strategy"] != "Webhook" and conversion.get("webhook"):
        yield "spec.conversion.webhook: Forbidden: should not be set when strategy is not Webhook"
    if conversion["strategy"] == "Webhook":
        webhook = conversion.get("webhook") or {}
        for name in ("clientConfig", "conversionReviewVersions"):
            if not webhook.get(name):
                yield f"spec.conversion.webhook.{name}: Required value"
    if not all(version.get("schema") for version in spec["versions"]):
        yield "spec.versions: schemas are required"


def _fill_pod(raw: Json) -> None:
    raw.setdefault("status", {"phase": "Pending"})


_BYTES: Json = {"type": "object", "additionalProperties": {"type": "string", "format": "base64"}}
_LEASE_SPEC = _object(
    holderIdentity=TEXT,
    leaseDurationSeconds=NUMBER,
    acquireTime=TEXT,
    renewTime=TEXT,
    leaseTransitions=NUMBER,
    strategy=TEXT,
    preferredHolder=TEXT,
)
_ADMISSION: dict[str, Any] = {
    "namespaced": False,
    "schema": _object(webhooks={"type": "array", "items": {"type": "object", **_ANY}}),
    "counted": ("webhooks",),
    "fill_in": _fill_webhooks,
    "find_faults": _find_webhook_faults,
}
_FREE: Json = {"type": "object", **_ANY}
_core = partial(Kind, "", "v1", updates_without_version=True)

BUILT_IN: tuple[Kind, ...] = (
    _core(
        "namespaces",
        "Namespace",
        namespaced=False,
        short_names=("ns",),
        subresources=("finalize", "status"),
        schema=_object(spec=_FREE, status=_FREE),
        returns_deleted=True,
        fill_in=_fill_namespace,
    ),
    _core(
        "configmaps",
        "ConfigMap",
        short_names=("cm",),
        schema=_object(data=TEXTS, binaryData=_BYTES, immutable=FLAG),
        find_faults=_find_faults_of_keys,
    ),
    _core(
        "secrets",
        "Secret",
        schema=_object(data=_BYTES, stringData=TEXTS, type=TEXT, immutable=FLAG),
        fill_in=_fill_secret,
        find_faults=_find_secret_faults,
        frozen=("type",),
        selectable={"type": ""},
    ),
    _core(
        "events",
        "Event",
        short_names=("ev",),
        schema=_object(
            **dict.fromkeys(("involvedObject", "source", "related", "series"), _FREE),
            **dict.fromkeys(("reason", "message", "type", "action"), TEXT),
            **dict.fromkeys(("firstTimestamp", "lastTimestamp", "eventTime"), TEXT),
            **dict.fromkeys(("reportingComponent", "reportingInstance"), TEXT),
            count=NUMBER,
        ),
        creates_on_update=True,
        fill_in=_fill_event,
        find_faults=_find_event_faults,
    ),
    _core(
        "pods",
        "Pod",
        short_names=("po",),
        categories=("all",),
        subresources=("status", "log"),
        schema=_object(spec=_FREE, status=_FREE),
        counted=("spec",),
        returns_deleted=True,
        fill_in=_fill_pod,
        selectable=dict.fromkeys(("spec.nodeName", "status.phase", "status.podIP"), ""),
    ),
    Kind(
        "coordination.k8s.io",
        "v1",
        "leases",
        "Lease",
        schema=_object(spec=_LEASE_SPEC),
        creates_on_update=True,
        fill_in=_fill_lease,
        find_faults=_find_lease_faults,
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
        find_faults=_find_crd_faults,
    ),
)


def build_custom_kinds(crd: Json, converter: Converter | None = None) -> list[Kind]:
    """Return the kinds of a definition: one for each version that is served."""
    spec, names = crd["spec"], crd["spec"]["names"]
    (storage,) = (version["name"] for version in spec["versions"] if version.get("storage"))
    is_converted = (spec.get("conversion") or {}).get("strategy") == "Webhook"
    versions = Versions(f"{spec['group']}/{storage}", converter if is_converted else None)
    kinds = [
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
            selectable={
                one["jsonPath"].removeprefix("."): ""
                for one in version.get("selectableFields") or ()
            },
            versions=versions,
        )
        for version in spec["versions"]
    ]
    versions.kinds.update({kind.api_version: kind for kind in kinds})
    return [
        kind for kind, version in zip(kinds, spec["versions"], strict=True) if version.get("served")
    ]
