"""The cluster that all workers of a run share: it has an audit log.

A plugin of pytest, since the tests of the examples use the cluster, too: what the first worker asks
for counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def audit_log(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The audit log of the cluster: all requests of planners, see ``tests.kit.plans``."""
    folder = tmp_path_factory.getbasetemp()
    return (folder if worker_id == "master" else folder.parent) / "audit.log"


@pytest.fixture(scope="session")
def webop_cluster_options(audit_log: Path) -> dict[str, Any]:
    policy = Path(__file__).with_name("audit_policy.yaml")
    flags = f"--audit-policy-file={policy}", f"--audit-log-path={audit_log}"
    return {"apiserver_flags": flags}
