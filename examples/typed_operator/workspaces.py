"""Workspaces: a namespace and a quota for each.

The API server checks types and rules of the models. The webhook checks what needs other objects:
two workspaces cannot have the same namespace.
"""

from __future__ import annotations

import os
from typing import Any

import workspace_v1beta1  # noqa: F401 - its functions convert older objects
from workspace_models import Workspace, WorkspaceSpec, WorkspaceStatus

import webop
from webop.errors import APINotFoundError


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Use separate names for state and webhooks, and declare the rights of the handlers."""
    settings.persistence.prefix = "workspaces.example.com"
    settings.admission.managed = "workspaces.example.com"
    settings.networking.rights = [
        "example.com/workspaces:list",
        "example.com/workspaces/finalizers:update",
        "namespaces:get,create,patch",
        "resourcequotas:create,patch",
    ]
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        settings.admission.server = webop.WebhookServiceServer()
    else:
        settings.admission.server = webop.WebhookServer(port=0)


@webop.on.validate(Workspace, operation="CREATE")
async def check(spec: WorkspaceSpec, name: str, client: webop.AsyncClient, **_: Any) -> None:
    """Deny a second workspace for the same namespace."""
    same = await client.list(Workspace, fields={"spec.namespace": spec.namespace})
    if others := [each.metadata.name for each in same if each.metadata.name != name]:
        text = f"spec.namespace: the workspace {others[0]} has the namespace {spec.namespace}."
        raise webop.AdmissionError(text, code=409)


@webop.on.create(Workspace)
@webop.on.update(Workspace)
async def provide(
    spec: WorkspaceSpec,
    status: WorkspaceStatus,
    meta: webop.Meta,
    client: webop.AsyncClient,
    **_: Any,
) -> WorkspaceStatus:
    """Keep the namespace and its quota; Kubernetes deletes them with the workspace."""
    generation = meta["generation"]
    if await is_foreign(client, spec.namespace, meta["uid"]):
        text = f"The namespace {spec.namespace} exists, and is not of this workspace."
        status.conditions.set("Ready", False, "NamespaceExists", text, generation=generation)
        return status
    labels = {"example.com/stage": spec.stage}
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": spec.namespace, "labels": labels},
    }
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "workspace", "namespace": spec.namespace},
        "spec": {"hard": spec.quota.model_dump()},
    }
    for child in (namespace, quota):
        webop.append_owner_reference(child)
        await client.apply(child)
    status.conditions.set("Ready", True, "Provided", generation=generation)
    return status


async def is_foreign(client: webop.AsyncClient, name: str, uid: str) -> bool:
    """Return whether there is a namespace of this name without this owner."""
    try:
        found = await client.get("namespaces", name)
    except APINotFoundError:
        return False
    owners = found["metadata"].get("ownerReferences", ())
    return uid not in [owner["uid"] for owner in owners]
