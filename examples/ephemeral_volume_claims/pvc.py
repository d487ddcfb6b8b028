"""The PersistentVolumeClaims that are made for EphemeralVolumeClaims."""

from __future__ import annotations

from typing import Any

import webop

CLAIMS = "persistentvolumeclaims"


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


async def create_claim(client: webop.AsyncClient, claim: dict[str, Any]) -> None:
    """Create a claim, unless an earlier attempt has done so.

    Raises:
        webop.PermanentError: it is not valid, or a claim of that name belongs to somebody else.
    """
    meta = claim["metadata"]
    try:
        await client.create(claim)
    except webop.APIUnprocessableError as exc:
        raise webop.PermanentError(f"The PVC cannot be created: {exc}") from exc
    except webop.APIConflictError as exc:
        present = await client.get(CLAIMS, meta["name"], namespace=meta["namespace"])
        if _list_owners(present) != _list_owners(claim):
            text = f"The PVC cannot be created: {meta['name']!r} exists, and is not ours."
            raise webop.PermanentError(text) from exc


def _list_owners(obj: dict[str, Any]) -> list[str]:
    return [owner["uid"] for owner in obj["metadata"].get("ownerReferences", [])]
