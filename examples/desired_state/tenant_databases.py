"""Tenants: each gets a database of its own, with a password that is made once."""

from __future__ import annotations

import base64
import secrets
from typing import Any

import webop
from webop.models import Model, Struct, resource


class TenantSpec(Struct):
    """What a tenant needs."""

    image: str = "postgres:18"
    storage: str = "1Gi"


@resource("example.com", "v1", kind="DatabaseTenant")
class Tenant(Model):
    """A tenant with a database."""

    spec: TenantSpec


OWNS = ["secrets", "services", "statefulsets.apps"]


@webop.reconcile(Tenant, owns=OWNS)
async def provide(name: str, spec: TenantSpec, children: webop.Children, **_: Any) -> None:
    """Apply the password, the address and the database."""
    meta, labels = {"name": f"db-{name}"}, {"tenant": name}
    known = await children.get("secrets", meta["name"])
    made = base64.b64encode(secrets.token_urlsafe(24).encode()).decode()
    data = known["data"] if known else {"password": made}
    await children.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
    ports = {"clusterIP": "None", "selector": labels, "ports": [{"port": 5432}]}
    await children.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": ports})
    source = {"secretKeyRef": {"name": meta["name"], "key": "password"}}
    container = {
        "name": "db",
        "image": spec.image,
        "env": [{"name": "POSTGRES_PASSWORD", "valueFrom": source}],
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/postgresql"}],
    }
    storage = {"resources": {"requests": {"storage": spec.storage}}}
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], **storage}}
    pods = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    database: dict[str, Any] = {
        "serviceName": meta["name"],
        "selector": {"matchLabels": labels},
        "template": pods,
    }
    database["volumeClaimTemplates"] = [claim]
    await children.apply(
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": database}
    )
    await children.prune()
