"""The PersistentVolumeClaims that are made for EphemeralVolumeClaims."""

from __future__ import annotations

from typing import Any

from connection import Connection, RefusedError


def build_claim(name: str, size: str | int) -> dict[str, Any]:
    """Return a claim on the cluster's default storage class; the rest is up to ``adopt()``."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": str(size)}},
        },
    }


async def create_claim(api: Connection, claim: dict[str, Any]) -> None:
    """Create a claim, unless an earlier attempt has done so.

    Raises:
        FileExistsError: there is a claim of that name which belongs to somebody else.
        ValueError: the claim is not valid; it never will be.
        RefusedError: the API server refuses it for now.
    """
    meta = claim["metadata"]
    try:
        await api.post(build_path(meta["namespace"]), claim)
    except RefusedError as exc:
        if exc.status == 422:
            raise ValueError(str(exc)) from exc
        if exc.status != 409:
            raise
        present = await api.get(build_path(meta["namespace"], meta["name"]))
        if _list_owners(present) != _list_owners(claim):
            raise FileExistsError(f"PVC {meta['name']!r} exists, and is not ours.") from exc


async def patch_claim(api: Connection, namespace: str, name: str, patch: dict[str, Any]) -> None:
    """Change a claim.

    Raises:
        RefusedError: the API server refuses it.
    """
    await api.patch(build_path(namespace, name), patch)


def build_path(namespace: str, name: str = "") -> str:
    """Return the path of a claim, or of all claims of a namespace."""
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}".rstrip("/")


def _list_owners(obj: dict[str, Any]) -> list[str]:
    return [owner["uid"] for owner in obj["metadata"].get("ownerReferences", [])]
