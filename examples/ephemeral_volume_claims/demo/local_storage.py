"""Storage for control planes that have none, such as those of ``make demo``: bytes are not kept.

It plays the controllers which provision, resize and protect volumes on other clusters: it takes
PVCs for bound, grants each size that is asked for, and lets go of deleted ones.
Run it beside the example: ``webop run --all-namespaces handlers.py local_storage.py``, and apply
``storageclass.yaml``.
"""

from __future__ import annotations

from typing import Any

import webop

_PROTECTION = "kubernetes.io/pvc-protection"


@webop.on.event("", "v1", "persistentvolumeclaims")
def provide(
    spec: webop.Spec, status: webop.Status, meta: webop.Meta, patch: webop.Patch, **_: Any
) -> None:
    """Bind a PVC, give it its size, or let it go."""
    granted = {"phase": "Bound", "capacity": spec["resources"]["requests"]}
    if meta.deletion_timestamp is not None:
        if _PROTECTION in meta.finalizers:
            patch.meta["finalizers"] = [name for name in meta.finalizers if name != _PROTECTION]
    elif any(status.get(key) != value for key, value in granted.items()):
        patch.status.update(granted)
