"""``python -m tools.soak.leadership``: faults of the leader, with the times of Kubernetes."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.kit.operators import Kind, connect
from tools.long_runs import Say, build_parser, prove
from tools.soak.leadership.story import HEADING, Times, find_repetitions, play, set_up
from webop.testing import LocalCluster


def main() -> int:
    """Run the command line; return 0 if two replicas never acted at once, and no review failed."""
    times = Times(**vars(build_parser("leadership", __doc__, Times).parse_args()))
    return prove("lease", times, partial(_run, times))


async def _run(times: Times, cluster: LocalCluster, folder: Path, say: Say) -> int:
    kind = Kind("leadership.webop.dev", "wards", "Ward")
    async with connect(cluster) as client:
        await kind.define(client)
    async with set_up(cluster, "default", kind, folder, times) as stage:
        say(f"Three replicas ready on Kubernetes {cluster.version}.")
        say(HEADING)
        outcomes = await play(stage, say)
        steps = stage.list_steps()
    reviews = stage.reviews
    say(
        f"{len(steps)} steps; {reviews.answered} reviews succeeded, {len(reviews.failed)} failed, "
        f"{reviews.excused} were sent to stopped or killed processes; "
        f"slowest {reviews.slowest:.2f} s"
    )
    problems = [text for outcome in outcomes for text in outcome.overlaps]
    problems += [*reviews.failed, *find_repetitions(steps)]
    for text in problems[:20]:
        say(text)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
