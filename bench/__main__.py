"""The command ``python -m bench``: takes samples of all sides in turns, and prints tables."""

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
from bench.api import Children, Collection, open_session
from bench.model import MORE, Bench, BenchError, Side
from bench.report import build_table
from bench.scenarios import SCENARIOS
from bench.turns import say, take_turns
from webop.errors import WebopError
from webop.testing import LocalCluster

_NOTE = """Ratios are medians divided by that of the side named first: above 1, the side takes more.
Measurements are noisy, CPU time too: quote the ratios of one run, not figures of two runs."""
_NAMED = ", ".join(item.name for item in SCENARIOS.values() if item.by_name_only)
_EPILOG = f"""scenarios:
{chr(10).join(f"  {item.name:<9}{item.summary}" for item in SCENARIOS.values())}

sides, which take turns (A B A B):
  webop    the package of this Python, or of the Python in {sides.OWN_VARIABLE}
  kopf     {sides.PEER} from PyPI, in a virtual environment under WEBOP_CACHE or the
           platform's cache folder, created if necessary; {sides.PEER_VARIABLE}
           names another Python that has kopf
  go       {sides.get_go_peer()}, built into the same cache if necessary; skipped without Go

examples:
  python -m bench                                  all but {_NAMED}: about fifty minutes
  python -m bench create latency --sides webop,kopf --repeat 5
  python -m bench restart --objects 10000 --json restart.json
  python -m bench restart --sides webop,kopf --more resume
  python -m bench first --objects 2000,6000        one table per number
"""


def main() -> int:
    """Run the command line; return 0, 1 if a side failed, or 130 after Ctrl-C."""
    options = _parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chosen = sides.build_sides(options.sides)
        say("Starting a local API server.")
        with tempfile.TemporaryDirectory(prefix="webop-bench-") as workdir, LocalCluster() as local:
            document = asyncio.run(_run(options, chosen, Path(workdir), local))
    except (BenchError, WebopError) as exc:
        say(str(exc))
        return 1
    except KeyboardInterrupt:
        say("Interrupted. Everything is stopped.")
        return 130
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return int(any(item["errors"] for item in document["scenarios"].values()))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compare webop with kopf and Go on one real API server: CPU, memory, latency.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help=f"default: all but {_NAMED}")
    add("--sides", type=_split, default=[*sides.NAMES], metavar="A,B", help="default: all")
    add("--repeat", type=int, metavar="N", help="samples per side (default: 1 to 7)")
    add("--objects", type=_parse_sizes, metavar="N[,N]", help="default: see bench/README.md")
    add("--more", choices=MORE, default="", help="more handlers, in create and restart")
    add("--status", action="store_true", help="use resources with the status subresource")
    add("--timeout", type=float, metavar="S", help="limit for one sample (default: at least 180 s)")
    add(
        "--json", type=Path, metavar="FILE", help="also write all samples and the summary to a file"
    )
    options = parser.parse_args()
    for known, given in ((SCENARIOS, options.scenarios), (sides.NAMES, options.sides)):
        if unknown := set(given) - {*known}:
            parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    return options


async def _run(
    options: argparse.Namespace, chosen: tuple[Side, ...], workdir: Path, local: LocalCluster
) -> dict[str, Any]:
    """Print the table of each scenario when it is complete; return all results."""
    facts = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "server": local.version,
        "python": platform.python_version(),
        "webop": importlib.metadata.version("webop"),
        "kopf": sides.PEER,
        "go": sides.get_go_peer(),
        "status subresource": options.status,
        "more handlers": options.more or "none",
    }
    print(", ".join(f"{key} {value}" for key, value in facts.items()), _NOTE, sep="\n", flush=True)
    document: dict[str, Any] = {"facts": facts, "scenarios": {}}
    async with open_session(local.server, local.token, local.ca_data) as session:
        things, empties = Collection(session, "things"), Collection(session, "empties")
        for collection in (things, empties):
            await collection.define(has_status=options.status)
        collections = things, empties, Children(session)
        for name in options.scenarios or [
            key for key, item in SCENARIOS.items() if not item.by_name_only
        ]:
            scenario = SCENARIOS[name]
            sizes = options.objects if any(scenario.sizes) else ()
            able = tuple(side for side in chosen if side.name in scenario.sides)
            for objects in sizes or scenario.sizes:
                kubeconfig = Path(local.kubeconfig)
                bench = Bench(workdir, kubeconfig, able, *collections, objects, options.more)
                repeat, timeout = options.repeat or scenario.repeat, options.timeout
                result = await take_turns(scenario, bench, repeat, timeout or scenario.timeout)
                print(build_table(f"{name}: {scenario.summary}", result), flush=True)
                key = f"{name} {objects}" if objects else name
                document["scenarios"][key] = result
    return document


def _split(text: str) -> list[str]:
    return text.split(",")


def _parse_sizes(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
