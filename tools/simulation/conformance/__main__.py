"""``python -m tools.simulation.conformance``: compare with a real API server."""

from __future__ import annotations

import argparse
import contextlib
import sys

from webop.controlplane.cluster import LocalCluster
from webop.errors import ClusterError

from .comparison import Conformance
from .strictness import CLASSES, compare


def main() -> int:
    """Run a comparison; 1 if there are differences, or false greens."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulation.conformance", description=__doc__
    )
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", help="the name of a running cluster; else one is started")
    parser.add_argument("--hooks", action="store_true", help="with admission webhooks")
    text = "does the fake client accept too much? Print a table"
    parser.add_argument("--strict", action="store_true", help=text)
    text = "print differences of --strict of a class"
    parser.add_argument("--show", choices=CLASSES, action="append", default=[], help=text)
    options = parser.parse_args()
    if options.requests <= 0:
        parser.error(f"--requests must be above 0, got {options.requests}")
    try:
        cluster = LocalCluster.attach(options.cluster) if options.cluster else LocalCluster()
    except ClusterError as error:
        parser.error(str(error))
    with contextlib.ExitStack() as stack:
        if not options.cluster:
            stack.enter_context(cluster)
        return _compare_mistakes(cluster, options) if options.strict else _compare(cluster, options)


def _compare(cluster: LocalCluster, options: argparse.Namespace) -> int:
    with contextlib.closing(
        Conformance(cluster, options.seed, with_hooks=options.hooks)
    ) as conformance:
        differences = conformance.run(options.requests)
    for difference in differences:
        print(difference)
    print(
        f"{conformance.requests} requests, {conformance.watches} of them watches with "
        f"{conformance.events} events: {len(differences)} differences"
    )
    return bool(differences)


def _compare_mistakes(cluster: LocalCluster, options: argparse.Namespace) -> int:
    outcome = compare(cluster, options.seed, options.requests)
    for name, story in outcome.stories:
        if name in options.show:
            print(f"{name}: {story}")
    print(outcome.build_table())
    return any(name == "false green" for _, name in outcome.counts)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("Interrupted.")
        sys.exit(130)
