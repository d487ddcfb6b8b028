"""Run many histories, or replay one: the command of ``make simulate``."""

from __future__ import annotations

import argparse
import concurrent.futures as cf
import itertools
import json
import logging
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.simulation import mutating
from tools.simulation.mutating import MUTANTS
from tools.simulation.themes import THEMES

# webop is imported by functions only, after a bug was put back into it.
if TYPE_CHECKING:
    from tools.simulation.plans import Plan

KEPT = Path(__file__).parents[2] / "tests" / "simulation" / "kept"

_REPORT = 5.0  # seconds between lines of progress


def main() -> int:
    """Run the command line; return the exit code."""
    parser = _build_parser()
    options = parser.parse_args()
    try:
        if options.mutant:
            mutating.check(options.mutant)
        _prepare(options.mutant)
        if options.plan is not None:
            return _replay(_read_plan(options.plan), options)
        if options.seed is not None:
            return _replay(_draw(options.seed, options.theme), options)
        return _run_many(options)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("Interrupted.")
        # What the coroutines of the history complain about when they are destroyed is of no use.
        warnings.simplefilter("ignore")
        sys.unraisablehook = lambda _: None
        return 130


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make simulate ARGS=...",
        description="Run random histories of operators in a simulated cluster.",
        epilog="Exit codes: 1: a broken rule; 2: a mistake in the options. See "
        "tools/simulation/README.md.",
    )
    add, add_what = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add_what("--seed", type=int, help="replay the history of this seed and print it")
    add_what("--plan", type=Path, metavar="FILE", help="replay the history in a file")
    about = "put a fixed bug back (tools/simulation/mutants.toml)"
    add("--mutant", choices=MUTANTS, metavar="MUTANT", help=about)
    about = "only histories of this theme (tools/simulation/themes.py)"
    add("--theme", choices=THEMES, metavar="THEME", help=about)
    add("--first", type=int, default=int(time.time()) * 1000, help="the first seed (by the clock)")
    add("--count", type=_parse_number, help="number of histories")
    about = "duration, without --count (%(default)s)"
    add("--seconds", type=_parse_number, default=60, help=about)
    about = "number of processes (all cores)"
    add("--jobs", type=_parse_number, default=os.cpu_count(), help=about)
    add("--keep-going", action="store_true", help="continue after a broken rule")
    add("--logs", action="store_true", help="include the operators' logs in the replay")
    add("--no-shrink", action="store_true", help="do not shorten the first history that fails")
    return parser


def _parse_number(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def _prepare(mutant: str | None) -> None:
    """Put a bug back, if requested, before webop is imported."""
    logging.disable()
    if mutant:
        mutating.apply(mutant)


def _draw(seed: int, theme: str | None) -> Plan:
    from tools.simulation.drawing import draw_plan  # noqa: PLC0415

    return draw_plan(seed, theme)


def _run_seed(seed: int, theme: str | None) -> tuple[int, Any]:
    from tools.simulation.world import run  # noqa: PLC0415

    verdict = run(_draw(seed, theme))
    verdict.story.clear()
    return seed, verdict


def _run_many(options: argparse.Namespace) -> int:
    began = time.monotonic()
    first = options.first
    seeds: Iterator[int] = itertools.count(first)
    if options.count is not None:
        seeds = itertools.islice(seeds, options.count)
    else:
        seeds = itertools.takewhile(lambda _: time.monotonic() - began < options.seconds, seeds)
    done = calls = requests = 0
    bad: list[int] = []
    next_report = began + _REPORT
    for seed, verdict in _work(seeds, options):
        done, calls = done + 1, calls + verdict.calls
        requests += verdict.requests
        if verdict.violations:
            bad.append(seed)
            print(f"seed {seed}: {verdict.violations[0]}", flush=True)
            if not options.keep_going:
                break
        if time.monotonic() > next_report:
            next_report += _REPORT
            rate = done / (time.monotonic() - began)
            print(f"{done} histories, {rate:.1f}/s, {len(bad)} bad", flush=True)
    spent = time.monotonic() - began
    print(
        f"{done} histories from seed {first} in {spent:.1f} s ({done / spent:.1f}/s, "
        f"{options.jobs} processes): {calls} calls, {requests} requests, {len(bad)} bad"
    )
    if not bad:
        return 0
    theme = f" --theme {options.theme}" if options.theme else ""
    _print_command("", f"--seed {bad[0]}{theme}", options)
    if not options.no_shrink:
        _replay(_shorten(_draw(bad[0], options.theme), options), options)
    return 1


def _work(seeds: Iterator[int], options: argparse.Namespace) -> Iterator[tuple[int, Any]]:
    """Run histories in other processes until there are no more seeds."""
    context = multiprocessing.get_context("spawn")
    with cf.ProcessPoolExecutor(options.jobs, context, _prepare, (options.mutant,)) as pool:
        running: set[cf.Future[tuple[int, Any]]] = set()
        try:
            while True:
                new = itertools.islice(seeds, 4 * options.jobs - len(running))
                running |= {pool.submit(_run_seed, seed, options.theme) for seed in new}
                if not running:
                    return
                done, running = cf.wait(running, return_when=cf.FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(cancel_futures=True)


def _replay(plan: Plan, options: argparse.Namespace) -> int:
    from tools.simulation import plans, world  # noqa: PLC0415

    verdict = world.run(plan, has_logs=options.logs)
    print(plans.describe(plan))
    print("\n".join(line for line in verdict.story if "/leases/" not in line))
    print(f"digest {verdict.digest}, {verdict.seconds:.0f} virtual seconds")
    problems = [f"VIOLATION: {problem}" for problem in verdict.violations]
    print("\n".join(problems) or "No rule was broken.")
    return 1 if problems else 0


def _read_plan(path: Path) -> Plan:
    """Read a history."""
    from tools.simulation import plans  # noqa: PLC0415

    try:
        return plans.load(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        problem = str(error)
    except (TypeError, KeyError, AttributeError) as error:
        problem = f"it is no history, or another version has written it: {error!r}"
    raise ValueError(f"Cannot read a history from {path}: {problem}")


def _shorten(plan: Plan, options: argparse.Namespace) -> Plan:
    """Shorten a history that breaks a rule; each shorter one is written into its file at once."""
    from tools.simulation import plans  # noqa: PLC0415
    from tools.simulation.shrinking import shrink  # noqa: PLC0415

    path = Path(f"history-{plan.seed}.json")

    def note(shorter: Plan) -> None:
        path.write_text(plans.dump(shorter))
        sizes = f"{len(shorter.steps)} steps, {len(shorter.handlers)} handlers"
        print(f"The history has {sizes}, {shorter.replicas} replicas.", flush=True)

    print(f"Shortening the history into {path}. This takes a minute or two.", flush=True)
    try:
        return shrink(plan, note)
    finally:  # also after Ctrl-C
        _print_command(f"Wrote {path}. ", f"--plan {path}", options)


def _print_command(text: str, chosen: str, options: argparse.Namespace) -> None:
    mutant = f" --mutant {options.mutant}" if options.mutant else ""
    print(f'{text}Replay it: make simulate ARGS="{chosen}{mutant} [--logs]"', flush=True)
