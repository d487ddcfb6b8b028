"""An API server with an audit log, and operators that plan on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kit.operators import Kind, Objects, connect, define_kinds
from tests.kit.plans import AUDIT_POLICY, PLANNER, Desk, list_stored_writes, read_audit
from tests.kit.processes import Workshop
from webop.controlplane.cluster import LocalCluster


@pytest.fixture(scope="session")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "policy.yaml").write_text(AUDIT_POLICY)
    return folder / "audit.log"


@pytest.fixture(scope="session")
def webop_cluster(audit_log: Path) -> Iterator[LocalCluster]:
    policy = audit_log.with_name("policy.yaml")
    flags = f"--audit-policy-file={policy}", f"--audit-log-path={audit_log}"
    with LocalCluster(apiserver_flags=flags) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shops(webop_cluster: LocalCluster) -> Kind:
    kind = Kind("plan.webop.dev", "shops", "Shop", has_status=True)
    return next(define_kinds(webop_cluster, [kind]))


@pytest.fixture
async def desk(
    webop_cluster: LocalCluster,
    shops: Kind,
    webop_namespace: str,
    connected: Workshop,
    audit_log: Path,
) -> AsyncIterator[Desk]:
    """An operator to plan; all that the plans of a test have sent were reads and dry runs."""
    planner = webop_cluster.kubeconfig_for(PLANNER, ["system:masters"], namespace=webop_namespace)
    seen = len(read_audit(audit_log))
    async with connect(webop_cluster) as client:
        objects = Objects(client, shops, webop_namespace)
        yield Desk(webop_cluster, client, objects, connected, planner)
    events = read_audit(audit_log)[seen:]
    assert events, "the audit log follows the planner"
    assert not list_stored_writes(events)
