"""Simulated storage for control planes without storage, such as that of ``make demo``.

It replaces the controllers that provision, resize and protect volumes in other clusters: it marks
PVCs as bound, grants every requested size, and releases deleted PVCs. It stores no data.
Run it together with the example: ``webop run --all-namespaces handlers.py local_storage.py``, and
apply ``storageclass.yaml``.
"""

from __future__ import annotations

from typing import Any

import webop

_PROTECTION = "kubernetes.io/pvc-protection"


@webop.on.event("", "v1", "persistentvolumeclaims")
def provide(
    spec: webop.Spec, status: webop.Status, meta: webop.Meta, patch: webop.Patch, **_: Any
) -> None:
    """Bind a PVC, set its size, or release it after its deletion."""
    granted = {"phase": "Bound", "capacity": spec["resources"]["requests"]}
    if meta.deletion_timestamp is not None:
        if _PROTECTION in meta.finalizers:
            patch.meta["finalizers"] = [name for name in meta.finalizers if name != _PROTECTION]
    elif any(status.get(key) != value for key, value in granted.items()):
        patch.status.update(granted)
