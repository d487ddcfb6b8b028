"""An API server with an audit log, and operators that plan on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kit.operators import Kind, define_kinds
from tests.kit.plans import AUDIT_POLICY, Desk, open_desk
from webop.testing import LocalCluster


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
    webop_cluster: LocalCluster, shops: Kind, tmp_path: Path, audit_log: Path
) -> AsyncIterator[Desk]:
    async with open_desk(webop_cluster, shops, tmp_path, audit_log) as desk:
        yield desk
