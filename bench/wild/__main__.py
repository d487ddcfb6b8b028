"""The command ``python -m bench.wild``: plays operators on both sides, and prints differences."""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.model import BenchError
from bench.sides import PEER
from bench.turns import say
from bench.wild.compare import explain, find_differences
from bench.wild.model import NAMES, Wild, load
from bench.wild.play import Outcome, Player
from bench.wild.sources import provide_python, provide_sources
from webop.errors import WebopError

_SIDES = ("kopf", "webop")
_HEAD = """| operator | step | objects | differences | Events: kopf, webop | seconds: kopf, webop |
|---|---|---|---|---|---|"""
_EPILOG = f"""operators: {", ".join(NAMES)}

The bench fetches each operator from PyPI, or from GitHub's archive of a fixed commit. It plays
the steps on two new clusters at the same time, with kopf {PEER} and with webop. It prints the
table and the differences as Markdown. The exit code is 1 if there is a difference without an
explanation in the file of the operator.
"""


def main() -> int:
    """Run the command line; return 0, 1 if a side failed or differs, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.wild",
        description="Play public operators under kopf and under webop, and compare the objects.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="default: all")
    parser.add_argument(
        "--sources", type=Path, metavar="FOLDER", help="use checkouts in this folder"
    )
    parser.add_argument(
        "--logs", type=Path, metavar="FOLDER", help="write the operators' logs there"
    )
    options = parser.parse_args()
    if unknown := {*options.operators} - {*NAMES}:
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed, all_differences = False, []
    print(_HEAD, flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="webop-wild-") as made:
            logs = (options.logs or Path(made)).resolve()
            logs.mkdir(parents=True, exist_ok=True)
            for name in options.operators or NAMES:
                wild = load(name)
                try:
                    outcomes = _play(wild, options.sources, logs)
                except (BenchError, WebopError) as exc:
                    say(f"{name}: {exc}")
                    failed = True
                    continue
                for line in _tabulate(wild, *outcomes):
                    print(line, flush=True)
                differences, is_fine = _describe(wild, *outcomes)
                all_differences += differences
                failed |= not is_fine
    except KeyboardInterrupt:
        say("Interrupted. Everything is stopped.")
        return 130
    print("", *all_differences, sep="\n")
    return int(failed)


def _play(wild: Wild, given: Path | None, logs: Path) -> tuple[list[Outcome], list[Outcome]]:
    """Play both sides concurrently, each on its own cluster."""
    python = provide_python(wild)
    sources = provide_sources(wild, given, python)
    say(f"{wild.name}: playing {len(wild.steps)} steps")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        kopf, webop = [
            pool.submit(Player(wild, side, python, sources, logs).play) for side in _SIDES
        ]
    for side, played in zip(_SIDES, (kopf.result(), webop.result()), strict=True):
        names = {name for outcome in played for name in outcome.objects}
        if missing := [text for text in wild.makes if not fnmatch.filter(names, text)]:
            raise BenchError(f"{side} did not create {', '.join(missing)}. Its log is in {logs}.")
    return kopf.result(), webop.result()


def _tabulate(wild: Wild, kopf: list[Outcome], webop: list[Outcome]) -> Iterator[str]:
    """Yield a row for each step."""
    for step, one, other in zip(wild.steps, kopf, webop, strict=True):
        found = len(find_differences(one.objects, other.objects))
        events, seconds = f"{one.events}, {other.events}", f"{one.seconds:.0f}, {other.seconds:.0f}"
        cells = (wild.name, step.step, len(other.objects), found, events, seconds)
        yield f"| {' | '.join(map(str, cells))} |"


def _describe(wild: Wild, kopf: list[Outcome], webop: list[Outcome]) -> tuple[list[str], bool]:
    """Return one line per place that differs, and whether all have explanations."""
    lines: dict[str, str] = {}
    is_fine = True
    for step, one, other in zip(wild.steps, kopf, webop, strict=True):
        for found in find_differences(one.objects, other.objects):
            because = explain(found, wild.explained)
            is_fine &= because is not None
            values = ", ".join(
                f"{side} {json.dumps(value)[:200]}"
                for side, value in zip(_SIDES, found[1:], strict=True)
            )
            line = (
                f"- {wild.name}, {step.step}: `{found.place}`: {values}: {because or 'UNEXPLAINED'}"
            )
            lines.setdefault(found.place, line)
    return list(lines.values()), is_fine


if __name__ == "__main__":
    sys.exit(main())
