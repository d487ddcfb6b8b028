"""Replicas that convert are restarted one after another, and no read or write fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.operators import Kind, connect
from tests.kit.versioned_shops import GROUP, open_shops
from tools.soak.rollout.story import Times, play, set_up
from tools.soak.versions.story import CONVERTING, Load

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

pytestmark = [pytest.mark.journey, pytest.mark.xdist_group("shops")]


@pytest.mark.timeout(240)
async def test_no_read_or_write_of_two_versions_fails_through_rollouts_and_a_rotation(
    webop_cluster: LocalCluster, webop_namespace: str, tmp_path: Path
) -> None:
    kind = Kind(GROUP, "shops", "Shop")
    times = Times(rate=20, lag=0.3, shutdown_delay=1.5, settle=2)
    async with (
        connect(webop_cluster) as client,
        open_shops(client, webop_namespace) as shops,
        set_up(webop_cluster, webop_namespace, kind, tmp_path, times, handlers=CONVERTING) as stage,
    ):
        await shops.wait_converted()
        tally = await play(stage, Load(stage, times.rate), times, print)
        assert not tally.failed, f"{stage.balancer.refused} connections found no replica"
        assert not tally.wrong
        assert sum(tally.counts.values()) > 200
