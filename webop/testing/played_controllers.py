"""The statuses that controllers write when Pods are ready, or Jobs have finished.

They are those of kube-controller-manager and kubelet 1.36, without what nodes say.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from webop.client.objects import AsyncClient, Obj
from webop.objects.fields import Json
from webop.objects.resources import Resource

_COMMON = ("replicas", "readyReplicas", "availableReplicas")
_READY = {  # the counts of each kind that are all the number of its Pods
    "DaemonSet": (
        "currentNumberScheduled",
        "desiredNumberScheduled",
        "numberAvailable",
        "numberReady",
        "updatedNumberScheduled",
    ),
    "Deployment": (*_COMMON, "updatedReplicas"),
    "Pod": (),
    "ReplicaSet": (*_COMMON, "fullyLabeledReplicas"),
    "StatefulSet": (*_COMMON, "currentReplicas", "updatedReplicas"),
}


async def write_status(
    client: AsyncClient,
    resource: Resource,
    name: str,
    namespace: str | None,
    build: Callable[[Json, str], Json],
    moment: dt.datetime,
) -> Obj:
    """Write the status of an object as its controller does; return the object.

    Args:
        client: with which it is read and written.
        resource: its kind.
        name: of the object.
        namespace: of the object.
        build: given the object and the time, returns the status.
        moment: the time in it.

    Raises:
        APINotFoundError: the object does not exist.
        ValueError: it is of a kind that is not played.
    """
    raw = await client.get(resource, name, namespace=namespace)
    status = build({**raw, "kind": resource.kind}, build_stamp(moment))
    place: Any = {"namespace": namespace, "subresource": "status"}
    return await client.patch(resource, name, {"status": status}, **place)


def build_stamp(moment: dt.datetime) -> str:
    """Return a time as API servers write it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def build_ready_status(raw: Json, stamp: str) -> Json:
    """Return the status of an object whose Pods are ready.

    Args:
        raw: the object.
        stamp: the time.

    Raises:
        ValueError: its kind is not known.
    """
    kind, name = raw["kind"], raw["metadata"]["name"]
    if kind not in _READY:
        raise _refuse(raw, "make_ready", _READY)
    if kind == "Pod":
        return _build_pod_status(raw, stamp, "Running", {"running": {"startedAt": stamp}})
    status: Json = dict.fromkeys(_READY[kind], raw["spec"].get("replicas", 1))
    status["observedGeneration"] = raw["metadata"]["generation"]
    if kind == "Deployment":
        available = "Deployment has minimum availability."
        progress = f'ReplicaSet "{name}-1" has successfully progressed.'
        status["conditions"] = [
            _build_condition(stamp, "Available", "MinimumReplicasAvailable", available),
            _build_condition(stamp, "Progressing", "NewReplicaSetAvailable", progress),
        ]
        for condition in status["conditions"]:
            condition["lastUpdateTime"] = stamp
    elif kind == "StatefulSet":
        status |= dict.fromkeys(("currentRevision", "updateRevision"), f"{name}-1")
        status["collisionCount"] = 0
    if kind in {"Deployment", "ReplicaSet"}:
        status["terminatingReplicas"] = 0
    return status


def build_finished_status(raw: Json, stamp: str, *, succeeded: bool) -> Json:
    """Return the status of a Job or a Pod that has succeeded or failed.

    Args:
        raw: the object.
        stamp: the time.
        succeeded: whether it has succeeded.

    Raises:
        ValueError: it is something else.
    """
    start = raw["status"].get("startTime", raw["metadata"]["creationTimestamp"])
    if raw["kind"] == "Pod":
        code, reason = (0, "Completed") if succeeded else (1, "Error")
        end = {"exitCode": code, "reason": reason, "startedAt": start, "finishedAt": stamp}
        phase = "Succeeded" if succeeded else "Failed"
        return _build_pod_status(raw, stamp, phase, {"terminated": end})
    if raw["kind"] != "Job":
        raise _refuse(raw, "finish", ("Job", "Pod"))
    spec = raw["spec"]
    status: Json = {"startTime": start, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}
    if succeeded:
        types, reason = ("SuccessCriteriaMet", "Complete"), "CompletionsReached"
        message, count = "Reached expected number of succeeded pods", spec.get("completions", 1)
        status |= {"completionTime": stamp, "succeeded": count}
        if spec["completionMode"] == "Indexed":
            status["completedIndexes"] = f"0-{count - 1}" if count > 2 else "0,1"[: 2 * count - 1]
    else:
        types, reason = ("FailureTarget", "Failed"), "BackoffLimitExceeded"
        message = "Job has reached the specified backoff limit"
        status["failed"] = spec["backoffLimit"] + 1
    conditions = [_build_condition(stamp, name, reason, message) for name in types]
    status["conditions"] = [{**one, "lastProbeTime": stamp} for one in conditions]
    return status


def _build_condition(stamp: str, name: str, *texts: str, status: str = "True") -> Json:
    said = dict(zip(("reason", "message"), texts, strict=False))
    return {"type": name, "status": status, "lastTransitionTime": stamp, **said}


def _build_pod_status(raw: Json, stamp: str, phase: str, state: Json) -> Json:
    is_ready = phase == "Running"
    reason = {"Succeeded": ["PodCompleted"], "Failed": ["PodFailed"]}.get(phase, [])
    done = reason if phase == "Succeeded" else []
    ready = "True" if is_ready else "False"
    common: Json = {
        "ready": is_ready,
        "started": is_ready,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }
    return {
        "phase": phase,
        "startTime": raw["status"].get("startTime", stamp),
        "conditions": [
            _build_condition(stamp, "PodScheduled"),
            _build_condition(stamp, "Initialized", *done),
            _build_condition(stamp, "ContainersReady", *reason, status=ready),
            _build_condition(stamp, "Ready", *reason, status=ready),
        ],
        "containerStatuses": [
            {"name": one["name"], "image": one["image"], "imageID": one["image"], **common}
            for one in raw["spec"]["containers"]
        ],
    }


def _refuse(raw: Json, method: str, kinds: Any) -> ValueError:
    known = ", ".join(kinds)
    return ValueError(
        f"{method}() knows {known}, not {raw['kind']}. Write its status yourself: "
        'client.patch(…, subresource="status").'
    )
