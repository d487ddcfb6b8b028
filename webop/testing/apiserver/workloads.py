"""Deployments, Jobs, Pods and their relatives: what API servers fill in and refuse. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .messages import Json

_UNITS = "num kMGTPE"
_KEPT_RUNNING = {"DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"}
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")


def fill_in(facts: Json, raw: Json) -> None:
    """Set what is the same in all objects of a kind, and what other fields imply."""
    if "status" in facts:
        raw.setdefault("status", facts["status"])
    kind, given = raw["kind"], raw.get("spec")
    if not isinstance(given, dict):
        return
    spec = raw["spec"] = {**facts.get("spec", {}), **given}
    if kind == "Pod":
        raw["spec"] = _fill_pod_spec(spec)
    elif kind == "CronJob" and isinstance(job := spec.get("jobTemplate"), dict):
        spec["jobTemplate"] = {**job, "spec": _fill_template(job.get("spec", {}))}
    else:
        raw["spec"] = spec = _fill_template(spec)
    strategy = spec.get("strategy", {})
    if kind == "Deployment" and strategy.get("type") == "RollingUpdate":
        rolling = {"maxUnavailable": "25%", "maxSurge": "25%", **strategy.get("rollingUpdate", {})}
        spec["strategy"] = {**strategy, "rollingUpdate": rolling}


def fill_in_job(raw: Json) -> None:
    """Complete a new Job: its selector is that of its own pods."""
    spec: Json = {**(raw.get("spec") or {})}
    metadata, template = raw["metadata"], spec.get("template")
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    if isinstance(template, dict) and not spec.get("manualSelector") and "selector" not in spec:
        prefix, uid, name = "batch.kubernetes.io/", metadata["uid"], metadata.get("name", "")
        own = {"controller-uid": uid, "job-name": name}
        own |= {f"{prefix}{key}": value for key, value in own.items()}
        inner = template.get("metadata", {})
        labels = {"labels": {**inner.get("labels", {}), **own}}
        spec["template"] = {**template, "metadata": {**inner, **labels}}
        spec["selector"] = {"matchLabels": {f"{prefix}controller-uid": uid}}
    if isinstance(template, dict) and not metadata.get("labels"):
        metadata["labels"] = dict(spec["template"].get("metadata", {}).get("labels", {}))
    raw["spec"] = spec


def _fill_template(spec: Json) -> Json:
    template = spec.get("template")
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return {**spec}
    return {**spec, "template": {**template, "spec": _fill_pod_spec(template["spec"])}}


def _fill_pod_spec(spec: Json) -> Json:
    new = {**spec}
    for field in ("containers", "initContainers"):
        if spec.get(field):
            new[field] = [_fill_container(one) for one in spec[field]]
    if spec.get("volumes"):
        empty: Json = {"emptyDir": {}}
        new["volumes"] = [one if len(one) > 1 else {**one, **empty} for one in spec["volumes"]]
    if account := spec.get("serviceAccountName"):
        new["serviceAccount"] = account
    return new


def _fill_container(container: Json) -> Json:
    image = container.get("image", "").rpartition("/")[2]
    is_latest = ("@" not in image and ":" not in image) or image.endswith(":latest")
    resources: Json = {
        name: {key: str(amount) for key, amount in part.items()} if isinstance(part, dict) else part
        for name, part in container.get("resources", {}).items()
    }
    pull = {"imagePullPolicy": "Always" if is_latest else "IfNotPresent"}
    return {**pull, **container, "resources": resources}


def find_faults(raw: Json) -> Iterator[str]:
    """Yield what is wrong with an object beyond its schema."""
    kind, spec = raw["kind"], raw.get("spec") or {}
    if kind == "Pod":
        yield from _find_faults_of_pods(spec, "spec")
        for index, condition in enumerate(raw["status"].get("conditions") or ()):
            if not condition.get("type"):
                yield f"status.conditions[{index}].Type: Required value"
    elif kind == "Service":
        name = "externalName" if spec["type"] == "ExternalName" else "ports"
        if not spec.get(name) and spec.get("clusterIP") != "None":
            yield f"spec.{name}: Required value"
    elif kind == "Ingress" and not spec.keys() & {"defaultBackend", "rules"}:
        yield "spec: Invalid value: either `defaultBackend` or `rules` must be specified"
    elif kind == "Job" or kind in _KEPT_RUNNING:
        yield from _find_selector_faults(spec, is_job=kind == "Job")
        yield from _find_faults_of_pods(spec["template"]["spec"], "spec.template.spec")
    if kind == "Deployment":
        yield from _find_deployment_faults(spec)


def _find_selector_faults(spec: Json, *, is_job: bool) -> Iterator[str]:
    template, selector = spec["template"], spec.get("selector") or {}
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield "spec.selector: Required value"
    labels = template.get("metadata", {}).get("labels") or {}
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        yield "spec.template.metadata.labels: Invalid value: `selector` does not match `labels`"
    policies = ("Never", "OnFailure") if is_job else ("Always",)
    if (policy := template["spec"]["restartPolicy"]) not in policies:
        yield f"spec.template.spec.restartPolicy: Unsupported value: {policy}"
    if spec.get("completionMode") == "Indexed" and "completions" not in spec:
        yield "spec.completions: Required value: when completion mode is Indexed"


def _find_deployment_faults(spec: Json) -> Iterator[str]:
    path, rolling = "spec.strategy.rollingUpdate", spec["strategy"].get("rollingUpdate", {})
    if spec["strategy"]["type"] == "Recreate" and rolling:
        yield f"{path}: Forbidden: may not be specified with Recreate"
    if spec["progressDeadlineSeconds"] <= spec.get("minReadySeconds", 0):
        yield "spec.progressDeadlineSeconds: Invalid value: must be greater than minReadySeconds"
    for field, value in rolling.items():
        if isinstance(value, str) and not re.fullmatch("[0-9]+%", value):
            yield f"{path}.{field}: Invalid value: must be a number or a percentage"


def _find_faults_of_pods(spec: Json, path: str) -> Iterator[str]:
    volumes = [one["name"] for one in spec.get("volumes") or ()]
    yield from _find_duplicates(volumes, f"{path}.volumes")
    names: list[str] = []
    for field in ("initContainers", "containers"):
        for index, one in enumerate(spec.get(field) or ()):
            names.append(one["name"])
            yield from _find_container_faults(one, f"{path}.{field}[{index}]", volumes)
    yield from _find_duplicates(names, f"{path}.containers")


def _find_duplicates(names: list[str], path: str) -> Iterator[str]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"{path}[{index}].name: Duplicate value: {name}"


def _find_container_faults(container: Json, path: str, volumes: list[str]) -> Iterator[str]:
    if not container.get("image"):
        yield f"{path}.image: Required value"
    amounts = container["resources"]
    for name, limit in amounts.get("limits", {}).items():
        wanted = amounts.get("requests", {}).get(name, limit)
        if _parse_quantity(wanted) > _parse_quantity(limit):
            yield f"{path}.resources.requests: Invalid value: {wanted}: more than the limit {limit}"
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount["name"] not in volumes:
            yield f"{path}.volumeMounts[{index}].name: Not found: {mount['name']}"
    for index, variable in enumerate(container.get("env") or ()):
        if variable.get("value") and "valueFrom" in variable:
            yield f"{path}.env[{index}].valueFrom: Invalid value: there is a value, too"
    for field in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(field)
        if probe is not None and sum(handler in probe for handler in _HANDLERS) != 1:
            yield f"{path}.{field}: Required value: must specify one handler type"


def _parse_quantity(text: str) -> float:
    number = re.match(r"[-+]?[\d.]+([eE][-+]?\d+)?", text)
    assert number is not None  # noqa: S101 - the schema has the format
    unit = text[number.end() :]
    step = 1024 if unit.endswith("i") else 1000
    power = _UNITS.index(unit[0]) - 3 if unit else 0
    return float(number[0]) * float(step**power)
