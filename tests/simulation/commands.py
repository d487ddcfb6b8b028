"""Runs many histories, or one again: what ``make simulate`` does."""

from __future__ import annotations

import argparse
import concurrent.futures as cf
import itertools
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("kept")

_REPORT = 5.0  # seconds between lines of progress


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="make simulate ARGS=...",
        description="Run random histories of operators in a simulated cluster.",
    )
    parser.add_argument("--seed", type=int, help="replay this one, with its story")
    parser.add_argument("--plan", type=Path, help="replay a history that was written down")
    parser.add_argument("--logs", action="store_true", help="with the log of the operators")
    parser.add_argument("--first", type=int, help="the first seed; by default, by the clock")
    parser.add_argument("--count", type=int, help="how many histories")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, without a count")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--mutant",
        default=os.environ.get("WEBOP_MUTANT"),
        help="put a mended bug back (tests/simulation/mutants.toml)",
    )
    parser.add_argument(
        "--mutants", action="store_true", help="how many histories find each of the mended bugs"
    )
    parser.add_argument(
        "--kept", action="store_true", help="run the histories that were kept as tests"
    )
    parser.add_argument("--theme", help="only histories of this one (tests/simulation/themes.py)")
    parser.add_argument("--keep-going", action="store_true", help="after a violation")
    parser.add_argument("--shrink", action="store_true", help="shorten the history of --seed")
    parser.add_argument("--no-shrink", action="store_true", help="print the history as it is")
    options = parser.parse_args()
    if options.seed is not None or options.plan is not None:
        _prepare(options.mutant)
        return _replay(options, shrinks=options.shrink)
    if options.kept:
        _prepare(options.mutant)
        return _run_kept()
    return _hunt_mutants(options) if options.mutants else _run_many(options)


def _prepare(mutant: str | None) -> None:
    """Put a bug back, if one is wanted, before anything of webop is imported."""
    logging.disable()
    if mutant:
        from tests.simulation import mutants  # noqa: PLC0415

        mutants.apply(mutant)


def _run_seed(seed: int, theme: str | None) -> tuple[int, Any]:
    from tests.simulation.plans import draw_plan  # noqa: PLC0415
    from tests.simulation.world import run  # noqa: PLC0415

    verdict = run(draw_plan(seed, theme))
    verdict.story.clear()
    return seed, verdict


def _run_many(options: argparse.Namespace) -> int:
    began = time.monotonic()
    first = int(time.time()) * 1000 if options.first is None else options.first
    seeds: Iterator[int] = itertools.count(first)
    if options.count is not None:
        seeds = itertools.islice(seeds, options.count)
    done = calls = requests = 0
    bad: list[int] = []
    next_report = began + _REPORT
    for seed, verdict in _work(seeds, options, began):
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
    if bad and not options.no_shrink:
        print(f"Shrinking seed {bad[0]} ...", flush=True)
        _prepare(options.mutant)
        return _replay(argparse.Namespace(**{**vars(options), "seed": bad[0]}), shrinks=True)
    return 1 if bad else 0


def _hunt_mutants(options: argparse.Namespace) -> int:
    """Tell for each bug that is put back how many histories find it."""
    from tests.simulation import mutants  # noqa: PLC0415

    first, missed = options.first or 0, []
    for name in mutants.MUTANTS:
        chosen = argparse.Namespace(**{**vars(options), "mutant": name})
        seeds = itertools.islice(itertools.count(first), options.count or 2000)
        found = min(
            itertools.islice(
                ((seed, v.violations[0]) for seed, v in _work(seeds, chosen, 0) if v.violations), 1
            ),
            default=None,
        )
        if found is None:
            missed.append(name)
            print(f"{name:24} not found", flush=True)
        else:
            print(f"{name:24} {found[0] - first + 1:5}  {found[1]:.90}", flush=True)
    print(f"{len(mutants.MUTANTS) - len(missed)} of {len(mutants.MUTANTS)} were found")
    return 1 if missed else 0


def _run_kept() -> int:
    """Run what was kept; print what goes wrong again."""
    from tests.simulation import plans  # noqa: PLC0415
    from tests.simulation.world import run  # noqa: PLC0415

    _prepare(None)
    bad = 0
    for path in sorted(KEPT.glob("*.json")):
        verdict = run(plans.load(json.loads(path.read_text())))
        bad += bool(verdict.violations)
        print(f"{path.stem}: {verdict.violations[0] if verdict.violations else 'well'}")
    return 1 if bad else 0


def _work(
    seeds: Iterator[int], options: argparse.Namespace, began: float
) -> Iterator[tuple[int, Any]]:
    """Run histories in other processes until there are no more seeds, or the time is over."""
    context = multiprocessing.get_context("spawn")
    with cf.ProcessPoolExecutor(options.jobs, context, _prepare, (options.mutant,)) as pool:
        running: set[cf.Future[tuple[int, Any]]] = set()
        try:
            while True:
                if options.count is None and began and time.monotonic() - began > options.seconds:
                    seeds = iter(())
                new = itertools.islice(seeds, 4 * options.jobs - len(running))
                running |= {pool.submit(_run_seed, seed, options.theme) for seed in new}
                if not running:
                    return
                done, running = cf.wait(running, return_when=cf.FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(cancel_futures=True)


def _replay(options: argparse.Namespace, *, shrinks: bool = False) -> int:
    from tests.simulation import plans  # noqa: PLC0415
    from tests.simulation.shrinking import shrink  # noqa: PLC0415
    from tests.simulation.world import run  # noqa: PLC0415

    if options.plan is not None:
        plan = plans.load(json.loads(options.plan.read_text()))
    else:
        plan = plans.draw_plan(options.seed, options.theme)
    if shrinks:
        plan = shrink(plan)
        path = Path(f"history-{options.seed}.json")
        path.write_text(plans.dump(plan))
        print(f"Written to {path}; replay it with --plan {path} [--logs].")
    if options.logs:
        logging.disable(logging.NOTSET)
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s")
    verdict = run(plan)
    print(plans.describe(plan))
    print("\n".join(line for line in verdict.story if "/leases/" not in line))
    print(f"digest {verdict.digest}, {verdict.seconds:.0f} virtual seconds")
    print("\n".join(f"VIOLATION: {problem}" for problem in verdict.violations) or "All is well.")
    return 1 if verdict.violations else 0
