"""``python -m tools.soak.shards``: faults of replicas that share the work, with real times."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.kit.operators import Kind, connect
from tools.long_runs import Say, add_keep, build_parser, make_kept, prove
from tools.soak.chaos.invariants import find_idle_daemons, judge
from tools.soak.chaos.report import show
from tools.soak.shards.moves import (
    build_table,
    find_repeated_creations,
    find_strangers,
    list_moves,
)
from tools.soak.shards.story import Stage, Times, collect, play, set_up, summarize
from webop.testing import LocalCluster

SELECTING = "--feature-gates=ShardedListAndWatch=true"  # alpha in Kubernetes 1.36 (KEP-5866)


def main() -> int:
    """Run the command line; return 0 if no rule was violated."""
    parser = build_parser("shards", __doc__, Times)
    text = "let the API server send each replica only its own objects"
    parser.add_argument("--selecting", action="store_true", help=text)
    add_keep(parser)
    chosen = vars(parser.parse_args())
    keep, flags = chosen.pop("keep"), [SELECTING] if chosen.pop("selecting") else []
    times = Times(**chosen)
    if min(times.minutes, times.objects, times.rate) <= 0:
        parser.error("--minutes, --objects and --rate must be above 0")
    make_kept(parser, keep)
    return prove("shards", times, partial(_run, times), keep, flags)


async def _run(times: Times, cluster: LocalCluster, folder: Path, say: Say) -> int:
    kind = Kind("shards.webop.dev", "crates", "Crate")
    async with connect(cluster) as client:
        await kind.define(client)
    async with set_up(cluster, "default", kind, folder, times) as stage:
        say(f"Three replicas share the work on Kubernetes {cluster.version}.")
        return int(bool(conclude(stage, await play(stage, say), say)))


def conclude(stage: Stage, took: float, say: Say) -> int:
    """Check all rules, and print the results; return the number of violations."""
    evidence, gains = collect(stage)
    violations = [
        *stage.problems,
        *judge(evidence),
        *find_idle_daemons(evidence),
        *find_strangers(evidence.calls, gains),
        *find_repeated_creations(evidence.calls, stage.events),
    ]
    show(violations, evidence, stage.told, stage.began, say)
    for line in [
        *summarize(stage, evidence, took),
        *build_table(list_moves(evidence.calls, stage.events)),
    ]:
        say(line)
    say(f"Violations: {len(violations)}")
    return len(violations)


if __name__ == "__main__":
    sys.exit(main())
