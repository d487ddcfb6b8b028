"""Operators with webhooks: each test has a kind, a namespace and configurations of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.kit.managed_webhooks import Site
from tests.kit.operators import Kind, define_kinds
from tests.kit.webhook_replicas import Crew, open_crew
from webop.testing import LocalCluster


@pytest.fixture(scope="module")
def kinds(webop_cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Kind]:
    """A kind for each test of the module."""
    stem = request.module.__name__.rpartition(".test_")[2].replace("_", "")
    count = sum(item.path == request.path for item in request.session.items)
    groups = (f"{stem}{number}.webop.dev" for number in range(count))
    return define_kinds(
        webop_cluster, (Kind(group, "parcels", "Parcel", has_status=True) for group in groups)
    )


@pytest.fixture
async def crew(site: Site) -> AsyncIterator[Crew]:
    async with open_crew(site) as opened:
        yield opened
