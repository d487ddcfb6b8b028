"""Promise 3: replicas restarted one after another, certificates rotated, and no call fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.operators import Kind, connect
from tools.soak.rollout.story import Load, Times, play, play_renaming, set_up

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

pytestmark = pytest.mark.journey


@pytest.mark.timeout(240)
async def test_no_creation_fails_and_none_goes_unchecked_through_rollouts_and_a_rotation(
    webop_cluster: LocalCluster, webop_namespace: str, tmp_path: Path
) -> None:
    kind = Kind("rollout.tests.webop.dev", "rollouts", "Rollout")
    times = Times(rate=40, lag=0.3, shutdown_delay=1.5, settle=2)
    async with connect(webop_cluster) as client:
        await kind.define(client)
    async with set_up(webop_cluster, webop_namespace, kind, tmp_path, times) as stage:
        tally = await play(stage, Load(stage, "rollout", times.rate), times, print)
        assert not tally.failed, f"{stage.balancer.refused} connections found no replica"
        assert not tally.unchecked
        assert tally.created > 300
        assert tally.refused > 100
        renaming = await play_renaming(stage, times, print)
        # Calls of the old webhook that meet new replicas are repeated, but not for ever.
        assert len(renaming.failed) < 0.05 * renaming.created
        assert not renaming.unchecked
        assert renaming.created > 300
        assert renaming.refused > 100
