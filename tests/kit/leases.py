"""Leases that somebody else holds, who never comes."""

from __future__ import annotations

import datetime as dt

import webop
from webop.client.api import Client

LEASES = webop.Resource("coordination.k8s.io", "v1", "leases", kind="Lease", namespaced=True)


async def hold_lease(client: Client, namespace: str, name: str, holder: str = "boss") -> None:
    """Let a replica that does not run hold a Lease for an hour."""
    renewed = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 3600, "renewTime": renewed}
    await client.create(LEASES, namespace, {"metadata": {"name": name}, "spec": spec})
