"""The proof at length: ``python -m tests.leadership`` with the times of Kubernetes' components."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.leadership.story import HEADING, Times, find_repetitions, play, set_up
from tests.operating import Kind, connect
from tests.proving import Say, prove
from webop.testing import LocalCluster


def main() -> int:
    """Run it; return 0 if never two have acted at once, and no review has failed."""
    defaults = Times()
    parser = argparse.ArgumentParser(prog="python -m tests.leadership", description=__doc__)
    add = parser.add_argument
    add("--duration", type=float, default=defaults.duration, help="of the lease (%(default)g s)")
    add("--deadline", type=float, default=defaults.deadline, help="for renewals (%(default)g s)")
    add("--period", type=float, default=defaults.period, help="between attempts (%(default)g s)")
    add("--rate", type=float, default=defaults.rate, help="reviews a second (%(default)g)")
    options = parser.parse_args()
    times = Times(options.duration, options.deadline, options.period, options.rate)
    return prove("lease", times, partial(_run, times))


async def _run(times: Times, cluster: LocalCluster, folder: Path, say: Say) -> int:
    kind = Kind("leadership.webop.dev", "wards", "Ward")
    async with connect(cluster) as client:
        await kind.define(client)
    async with set_up(cluster, "default", kind, folder, times) as stage:
        say(f"three replicas are ready, on Kubernetes {cluster.version}")
        say(HEADING)
        outcomes = await play(stage, say)
        steps = stage.list_steps()
    reviews = stage.reviews
    say(
        f"{len(steps)} steps; {reviews.answered} reviews answered, {len(reviews.failed)} failed, "
        f"{reviews.excused} to processes that were stopped or killed, "
        f"slowest {reviews.slowest:.2f} s"
    )
    problems = [text for outcome in outcomes for text in outcome.overlaps]
    problems += [*reviews.failed, *find_repetitions(steps)]
    for text in problems[:20]:
        say(text)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
