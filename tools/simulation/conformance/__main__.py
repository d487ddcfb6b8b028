"""``python -m tools.simulation.conformance``: compare with a real API server."""

from __future__ import annotations

import argparse
import sys
import time

from webop.controlplane.cluster import LocalCluster
from webop.errors import ClusterError

from . import Conformance


def main() -> int:
    """Run the comparison; 1 if there are differences."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulation.conformance", description=__doc__
    )
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", help="the name of a running cluster; else one is started")
    parser.add_argument("--hooks", action="store_true", help="with admission webhooks")
    parser.add_argument("--trace", help="print the requests whose path has this in it")
    options = parser.parse_args()
    if options.requests <= 0:
        parser.error(f"--requests must be above 0, got {options.requests}")
    try:
        cluster = LocalCluster.attach(options.cluster) if options.cluster else LocalCluster()
    except ClusterError as error:
        parser.error(str(error))
    if not options.cluster:
        cluster.start()
    try:
        conformance = Conformance(cluster, options.seed, with_hooks=options.hooks)
        conformance.trace = options.trace
        began_at = time.monotonic()
        try:
            differences = conformance.run(options.requests)
        finally:
            conformance.close()
        seconds = time.monotonic() - began_at
    finally:
        if not options.cluster:
            cluster.stop()
    for difference in differences:
        sys.stdout.write(f"{difference}\n")
    sys.stdout.write(
        f"{conformance.requests} requests, {conformance.watches} of them watches with "
        f"{conformance.events} events, in {seconds:.1f} s: {len(differences)} differences\n"
    )
    return bool(differences)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stdout.write("Interrupted.\n")
        sys.exit(130)
