"""In spite of faults, only one of three replicas handles objects; all serve admission."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.operators import Kind, connect
from tools.soak.leadership.story import HEADING, Times, find_repetitions, play, set_up

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

pytestmark = pytest.mark.journey


@pytest.mark.timeout(180)
async def test_of_three_replicas_never_two_act_at_once_and_all_serve_admission(
    webop_cluster: LocalCluster, webop_namespace: str, tmp_path: Path
) -> None:
    kind = Kind("leadership.tests.webop.dev", "wards", "Ward")
    times = Times(duration=4, deadline=3, period=0.5, rate=15)
    async with connect(webop_cluster) as client:
        await kind.define(client)
    async with set_up(webop_cluster, webop_namespace, kind, tmp_path, times) as stage:
        sys.stdout.write(f"{HEADING}\n")
        outcomes = await play(stage, lambda text: sys.stdout.write(f"{text}\n"))
        steps = stage.list_steps()
    assert [text for outcome in outcomes for text in outcome.overlaps] == []
    assert find_repetitions(steps) == []
    assert stage.reviews.failed == []
    assert stage.reviews.answered > 100
    handovers = {outcome.fault: outcome.handover for outcome in outcomes}
    assert handovers["SIGTERM"] < 1.5
    assert handovers["kill -9"] < 4 + 1.5
    assert all(outcome.steps > 10 for outcome in outcomes)
