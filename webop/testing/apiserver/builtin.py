"""All kinds of Kubernetes, with the schemas that its API server publishes, and its rules. Pure.

The file with the schemas is written by ``tools/simulation/conformance/builtin_schemas.py``.
"""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson

from webop.cli.manifests.kinds import list_builtin

from . import workloads
from .kinds import ANY, CRDS, NAMESPACES, WEBHOOKS, Kind, build_object
from .messages import Json

_SIZE_LIMIT = 1024 * 1024  # bytes
_KEYS_OF_SECRETS = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}


@cache
def list_kinds() -> tuple[Kind, ...]:
    """Return all kinds that are built into Kubernetes."""
    file = Path(__file__).with_name("builtin_schemas.json.gz")
    content = orjson.loads(gzip.decompress(file.read_bytes()))
    definitions = content["definitions"]
    for schema in definitions.values():
        _link(schema, definitions)
    found = []
    for one in list_builtin():
        resource = f"{one.plural}.{one.group}".rstrip(".")
        facts = content["kinds"][resource]
        options: dict[str, Any] = {
            "short_names": tuple(sorted(one.shortcuts)),
            "subresources": tuple(one.subresources),
            "schema": definitions[facts["schema"]],
            "updates_without_version": True,
            "fill_in": partial(workloads.fill_in, facts),
            "find_faults": workloads.find_faults,
        }
        told = {"counted", "selectable", "deletes_by", "frozen"}
        options |= {name: facts[name] for name in facts if name in told}
        options |= _OWN.get(resource, {})
        names = one.group, one.version, one.plural, str(one.kind)
        found.append(Kind(*names, namespaced=bool(one.namespaced), **options))
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


_FREE: Json = {"type": "object", **ANY}
_ADMISSION: dict[str, Any] = {
    "categories": ("api-extensions",),
    "schema": build_object(webhooks={"type": "array", "items": _FREE}),
    "counted": ("webhooks",),
    "updates_without_version": False,
    "fill_in": _fill_webhooks,
    "find_faults": _find_webhook_faults,
}
_CRD_SPEC: Json = {**build_object(versions={"type": "array", "items": _FREE}), **ANY}
# What differs from the other kinds.
_OWN: dict[str, dict[str, Any]] = {
    NAMESPACES: {
        "subresources": ("finalize", "status"),
        "returns_deleted": True,
        "fill_in": _fill_namespace,
    },
    "configmaps": {"find_faults": _find_faults_of_keys},
    "secrets": {
        "fill_in": _fill_secret,
        "find_faults": _find_secret_faults,
        "frozen": ("type",),
        "selectable": {"type": ""},
    },
    "events": {
        "creates_on_update": True,
        "fill_in": _fill_event,
        "find_faults": _find_event_faults,
    },
    "pods": {
        "categories": ("all",),
        "subresources": ("status", "log"),
        "counted": ("spec",),
        "returns_deleted": True,
        "selectable": dict.fromkeys(("spec.nodeName", "status.phase", "status.podIP"), ""),
    },
    "jobs.batch": {"fill_in_new": workloads.fill_in_job},
    "leases.coordination.k8s.io": {
        "updates_without_version": False,
        "creates_on_update": True,
        "fill_in": _fill_lease,
        "find_faults": _find_lease_faults,
    },
    **dict.fromkeys(WEBHOOKS.values(), _ADMISSION),
    CRDS: {
        "categories": ("api-extensions",),
        "schema": build_object(spec=_CRD_SPEC | {"required": ["versions"]}, status=_FREE)
        | {"required": ["spec"]},
        "counted": ("spec",),
        "updates_without_version": False,
        "fill_in": _fill_crd,
        "find_faults": _find_crd_faults,
    },
}
