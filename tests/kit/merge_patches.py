"""What merge patches make of objects, as API servers apply them (RFC 7386)."""

from __future__ import annotations

from typing import Any


def merge(target: Any, patch: Any) -> Any:
    """Return the object with the patch; the object itself stays as it is."""
    if not isinstance(patch, dict):
        return patch
    merged = {**target} if isinstance(target, dict) else {}
    for key, value in patch.items():
        merged[key] = merge(merged.get(key), value)
    return {key: value for key, value in merged.items() if patch.get(key, ...) is not None}
