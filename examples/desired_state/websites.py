"""Websites: each gets a Deployment, a Service and an Ingress, which are kept as they must be."""

from __future__ import annotations

from typing import Any

import pydantic

import webop
from webop.models import Model, Struct, resource


class WebsiteSpec(Struct):
    """What somebody wants to see in a browser."""

    image: str
    host: str
    replicas: int = pydantic.Field(default=1, ge=0, le=20)


class WebsiteStatus(Struct):
    """What there is."""

    phase: str | None = None


@resource("example.com", "v1", columns={"Host": ".spec.host", "Phase": ".status.phase"})
class Website(Model):
    """A website."""

    spec: WebsiteSpec
    status: WebsiteStatus = pydantic.Field(default_factory=WebsiteStatus)


OWNS = ["deployments.apps", "services", "ingresses.networking.k8s.io"]


@webop.reconcile(Website, owns=OWNS, reads=["deployments.apps"])
async def build(
    name: str, spec: WebsiteSpec, patch: webop.Patch, children: webop.Children, **_: Any
) -> webop.Again | None:
    """Apply the children; the website is open when the pods are ready."""
    labels, meta = {"website": name}, {"name": name}
    pod = {"containers": [{"name": "web", "image": spec.image, "ports": [{"containerPort": 80}]}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    rollout = {"replicas": spec.replicas, "selector": {"matchLabels": labels}, "template": template}
    await children.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": rollout}
    )
    ports = {"selector": labels, "ports": [{"port": 80}]}
    await children.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": ports})
    backend = {"service": {"name": name, "port": {"number": 80}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    rules = {"rules": [{"host": spec.host, "http": {"paths": [path]}}]}
    group = "networking.k8s.io/v1"
    await children.apply({"apiVersion": group, "kind": "Ingress", "metadata": meta, "spec": rules})
    await children.prune()
    is_ready = await children.ready("deployments.apps")
    patch.status["phase"] = "Open" if is_ready else "Starting"
    return None if is_ready else webop.again(after=30, reason="The pods are not ready.")
