"""Half an hour of faults on a real API server: ``python -m tools.soak.chaos``."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from tools.long_runs import Say, build_parser, prove, take_options
from tools.soak.chaos.plan import build_plan
from tools.soak.chaos.story import Times, play, set_up
from webop.testing import LocalCluster

_LONGEST = 7 * 24 * 60  # minutes: all faults of a run are planned at its start


def main() -> int:
    """Run the command line; return 0 if no rule was violated."""
    parser = build_parser("chaos", __doc__, Times)
    parser.add_argument("--alone", action="store_true", help="one replica without a Lease")
    times, keep, more = take_options(parser, Times)
    if times.minutes > _LONGEST:
        parser.error(f"--minutes must be at most {_LONGEST} (a week)")
    if not (math.isfinite(times.rate) and math.isfinite(times.calm)):
        parser.error("--rate and --calm must be finite numbers")
    if more.alone and times.replicas != Times().replicas:
        parser.error("--alone runs one replica: --replicas does nothing with it")
    times = replace(times, replicas=1) if more.alone else times
    return prove("chaos", times, partial(_run, times), keep)


async def _run(times: Times, cluster: LocalCluster, folder: Path, say: Say) -> int:
    plan = build_plan(times.seed, times.minutes * 60, times.replicas)
    async with set_up(cluster, folder, times) as stage:
        say(f"Replicas ready on Kubernetes {cluster.version}. {len(plan)} faults are planned.")
        await play(stage, times, plan, say)
        evidence = stage.collect(has_lease=stage.has_lease)
        balancer = stage.fleet.balancer
        counts = {
            "faults": stage.counts,
            "reviews without a replica": balancer.refused if balancer else 0,
        }
        return int(bool(stage.conclude(evidence, (), counts, say)))


if __name__ == "__main__":
    sys.exit(main())
