"""``python -m tools.simulation.conformance.builtin_schemas``: write the schemas of built-in kinds.

A real kube-apiserver publishes them as OpenAPI. It does not publish its defaults, nor all that it
requires: the tables here add those of workloads.
"""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path
from typing import Any

import orjson

import webop.testing.apiserver
from webop.cli.manifests.kinds import list_builtin
from webop.controlplane.cluster import LocalCluster
from webop.testing.apiserver import Json, Request

from .sides import RealSide

FILE = Path(webop.testing.apiserver.__file__).with_name("builtin_schemas.json.gz")
_KEPT = {
    "additionalProperties",
    "default",
    "enum",
    "format",
    "items",
    "properties",
    "required",
    "type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
}
_CORE, _META = "io.k8s.api.core.v1.", "io.k8s.apimachinery.pkg.apis.meta.v1."
_FREE: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_REPLACED: dict[str, Json] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"format": "quantity"},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"x-kubernetes-int-or-string": True},
    "io.k8s.apimachinery.pkg.runtime.RawExtension": _FREE,
    f"{_META}FieldsV1": _FREE,
}
_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_COUNT: Json = {"minimum": 0}
_PORT: Json = {"minimum": 1, "maximum": 65535}
_MODE: Json = {"defaultMode": {"default": 420}}
_WORKLOAD: Json = {"replicas": {"default": 1, **_COUNT}, "minReadySeconds": _COUNT}
_HISTORY: Json = {"revisionHistoryLimit": {"default": 10, **_COUNT}}
_CONTAINER: Json = {
    "name": {"pattern": f"^{_LABEL}$"},
    "image": {"minLength": 1},
    "terminationMessagePath": {"default": "/dev/termination-log"},
    "terminationMessagePolicy": {"default": "File"},
    "resources": {"default": {}},
}
_ROLLING: Json = {"maxUnavailable": "25%", "maxSurge": "25%"}
# By definitions and fields, what is added to their schemas.
_ADDED: dict[str, dict[str, Json]] = {
    f"{_CORE}PodSpec": {
        "restartPolicy": {"default": "Always"},
        "terminationGracePeriodSeconds": {"default": 30, **_COUNT},
        "dnsPolicy": {"default": "ClusterFirst"},
        "schedulerName": {"default": "default-scheduler"},
        "securityContext": {"default": {}},
        "activeDeadlineSeconds": {"minimum": 1},
    },
    f"{_CORE}Container": _CONTAINER,
    f"{_CORE}ContainerPort": {"containerPort": _PORT},
    f"{_CORE}ServicePort": {"port": _PORT},
    f"{_CORE}HTTPGetAction": {"scheme": {"default": "HTTP"}},
    f"{_CORE}Volume": {"name": {"pattern": f"^{_LABEL}$"}},
    f"{_CORE}Probe": {
        "timeoutSeconds": {"default": 1, "minimum": 1},
        "periodSeconds": {"default": 10, "minimum": 1},
        "successThreshold": {"default": 1, "minimum": 1},
        "failureThreshold": {"default": 3, "minimum": 1},
    },
    f"{_CORE}ConfigMapVolumeSource": _MODE,
    f"{_CORE}SecretVolumeSource": _MODE,
    f"{_CORE}DownwardAPIVolumeSource": _MODE,
    f"{_CORE}ProjectedVolumeSource": _MODE,
    f"{_CORE}ObjectFieldSelector": {"apiVersion": {"default": "v1"}},
    "io.k8s.api.apps.v1.DeploymentSpec": {
        **_WORKLOAD,
        **_HISTORY,
        "progressDeadlineSeconds": {"default": 600, **_COUNT},
        "strategy": {"default": {}},
    },
    "io.k8s.api.apps.v1.DeploymentStrategy": {"type": {"default": "RollingUpdate"}},
    "io.k8s.api.apps.v1.RollingUpdateDeployment": {
        name: {"default": value} for name, value in _ROLLING.items()
    },
    "io.k8s.api.apps.v1.ReplicaSetSpec": _WORKLOAD,
    "io.k8s.api.apps.v1.StatefulSetSpec": {
        **_WORKLOAD,
        **_HISTORY,
        "podManagementPolicy": {"default": "OrderedReady"},
        "updateStrategy": {"default": {"rollingUpdate": {"partition": 0}}},
        "persistentVolumeClaimRetentionPolicy": {
            "default": {"whenDeleted": "Retain", "whenScaled": "Retain"}
        },
    },
    "io.k8s.api.apps.v1.StatefulSetUpdateStrategy": {"type": {"default": "RollingUpdate"}},
    "io.k8s.api.apps.v1.DaemonSetSpec": {
        **_HISTORY,
        "updateStrategy": {"default": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}},
    },
    "io.k8s.api.apps.v1.DaemonSetUpdateStrategy": {"type": {"default": "RollingUpdate"}},
    "io.k8s.api.batch.v1.JobSpec": {
        "parallelism": _COUNT,
        "completions": _COUNT,
        "activeDeadlineSeconds": _COUNT,
        "ttlSecondsAfterFinished": _COUNT,
        "backoffLimit": _COUNT,
        "completionMode": {"enum": ["NonIndexed", "Indexed"]},
    },
    "io.k8s.api.batch.v1.CronJobSpec": {
        "concurrencyPolicy": {"default": "Allow"},
        "suspend": {"default": False},
        "successfulJobsHistoryLimit": {"default": 3, **_COUNT},
        "failedJobsHistoryLimit": {"default": 1, **_COUNT},
    },
    f"{_CORE}ServiceSpec": {
        "type": {"default": "ClusterIP"},
        "sessionAffinity": {"default": "None"},
        "internalTrafficPolicy": {"default": "Cluster"},
    },
    f"{_CORE}PersistentVolumeClaimSpec": {"volumeMode": {"default": "Filesystem"}},
}
_REQUIRED = {
    f"{_CORE}HTTPGetAction": ["port"],
    f"{_CORE}TCPSocketAction": ["port"],
    f"{_CORE}Pod": ["spec"],
    f"{_CORE}PodTemplateSpec": ["spec"],
    f"{_CORE}PersistentVolumeClaim": ["spec"],
    f"{_CORE}PersistentVolumeClaimSpec": ["accessModes", "resources"],
    f"{_CORE}Service": ["spec"],
    "io.k8s.api.networking.v1.Ingress": ["spec"],
    **{
        f"io.k8s.api.apps.v1.{name}": ["spec"]
        for name in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
    },
    **{
        f"io.k8s.api.apps.v1.{name}Spec": ["selector", "template"]
        for name in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
    },
    "io.k8s.api.batch.v1.Job": ["spec"],
    "io.k8s.api.batch.v1.JobSpec": ["template"],
    "io.k8s.api.batch.v1.JobTemplateSpec": ["spec"],
    "io.k8s.api.batch.v1.CronJobSpec": ["jobTemplate", "schedule"],
}
_PODS = ("daemonsets.apps", "deployments.apps", "replicasets.apps", "statefulsets.apps")
_COUNTED = {
    *_PODS,
    *("jobs.batch", "cronjobs.batch", "replicationcontrollers", "poddisruptionbudgets.policy"),
    *("ingresses.networking.k8s.io", "networkpolicies.networking.k8s.io"),
    *("flowschemas.flowcontrol.apiserver.k8s.io", "endpointslices.discovery.k8s.io"),
}
# The fields that updates cannot change.
_FROZEN = {
    **dict.fromkeys(_PODS, ("selector",)),
    "statefulsets.apps": ("selector", "serviceName", "volumeClaimTemplates"),
    "jobs.batch": ("selector", "template", "completions", "completionMode"),
    "persistentvolumeclaims": ("accessModes", "selector", "storageClassName", "volumeMode"),
}
_FROZEN_AT_THE_TOP = {
    "rolebindings.rbac.authorization.k8s.io": ("roleRef",),
    "clusterrolebindings.rbac.authorization.k8s.io": ("roleRef",),
    "storageclasses.storage.k8s.io": ("provisioner", "parameters", "reclaimPolicy"),
    "priorityclasses.scheduling.k8s.io": ("value",),
}
_CHANGING = {"activeDeadlineSeconds", "containers", "initContainers", "tolerations"}  # of Pods
# What is the same in all new objects.
_STATUSES: dict[str, Json] = {
    "cronjobs.batch": {},
    "daemonsets.apps": dict.fromkeys(
        ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"),
        0,
    ),
    "deployments.apps": {},
    "ingresses.networking.k8s.io": {"loadBalancer": {}},
    "jobs.batch": {},
    "poddisruptionbudgets.policy": dict.fromkeys(
        ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"), 0
    ),
    "replicasets.apps": {"replicas": 0},
    "statefulsets.apps": {"replicas": 0, "availableReplicas": 0},
    "services": {"loadBalancer": {}},
    "persistentvolumeclaims": {"phase": "Pending"},
    "persistentvolumes": {"phase": "Pending"},
    "pods": {"phase": "Pending", "qosClass": "BestEffort"},
}
_SPECS: dict[str, Json] = {
    "jobs.batch": {
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "manualSelector": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "suspend": False,
    },
    "pods": {  # of admission plugins
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{name}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for name in ("not-ready", "unreachable")
        ],
    },
}
# What nodes and controllers write is not checked.
_UNCHECKED = ("AttachedVolume", "Condition", "HTTPHeader", "Node", "ObjectReference", "Status")


def build(side: RealSide) -> bytes:
    """Return the content of the file."""
    known: dict[str, Json] = {}
    _, index = side.send(Request("GET", "/openapi/v3"))
    for entry in index["paths"].values():
        path, _, query = entry["serverRelativeURL"].partition("?")
        _, found = side.send(Request("GET", path, dict([query.split("=", 1)])))
        known |= found.get("components", {}).get("schemas", {})
    names = {
        (one["group"], one["version"], one["kind"]): name
        for name, schema in known.items()
        for one in schema.get("x-kubernetes-group-version-kind", ())
    }
    made: dict[str, Json] = {}
    kinds = {}
    for kind in list_builtin():
        name = names[kind.group, kind.version, str(kind.kind)]
        _add(name, known, made)
        kinds[f"{kind.plural}.{kind.group}".rstrip(".")] = name
    for name, schema in made.items():
        if name.endswith("Status"):
            for below in schema.get("properties", {}).values():
                below.pop("enum", None)  # nobody checks them
    for root in set(kinds.values()):
        for field in ("apiVersion", "kind", "metadata"):
            made[root]["properties"].pop(field, None)
    while _trim_required(made):
        pass
    for name, fields in _ADDED.items():
        for field, added in fields.items():
            made[name]["properties"][field] |= added
    for name, required in _REQUIRED.items():
        made[name]["required"] = required
    facts = {name: _describe(name, schema, made) for name, schema in kinds.items()}
    content = {"kinds": facts, "definitions": made}
    return gzip.compress(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), mtime=0)


def _describe(resource: str, schema: str, made: dict[str, Json]) -> Json:
    """Return what is known of a kind beside its schema."""
    fields = _FROZEN.get(resource, ())
    if resource == "pods":
        fields = tuple(sorted(made[f"{_CORE}PodSpec"]["properties"].keys() - _CHANGING))
    frozen = _FROZEN_AT_THE_TOP.get(resource) or [f"spec.{field}" for field in fields]
    facts: Json = {"schema": schema} | ({"frozen": frozen} if frozen else {})
    facts |= {"counted": ["spec"]} if resource in _COUNTED else {}
    facts |= {"status": _STATUSES[resource]} if resource in _STATUSES else {}
    facts |= {"spec": _SPECS[resource]} if resource in _SPECS else {}
    if resource == "jobs.batch":
        facts |= {"selectable": {"status.successful": "0"}, "deletes_by": "Orphan"}
    return facts


def _add(name: str, known: dict[str, Json], made: dict[str, Json]) -> None:
    if name not in made:
        made[name] = {}
        made[name] |= _REPLACED.get(name) or _convert(known[name], known, made)


def _convert(schema: Json, known: dict[str, Json], made: dict[str, Json]) -> Json:
    result = {key: value for key, value in schema.items() if key in _KEPT}
    if result.get("format") == "byte":
        result["format"] = "base64"
    if not result.get("default", True):
        del result["default"]  # the zero value of a type
    if reference := schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref"):
        name = result["$ref"] = reference.rpartition("/")[2]
        _add(name, known, made)
    for key in ("items", "additionalProperties"):
        if isinstance(result.get(key), dict):
            result[key] = _convert(result[key], known, made)
    if "properties" in result:
        result["properties"] = {
            key: _convert(value, known, made) for key, value in result["properties"].items()
        }
    return result


def _trim_required(made: dict[str, Json]) -> bool:
    """Keep what objects cannot do without: texts and lists, which must not be empty then.

    Numbers have zero values, and an absent object is an empty one. Return whether it was
    changed.
    """
    has_changed = False
    for name, schema in made.items():
        wanted = []
        is_checked = not any(part in name.rpartition(".")[2] for part in _UNCHECKED)
        for field in schema.get("properties", {}).keys() & schema.get("required", ()):
            below: Any = schema["properties"][field]
            target = made.get(below.get("$ref", ""), {})
            if not is_checked:
                continue
            if below.get("type") in {"string", "array"}:
                below["minLength" if below["type"] == "string" else "minItems"] = 1
                wanted.append(field)
            elif target.get("required"):
                wanted.append(field)
        has_changed |= sorted(wanted) != schema.get("required", [])
        if "required" in schema:
            schema["required"] = sorted(wanted)
            if not wanted:
                del schema["required"]
    return has_changed


def main() -> None:
    """Write the file."""
    with LocalCluster() as cluster, contextlib.closing(RealSide(cluster)) as side:
        FILE.write_bytes(build(side))


if __name__ == "__main__":
    main()
