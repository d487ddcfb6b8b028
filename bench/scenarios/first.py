"""A first start on objects that were never handled, and a kill -9 when the last one is handled."""

from __future__ import annotations

import time
from collections import Counter

from bench.api import build_names
from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import run_operator


async def _measure(bench: Bench, side: Side) -> Sample:
    return {**await _measure_start(bench, side), **await _measure_kill(bench, side)}


async def _measure_start(bench: Bench, side: Side) -> Sample:
    things = bench.things
    await _refill(bench)
    began = time.monotonic()
    with run_operator(bench, side, things.plural, extra="record:0") as operator:
        await things.wait_handled(build_names(bench.objects))
        seconds = time.monotonic() - began
        await operator.settle(6)
        sample = {
            "seconds_to_all_written": seconds,
            "cpu_ms_per_object": operator.read_cpu() / bench.objects,
            "rss_peak_mb": operator.read_memory("VmHWM"),
            "rss_end_mb": operator.read_memory(),
        }
    if repeated := _count_repeated(bench):
        raise BenchError(f"The handler was called {repeated} times too often, without a kill")
    return sample


async def _measure_kill(bench: Bench, side: Side) -> Sample:
    """Let the operator kill itself in its last call, and start it again."""
    things = bench.things
    await _refill(bench)
    with run_operator(bench, side, things.plural, extra=f"record:{bench.objects}") as operator:
        await operator.wait_killed()
    written = await things.count_handled()
    with run_operator(bench, side, things.plural, extra="record:0") as operator:
        await things.wait_handled(build_names(bench.objects))
        await operator.settle(6)
    return {"written_at_last_call": written, "repeated_after_kill": _count_repeated(bench)}


async def _refill(bench: Bench) -> None:
    await bench.things.clear()
    await bench.things.fill(bench.objects)
    (bench.workdir / "record.txt").unlink(missing_ok=True)


def _count_repeated(bench: Bench) -> int:
    """Return the number of repeated calls.

    Raises:
        BenchError: an object was never handled.
    """
    calls = Counter((bench.workdir / "record.txt").read_text().split())
    if missing := set(build_names(bench.objects)) - calls.keys():
        raise BenchError(f"{len(missing)} objects were never handled")
    return calls.total() - len(calls)


SCENARIO = Scenario(
    name="first",
    summary="a first start on objects that were never handled, and a kill -9 at the last call",
    measure=_measure,
    sizes=(20_000,),
    repeat=1,
    timeout=900,
    sides=("webop", "kopf", "go"),
    by_name_only=True,
)
