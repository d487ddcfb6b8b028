"""Users who may do only what is granted to them (RBAC)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import webop
from webop.client.api import Client
from webop.client.auth.kubeconfig import read_kubeconfig

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_API = "rbac.authorization.k8s.io"


def read_vault(cluster: LocalCluster, user: str) -> webop.Vault:
    """Return the credentials of a user."""
    return webop.Vault({"x": read_kubeconfig([cluster.kubeconfig_for(user)])})


async def grant(
    client: Client, user: str, kind: str, verbs: str, namespace: str = "", *names: str
) -> None:
    """Let a user do something with a kind, as "widgets.tests.webop.dev".

    It can be limited to one namespace, and to the objects of some names.
    """
    plural, _, group = kind.partition(".")
    role = f"{'' if namespace else 'Cluster'}Role"
    path = f"/apis/{_API}/v1/namespaces/{namespace}" if namespace else f"/apis/{_API}/v1"
    metadata = {"name": f"{user}-{plural}-{verbs}".replace("/", "-")}
    rule = {"apiGroups": [group], "resources": [plural], "verbs": verbs.split(",")}
    rule |= {"resourceNames": [*names]} if names else {}
    await client.request(
        "POST", f"{path}/{role.lower()}s", body={"metadata": metadata, "rules": [rule]}
    )
    binding = {
        "metadata": metadata,
        "roleRef": {"apiGroup": _API, "kind": role, "name": metadata["name"]},
        "subjects": [{"apiGroup": _API, "kind": "User", "name": user}],
    }
    await client.request("POST", f"{path}/{role.lower()}bindings", body=binding)
