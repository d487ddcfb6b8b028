"""The PersistentVolumeClaims of EphemeralVolumeClaims."""

from __future__ import annotations

from typing import Any

import webop
from webop.errors import APIConflictError, APIUnprocessableError

CLAIMS = "persistentvolumeclaims"


def build_claim(name: str, size: str | int) -> dict[str, Any]:
    """Return a PVC of the default storage class; ``adopt()`` fills in the rest."""
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
    """Create a PVC, unless an earlier attempt created it.

    Raises:
        webop.PermanentError: it is invalid, or its name belongs to a PVC with another owner.
    """
    meta = claim["metadata"]
    try:
        await client.create(claim)
    except APIUnprocessableError as exc:
        raise webop.PermanentError(f"Cannot create the PVC: {exc}") from exc
    except APIConflictError as exc:
        existing = await client.get(CLAIMS, meta["name"], namespace=meta["namespace"])
        if _list_owners(existing) != _list_owners(claim):
            text = f"Cannot create the PVC: {meta['name']!r} exists with another owner."
            raise webop.PermanentError(text) from exc


def _list_owners(obj: dict[str, Any]) -> list[str]:
    return [owner["uid"] for owner in obj["metadata"].get("ownerReferences", [])]
