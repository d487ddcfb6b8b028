"""``python -m tools.simulation.conformance``: compare with a real API server."""

from __future__ import annotations

import argparse
import sys

from webop.controlplane.cluster import LocalCluster

from .comparison import compare
from .strictness import compare as compare_strictness


def main() -> int:
    """Run a comparison; 1 if there are differences, or false greens."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulation.conformance", description=__doc__
    )
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    text = "does the fake client accept too much? Print a table"
    parser.add_argument("--strict", action="store_true", help=text)
    options = parser.parse_args()
    with LocalCluster() as cluster:
        if options.strict:
            outcome = compare_strictness(cluster, options.seed, options.requests)
            print(*(f"{name}: {story}" for name, story in outcome.stories), sep="\n")
            print(outcome.build_table())
            return any(name == "false green" for _, name in outcome.counts)
        result = compare(cluster, options.seed, options.requests)
    print(*result.differences, sep="\n")
    print(
        f"{result.requests} requests, {result.watches} of them watches with {result.events} "
        f"events: {len(result.differences)} differences"
    )
    return bool(result.differences)


if __name__ == "__main__":
    sys.exit(main())
