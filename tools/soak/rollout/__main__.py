"""Rollouts under load with the times of a real cluster: ``python -m tools.soak.rollout``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.kit.operators import Kind, connect
from tools.long_runs import Say, build_parser, prove
from tools.soak.rollout.replicas import WAYS
from tools.soak.rollout.story import Load, Times, play, play_renaming, set_up
from webop.objects.resources import Resource
from webop.testing import LocalCluster

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


def main() -> int:
    """Run the command line; return 0 if no request failed or went unchecked."""
    parser = build_parser("rollout", __doc__, Times)
    parser.add_argument(
        "--ways", default="managed", help=f"ways to serve: {','.join(WAYS)} (%(default)s)"
    )
    chosen = vars(parser.parse_args())
    ways = chosen.pop("ways").split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"unknown ways: {', '.join(unknown)}. Choose from {', '.join(WAYS)}")
    times = Times(**chosen)
    return prove("rollout", times, partial(_run, times, ways))


async def _run(times: Times, ways: list[str], cluster: LocalCluster, folder: Path, say: Say) -> int:
    kind = Kind("rollout.webop.dev", "parcels", "Parcel")
    async with connect(cluster) as client:
        await kind.define(client)
    failures = 0
    for way in ways:
        failures += await _play_way(way, kind, times, cluster, folder, say)
    return int(bool(failures))


async def _play_way(
    way: str, kind: Kind, times: Times, cluster: LocalCluster, folder: Path, say: Say
) -> int:
    async with connect(cluster) as client:
        await client.create(NAMESPACES, None, {"metadata": {"name": way}})
    async with set_up(cluster, way, kind, folder, times, way=way) as stage:
        say(f"{way}: Three replicas ready on Kubernetes {cluster.version}.")
        tallies = [await play(stage, Load(stage, way, times.rate), times, say)]
        if way == "managed":
            say("Rolling out a version with a renamed handler:")
            tallies.append(await play_renaming(stage, times, say))
    for tally in tallies:
        for text in (*tally.failed[:10], *tally.unchecked[:10]):
            say(text)
        say(f"{way}: {tally}")
    say(f"{way}: {stage.balancer.refused} connections found no ready replica")
    return sum(len(tally.failed) + len(tally.unchecked) for tally in tallies)


if __name__ == "__main__":
    sys.exit(main())
