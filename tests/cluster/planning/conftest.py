"""Operators that plan, and an API server whose audit log says what they have sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.operators import Kind, define_kinds
from tests.kit.plans import Desk, open_desk, wait_declared
from webop.testing import LocalCluster


@pytest.fixture(scope="session")
def kiosks(webop_cluster: LocalCluster) -> Kind:
    kind = Kind("plan.webop.dev", "kiosks", "Kiosk", has_status=True)
    (defined,) = define_kinds(webop_cluster, [kind])
    asyncio.run(wait_declared(webop_cluster, kind))
    return defined


@pytest.fixture
async def desk(
    webop_cluster: LocalCluster, kiosks: Kind, tmp_path: Path, audit_log: Path
) -> AsyncIterator[Desk]:
    async with open_desk(webop_cluster, kiosks, tmp_path, audit_log) as desk:
        yield desk
