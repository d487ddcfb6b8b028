"""Half an hour of faults on a real API server: ``python -m tools.soak.chaos``."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from tools.long_runs import Say, add_keep, build_parser, make_kept, prove
from tools.soak.chaos.invariants import find_idle_daemons, judge
from tools.soak.chaos.plan import build_plan
from tools.soak.chaos.report import show
from tools.soak.chaos.story import (
    Times,
    collect,
    play,
    set_up,
    summarize,
)
from webop.testing import LocalCluster

_LONGEST = 7 * 24 * 60  # minutes: all faults of a run are planned at its start


def main() -> int:
    """Run the command line; return 0 if no rule was violated."""
    defaults = Times()
    parser = build_parser("chaos", __doc__, Times)
    add = parser.add_argument
    add("--alone", action="store_true", help="one replica without a Lease")
    add_keep(parser)
    chosen = vars(parser.parse_args())
    has_lease, keep = not chosen.pop("alone"), chosen.pop("keep")
    times = Times(**chosen)
    if min(times.minutes, times.objects, times.rate, times.replicas) <= 0:
        parser.error("--minutes, --objects, --rate and --replicas must be above 0")
    if not (times.minutes <= _LONGEST and times.calm >= 0):  # nan is neither
        parser.error(f"--minutes must be at most {_LONGEST} (a week), --calm at least 0")
    if not (math.isfinite(times.rate) and math.isfinite(times.calm)):
        parser.error("--rate and --calm must be finite numbers")
    if not has_lease and times.replicas != defaults.replicas:
        parser.error("--alone runs one replica: --replicas does nothing with it")
    make_kept(parser, keep)
    times = times if has_lease else replace(times, replicas=1)
    return prove("chaos", times, partial(_run, times, has_lease=has_lease), keep)


async def _run(
    times: Times,
    cluster: LocalCluster,
    folder: Path,
    say: Say,
    *,
    has_lease: bool,
) -> int:
    plan = build_plan(times.seed, times.minutes * 60, times.replicas)
    async with set_up(cluster, folder, times, has_lease=has_lease) as stage:
        say(f"Replicas ready on Kubernetes {cluster.version}. {len(plan)} faults are planned.")
        took = await play(stage, times, plan, say)
        evidence = collect(stage)
        violations = [*stage.problems, *judge(evidence), *find_idle_daemons(evidence)]
    show(violations, evidence, stage.told, stage.began, say)
    for line in summarize(stage, evidence, took):
        say(line)
    say(f"Violations: {len(violations)}")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
