"""For the tests of operators; the fixtures are in :mod:`webop.testing.plugin`.

Everything is imported when it is asked for: pytest loads this package in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

__all__ = ["LocalCluster"]

_LAZY = {
    "LocalCluster": "webop.controlplane.cluster",
}


def __getattr__(name: str) -> Any:
    """Import at first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
