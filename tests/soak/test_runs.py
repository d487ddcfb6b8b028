"""The long runs of ``make chaos`` and ``make rollout``: short versions, and their options."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.pages import ROOT
from tests.kit.processes import run_module
from tools.soak import chaos

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

pytestmark = pytest.mark.journey


@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", ["lease", "shards"])
async def test_no_rule_is_broken_as_replicas_are_killed_frozen_and_cut_off(
    webop_cluster: LocalCluster, tmp_path: Path, way: str
) -> None:
    times = chaos.Times(minutes=0.4, objects=20, rate=5, replicas=2)
    plan = [
        chaos.Fault(3, "SIGKILL", 1, 1),
        chaos.Fault(8, "long pause", None, 10),
        chaos.Fault(10, "Lease of owners deleted", None, 0),
        chaos.Fault(19, "closed", 0, 3),
    ]
    async with chaos.set_up(webop_cluster, tmp_path, times, way) as run:
        await run.play(times, plan, print)
        assert run.conclude(print) == 0
        assert run.counts.total() == len(plan)
        assert len(run.fleet.processes) == times.replicas + 1
        assert len(run.recorder.lives) >= times.objects


@pytest.mark.timeout(180)
async def test_no_request_fails_as_replicas_and_certificates_are_replaced(
    webop_cluster: LocalCluster, tmp_path: Path
) -> None:
    times = chaos.Times(minutes=0.6, objects=20, rate=10, replicas=2)
    plan = [chaos.Fault(5, "certificates deleted", 0, 0), chaos.Fault(15, chaos.ROLLOUT, 0, 0)]
    async with chaos.set_up(webop_cluster, tmp_path, times) as run:
        await run.play(times, plan, print)
        assert run.conclude(print) == 0
        assert len(run.fleet.processes) == 2 * times.replicas
        assert run.users.counts["bad one denied"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "0"], "--replicas must be above 0"),
        (["--keep", "README.md"], "--keep must be a new folder, got README.md"),
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
