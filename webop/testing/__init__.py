"""Tools for tests of operators; the fixtures are in the module ``pytest_webop``.

Names are imported at first use, because few tests need all of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster
    from webop.errors import ClusterError
    from webop.testing.admission_client import AdmissionClient
    from webop.testing.admission_results import AdmissionResult
    from webop.testing.clock import Clock
    from webop.testing.fake_client import FakeClient
    from webop.testing.review_building import review
    from webop.testing.round_trips import check_round_trips
    from webop.testing.rule_agreement import check_agreement
    from webop.testing.runner import KopfRunner, OperatorRunner
    from webop.testing.simulation.seeds import simulated
    from webop.testing.simulation.simulated_cluster import SimulatedCluster
    from webop.testing.simulation.virtual_threads import SimulationError
    from webop.testing.waiting import eventually

__all__ = [
    "AdmissionClient",
    "AdmissionResult",
    "Clock",
    "ClusterError",
    "FakeClient",
    "KopfRunner",
    "LocalCluster",
    "OperatorRunner",
    "SimulatedCluster",
    "SimulationError",
    "check_agreement",
    "check_round_trips",
    "eventually",
    "review",
    "simulated",
]

# The module of each name.
_MODULES = {
    "AdmissionClient": "webop.testing.admission_client",
    "AdmissionResult": "webop.testing.admission_results",
    "Clock": "webop.testing.clock",
    "ClusterError": "webop.errors",
    "FakeClient": "webop.testing.fake_client",
    "KopfRunner": "webop.testing.runner",
    "LocalCluster": "webop.controlplane.cluster",
    "OperatorRunner": "webop.testing.runner",
    "SimulatedCluster": "webop.testing.simulation.simulated_cluster",
    "SimulationError": "webop.testing.simulation.virtual_threads",
    "check_agreement": "webop.testing.rule_agreement",
    "check_round_trips": "webop.testing.round_trips",
    "eventually": "webop.testing.waiting",
    "review": "webop.testing.review_building",
    "simulated": "webop.testing.simulation.seeds",
}


def __getattr__(name: str) -> Any:
    """Import at first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value
