"""Backups: each Backup gets a volume, and a CronJob that copies another volume to it."""

from __future__ import annotations

from typing import Annotated, Any

import webop
from webop.models import CEL, Model, Struct, resource


class BackupSpec(Struct):
    """What must be saved, and when."""

    claim: str
    """The PersistentVolumeClaim to save."""
    schedule: str = "0 3 * * *"
    size: Annotated[str, CEL("self == oldSelf", message="the size cannot change")] = "10Gi"
    suspend: bool = False


@resource("example.com", "v1", columns={"Claim": ".spec.claim", "When": ".spec.schedule"})
class Backup(Model):
    """A volume that is saved regularly."""

    spec: BackupSpec


def build_job(spec: BackupSpec, target: str) -> dict[str, Any]:
    """Return the spec of a Job that copies one volume to the other."""
    volumes = [
        {"name": name, "persistentVolumeClaim": {"claimName": claim}}
        for name, claim in (("from", spec.claim), ("to", target))
    ]
    mounts = [{"name": one, "mountPath": f"/{one}"} for one in ("from", "to")]
    command = ["sh", "-c", "tar -czf /to/$(date +%F).tgz -C /from ."]
    container = {"name": "copy", "image": "busybox:1.37", "command": command}
    pod = {"restartPolicy": "OnFailure", "volumes": volumes}
    return {"template": {"spec": {**pod, "containers": [{**container, "volumeMounts": mounts}]}}}


@webop.reconcile(Backup, owns=["persistentvolumeclaims", "cronjobs.batch"])
def keep(name: str, spec: BackupSpec, children: webop.SyncChildren, **_: Any) -> None:
    """Apply the volume and the CronJob; a suspended backup keeps only its volume."""
    meta = {"name": f"backup-{name}"}
    storage = {"resources": {"requests": {"storage": spec.size}}}
    claim = {"accessModes": ["ReadWriteOnce"], **storage}
    children.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim}
    )
    if not spec.suspend:
        job = {"schedule": spec.schedule, "jobTemplate": {"spec": build_job(spec, meta["name"])}}
        children.apply({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": meta, "spec": job})
    children.prune()
