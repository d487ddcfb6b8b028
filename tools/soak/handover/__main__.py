"""Faults of replicas that share the work, or of their leader: ``python -m tools.soak.handover``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tools.long_runs import Say, build_parser, prove, take_options
from tools.soak.handover.moves import (
    build_table,
    find_repeated_creations,
    find_strangers,
    list_moves,
)
from tools.soak.handover.story import HandoverStage, Times, collect, play, set_up
from webop.testing import LocalCluster

SELECTING = "--feature-gates=ShardedListAndWatch=true"  # alpha in Kubernetes 1.36 (KEP-5866)


def main() -> int:
    """Run the command line; return 0 if no rule was violated."""
    parser = build_parser("handover", __doc__, Times)
    what = "how the replicas agree: all work on their shards, or one of them leads"
    parser.add_argument("way", choices=("shards", "lease"), help=what)
    text = "let the API server send each replica only its own objects"
    parser.add_argument("--selecting", action="store_true", help=text)
    times, keep, more = take_options(parser, Times)
    flags = [SELECTING] if more.selecting else []
    return prove(more.way, times, partial(_run, times, f"--{more.way}"), keep, flags)


async def _run(times: Times, way: str, cluster: LocalCluster, folder: Path, say: Say) -> int:
    async with set_up(cluster, "default", folder, times, way) as stage:
        say(f"{times.replicas} replicas with {way} are ready on Kubernetes {cluster.version}.")
        await play(stage, say)
        return int(bool(conclude(stage, say)))


def conclude(stage: HandoverStage, say: Say) -> int:
    """Check all rules, and print the results; return the number of violations."""
    evidence, gains, losses = collect(stage)
    more = [
        *find_strangers(evidence.calls, gains),
        *find_repeated_creations(evidence.calls, [*stage.events, *losses]),
    ]
    count = stage.conclude(evidence, more, {}, say)
    for line in build_table(list_moves(evidence.calls, stage.events)):
        say(line)
    return count


if __name__ == "__main__":
    sys.exit(main())
