"""In spite of faults, each object is in the hands of one of several replicas, and none is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.operators import Kind, connect
from tools.soak.shards.__main__ import conclude
from tools.soak.shards.moves import list_moves
from tools.soak.shards.story import Times, collect, play, set_up

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

pytestmark = pytest.mark.journey


@pytest.mark.timeout(300)
async def test_of_replicas_that_share_the_work_never_two_act_on_one_object(
    webop_cluster: LocalCluster, webop_namespace: str, tmp_path: Path
) -> None:
    kind = Kind("shards.tests.webop.dev", "crates", "Crate")
    times = Times(minutes=1, objects=120, rate=15, duration=4, deadline=3, period=0.5)
    async with connect(webop_cluster) as client:
        await kind.define(client)
    async with set_up(webop_cluster, webop_namespace, kind, tmp_path, times) as stage:
        took = await play(stage, print)
        assert conclude(stage, took, print) == 0
        moves = list_moves(collect(stage)[0].calls, stage.events)
    assert len({move.uid for move in moves}) > times.objects / 2
