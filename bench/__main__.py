"""The command ``python -m bench``: takes the samples in turns, side by side, and reports."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import sides
from bench.api import Collection, open_session
from bench.model import Bench, BenchError, Side
from bench.report import build_table
from bench.scenarios import SCENARIOS
from bench.turns import say, take_turns
from webop.errors import WebopError
from webop.testing import LocalCluster

_NOTE = """Ratios are of medians, to the side named first: above 1 is more than that side takes.
Machines are noisy, CPU time too: quote the ratios of one run, not figures of two runs."""
_EPILOG = f"""scenarios:
{chr(10).join(f"  {item.name:<9}{item.summary}" for item in SCENARIOS.values())}

sides, which take turns (A B A B):
  webop    the package of this Python, or of the one that {sides.OWN_VARIABLE} names
  kopf     {sides.PEER} from PyPI, in a virtual environment that is made when absent, under
           WEBOP_CACHE or the platform's cache folder; {sides.PEER_VARIABLE}
           names another Python that has it

examples:
  python -m bench                                  everything, some thirty minutes
  python -m bench create latency --sides webop,kopf --repeat 5
  python -m bench restart --objects 10000 --json restart.json
"""


def main() -> int:
    """Run the command line; return 0, or 1 when a side failed, or 130 after Ctrl-C."""
    options = _parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chosen = tuple(sides.build_side(name) for name in options.sides.split(","))
        say("starting a local API server")
        with tempfile.TemporaryDirectory(prefix="webop-bench-") as workdir, LocalCluster() as local:
            document = asyncio.run(_run(options, chosen, Path(workdir), local))
    except (BenchError, WebopError) as exc:
        say(str(exc))
        return 1
    except KeyboardInterrupt:
        say("interrupted; everything is stopped")
        return 130
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return int(any(item["errors"] for item in document["scenarios"].values()))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compare webop with kopf on one real API server: CPU, memory, latency.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help="what to measure (default: everything)")
    add("--sides", default="webop,kopf", metavar="A,B", help="who takes part (default: webop,kopf)")
    add("--repeat", type=int, metavar="N", help="samples per side (default: 3; import: 7)")
    add("--objects", type=int, metavar="N", help="default: 2000; restart 5000, latency 200")
    add("--status", action="store_true", help="give the resources the status subresource")
    add("--timeout", type=float, default=180, metavar="S", help="for one sample (default: 180 s)")
    add("--json", type=Path, metavar="FILE", help="write all samples and the summary there, too")
    options = parser.parse_args()
    for known, given in ((SCENARIOS, options.scenarios), (sides.NAMES, options.sides.split(","))):
        if unknown := set(given) - {*known}:
            parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    return options


async def _run(
    options: argparse.Namespace, chosen: tuple[Side, ...], workdir: Path, local: LocalCluster
) -> dict[str, Any]:
    """Print a table for each scenario as soon as it is complete; return all as one document."""
    facts = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "server": local.version,
        "python": platform.python_version(),
        "webop": importlib.metadata.version("webop"),
        "kopf": sides.PEER,
        "status subresource": options.status,
    }
    print(", ".join(f"{key} {value}" for key, value in facts.items()), _NOTE, sep="\n", flush=True)
    document: dict[str, Any] = {"facts": facts, "scenarios": {}}
    async with open_session(local.server, local.token, local.ca_data) as session:
        things, empties = Collection(session, "things"), Collection(session, "empties")
        for collection in (things, empties):
            await collection.define(has_status=options.status)
        for name in options.scenarios or SCENARIOS:
            scenario = SCENARIOS[name]
            objects = scenario.objects and (options.objects or scenario.objects)
            bench = Bench(workdir, Path(local.kubeconfig), chosen, things, empties, objects)
            repeat = options.repeat or scenario.repeat
            result = await take_turns(scenario, bench, repeat, options.timeout)
            print(build_table(f"{name}: {scenario.summary}", result), flush=True)
            document["scenarios"][name] = result
    return document


if __name__ == "__main__":
    sys.exit(main())
