"""Tools for tests of operators; the fixtures are in :mod:`webop.testing.plugin`.

Names are imported at first use, because pytest loads this package in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster
    from webop.errors import ClusterError
    from webop.testing.admission import AdmissionClient
    from webop.testing.results import AdmissionResult
    from webop.testing.reviews import review
    from webop.testing.runner import OperatorRunner
    from webop.testing.runner import OperatorRunner as KopfRunner
    from webop.testing.waiting import eventually

__all__ = [
    "AdmissionClient",
    "AdmissionResult",
    "ClusterError",
    "KopfRunner",
    "LocalCluster",
    "OperatorRunner",
    "eventually",
    "review",
]

# The module of each name, and its name there.
_LAZY = {
    "AdmissionClient": ("webop.testing.admission", "AdmissionClient"),
    "AdmissionResult": ("webop.testing.results", "AdmissionResult"),
    "ClusterError": ("webop.errors", "ClusterError"),
    "KopfRunner": ("webop.testing.runner", "OperatorRunner"),
    "LocalCluster": ("webop.controlplane.cluster", "LocalCluster"),
    "OperatorRunner": ("webop.testing.runner", "OperatorRunner"),
    "eventually": ("webop.testing.waiting", "eventually"),
    "review": ("webop.testing.reviews", "review"),
}


def __getattr__(name: str) -> Any:
    """Import at first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = _LAZY[name]
    value = getattr(importlib.import_module(module), original)
    globals()[name] = value
    return value
