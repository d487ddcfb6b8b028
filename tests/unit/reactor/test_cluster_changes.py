"""The permissions to watch what changes in the cluster itself."""

from __future__ import annotations

import asyncio

from tests.kit.fake_cluster import FakeCluster, answer_status
from tests.kit.virtual_time import in_virtual_time
from webop.objects.resources import NAMESPACES
from webop.reactor.cluster_changes import wait_for_permission


@in_virtual_time
async def test_an_api_server_that_is_away_is_not_taken_for_a_permission() -> None:
    cluster = FakeCluster()
    cluster.refuse("pages", answer_status(500, message="away"))
    cluster.refuse("pages", answer_status(403, "Forbidden", "no"), 99)
    async with cluster.connect() as client:
        waiting = asyncio.create_task(wait_for_permission(client, NAMESPACES))
        await asyncio.sleep(60)
        assert not waiting.done()
        cluster.refusals.clear()
        await waiting
