"""Rollouts under load with the times of a real cluster: ``python -m tools.soak.rollout``."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from pathlib import Path

from tests.kit.operators import Kind, connect
from tests.kit.versioned_shops import GROUP, open_shops
from tools.long_runs import Say, build_parser, prove, take_options
from tools.soak.rollout.conversions import Conversions
from tools.soak.rollout.story import WAYS, Creations, Load, Times, play, play_renaming, set_up
from webop.client.api import Client
from webop.objects.resources import Resource
from webop.testing import LocalCluster

PARCELS = Kind("rollout.webop.dev", "parcels", "Parcel")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


def main() -> int:
    """Run the command line; return 0 if no request failed, was wrong, or went unchecked."""
    parser = build_parser("rollout", __doc__, Times)
    text = f"ways to serve: {','.join(WAYS)} (%(default)s)"
    parser.add_argument("--ways", default="managed", help=text)
    times, keep, more = take_options(parser, Times)
    ways = more.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"unknown ways: {', '.join(unknown)}. Choose from {', '.join(WAYS)}")
    return prove("rollout", times, partial(_run, times, ways), keep)


async def _run(times: Times, ways: list[str], cluster: LocalCluster, folder: Path, say: Say) -> int:
    failures = 0
    async with connect(cluster) as client:
        await PARCELS.define(client)
        for way in ways:
            await client.create(NAMESPACES, None, {"metadata": {"name": way}})
            own = folder / way
            own.mkdir()
            loads = await play_way(way, times, client, cluster, own, say)
            for load in loads:
                for text in load.problems[:20]:
                    say(text)
                say(f"{way}: {load}")
            failures += sum(len(load.problems) for load in loads)
    return int(bool(failures))


async def play_way(
    way: str, times: Times, client: Client, cluster: LocalCluster, folder: Path, say: Say
) -> list[Load]:
    """Replace replicas that serve in one way; return what came of the requests."""
    kind, loads = PARCELS, list[Load]()
    async with contextlib.AsyncExitStack() as stack:
        if way == "converting":
            kind = Kind(GROUP, "shops", "Shop")
            shops = await stack.enter_async_context(open_shops(client, way))
        opened = set_up(cluster, way, kind, folder, times, way)
        stage = await stack.enter_async_context(opened)
        if way == "converting":
            await shops.wait_converted()
            loads.append(Conversions(stage))
        else:
            loads.append(Creations(stage, way))
        say(f"{way}: Replicas are ready on Kubernetes {cluster.version}.")
        await play(stage, loads[0], say)
        if way == "managed":
            say("Rolling out a version with a renamed handler:")
            loads.append(Creations(stage, "renaming"))
            await play_renaming(stage, loads[1], say)
        say(f"{way}: {stage.balancer.refused} connections found no ready replica")
    return loads


if __name__ == "__main__":
    sys.exit(main())
