"""Conversion in a rollout, and a migration: ``python -m tools.soak.versions``."""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path

from tests.kit.operators import CRDS, Kind, connect
from tests.kit.versioned_shops import GROUP, NAME, open_shops
from tools.long_runs import Say, build_parser, prove
from tools.soak.rollout.__main__ import NAMESPACES
from tools.soak.rollout.story import Times, play, set_up
from tools.soak.versions.story import CONVERTING, Load, Tally, fill, migrate
from webop.testing import LocalCluster


def main() -> int:
    """Run the command line; return 0 if no request failed or was wrong."""
    parser = build_parser("versions", __doc__, Times)
    parser.add_argument(
        "--objects", type=int, default=5000, help="objects to migrate (%(default)d)"
    )
    chosen = vars(parser.parse_args())
    objects = chosen.pop("objects")
    # It is ignored in background jobs of shells, and the migration would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    times = Times(**chosen)
    return prove("versions", times, partial(_run, times, objects))


async def _run(times: Times, objects: int, cluster: LocalCluster, folder: Path, say: Say) -> int:
    kind = Kind(GROUP, "shops", "Shop")
    async with connect(cluster) as client:
        await client.create(NAMESPACES, None, {"metadata": {"name": "shops"}})
        async with (
            open_shops(client, "shops") as shops,
            set_up(cluster, "shops", kind, folder, times, handlers=CONVERTING) as stage,
        ):
            await shops.wait_converted()
            say(f"Three replicas ready on Kubernetes {cluster.version}.")
            load = Load(stage, times.rate)
            tally = await play(stage, load, times, say) if times.rate else Tally()
            for text in (*tally.failed[:10], *tally.wrong[:10]):
                say(text)
            say(f"{tally}")
            say(f"{stage.balancer.refused} connections found no ready replica")
            await fill(shops, objects)
            say(f"{objects} objects are stored as v1, and v2 is the storage version")
            last = await migrate(cluster, folder, [30.0, 60.0], say)
            stored = (await client.get(CRDS, None, NAME))["status"]["storedVersions"]
            say(f"storedVersions: {stored}")
    is_migrated = stored == ["v2"] and "are stored as v2" in last
    return int(bool(tally.failed or tally.wrong or not is_migrated))


if __name__ == "__main__":
    sys.exit(main())
