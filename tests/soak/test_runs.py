"""The long runs of ``make chaos`` and so on: short versions of some, and their options."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.operators import connect
from tests.kit.pages import ROOT
from tests.kit.processes import run_module
from tools.soak.handover import story as handover
from tools.soak.handover.__main__ import conclude
from tools.soak.handover.moves import list_moves
from tools.soak.rollout.__main__ import PARCELS
from tools.soak.rollout.story import Creations, Times, play_renaming, set_up

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

pytestmark = pytest.mark.journey


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("way", "acts"),
    [("--shards", [handover.kill]), ("--lease", [handover.forbid])],
)
async def test_of_replicas_never_two_act_on_one_object(
    webop_cluster: LocalCluster,
    webop_namespace: str,
    tmp_path: Path,
    way: str,
    acts: list[handover.Act],
) -> None:
    times = handover.Times(objects=20, rate=5, replicas=2, duration=4, deadline=3, period=0.5)
    async with handover.set_up(webop_cluster, webop_namespace, tmp_path, times, way) as stage:
        await handover.play(stage, print, [*acts])
        assert conclude(stage, print) == 0
        moves = list_moves(handover.collect(stage)[0].calls, stage.events)
    assert len({move.uid for move in moves}) > times.objects / 4


@pytest.mark.timeout(120)
async def test_no_creation_fails_and_none_goes_unchecked_as_replicas_and_certificates_are_replaced(
    webop_cluster: LocalCluster, webop_namespace: str, tmp_path: Path
) -> None:
    times = Times(rate=10, lag=0.2, shutdown_delay=1, settle=1, replicas=1)
    async with connect(webop_cluster) as client:
        await PARCELS.define(client)
    async with set_up(webop_cluster, webop_namespace, PARCELS, tmp_path, times) as stage:
        load = Creations(stage, "rollout")
        await play_renaming(stage, load, print, rotates=True)
        assert not load.unchecked
        # Calls of the old webhook that meet new replicas are repeated, but not for ever.
        assert len(load.failed) <= 0.05 * load.created, f"{stage.balancer.refused} not accepted"
    assert load.created > 20
    assert load.refused > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "0"], "--replicas must be above 0"),
        (["--keep", "README.md"], "--keep must be a new or an empty folder, got README.md"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_started(
    arguments: list[str], message: str
) -> None:
    done = run_module("tools.soak.chaos", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr


def test_a_run_does_not_test_another_copy_of_webop(tmp_path: Path) -> None:
    copy = tmp_path / "webop"
    shutil.copytree(ROOT / "webop", copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "app.py").write_text("# It was edited in the clone since.\n")
    done = run_module("tools.soak.chaos", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"chaos: the webop in {copy} differs from this clone, ")
    assert f" -m pip install -e '{ROOT}'" in done.stderr
