"""Take the samples of a scenario, the sides in turns, within bounded time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

from bench.model import Bench, BenchError, Sample, Scenario
from bench.operators import LOG
from bench.report import build_summary

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")
_FAILURES = (BenchError, aiohttp.ClientError, OSError, subprocess.SubprocessError)
_LOG_LINES = 12


async def take_turns(
    scenario: Scenario, bench: Bench, repeat: int, timeout: float
) -> dict[str, Any]:
    """Return samples, summary and errors by side; a side that failed takes no further turns."""
    samples: dict[str, list[Sample]] = {side.name: [] for side in bench.sides}
    if not samples:
        say(f"{scenario.name}: skipped, because it supports only {', '.join(scenario.sides)}")
    errors: dict[str, str] = {}
    if scenario.prepare and samples:
        say(f"{scenario.name}: preparing")
        try:
            await _bound(scenario.prepare(bench), bench, timeout)
        except BenchError as exc:
            errors = dict.fromkeys(samples, f"in the preparation: {exc}")
    for turn in range(repeat):
        for side in (side for side in bench.sides if side.name not in errors):
            say(f"{scenario.name}: {side.name}, {turn + 1} of {repeat}")
            try:
                sample = await _bound(scenario.measure(bench, side), bench, timeout)
            except BenchError as exc:
                errors[side.name] = str(exc)
                say("  failed")
            else:
                samples[side.name].append(sample)
                say("  " + ", ".join(f"{key} {value:.4g}" for key, value in sample.items()))
    summary = build_summary(samples)
    return {"objects": bench.objects, "samples": samples, "summary": summary, "errors": errors}


async def _bound(work: Awaitable[T], bench: Bench, timeout: float) -> T:
    """Await the work; turn all failures into one error, with the end of the log."""
    log = bench.workdir / LOG
    log.unlink(missing_ok=True)
    try:
        async with asyncio.timeout(timeout):
            return await work
    except* _FAILURES as group:
        reasons = [str(exc) or f"not finished in {timeout:g} s" for exc in group.exceptions]
    tail = log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log.exists() else []
    raise BenchError("\n    ".join([*reasons, *tail]))


def say(text: str) -> None:
    """Print progress to the standard error, separate from the tables."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
