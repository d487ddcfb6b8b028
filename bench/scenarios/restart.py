"""The cost of a restart with handled objects, and with none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import run_operator

if TYPE_CHECKING:
    from bench.api import Collection


async def _prepare(bench: Bench) -> None:
    """Let the first side handle all objects; all sides accept its annotations."""
    await bench.things.clear()
    with run_operator(bench, bench.sides[0], bench.things.plural, bench.more):
        await bench.things.load(bench.objects)


async def _measure(bench: Bench, side: Side) -> Sample:
    bare, _ = await _start(bench, side, bench.empties)
    cpu, peak = await _start(bench, side, bench.things)
    return {
        "cpu_ms_per_object": cpu / bench.objects,
        "cpu_ms_start_without_objects": bare,
        "rss_peak_mb": peak,
    }


async def _start(bench: Bench, side: Side, things: Collection) -> tuple[float, float]:
    """Return CPU in ms and peak RSS in MB from the start of the process until it is idle."""
    before = await things.count_writes()
    with run_operator(bench, side, things.plural, bench.more) as operator:
        await operator.settle(6)
        cpu, peak = operator.read_cpu(), operator.read_memory("VmHWM")
        writes = await things.count_writes() - before
        await things.prove()
    calls = operator.read_calls()
    if writes or calls != 1:
        raise BenchError(
            f"Expected no writes and one call for a canary, got {writes:g} writes, {calls} calls"
        )
    return cpu, peak


SCENARIO = Scenario(
    name="restart",
    summary="from the start of the process to idle, with objects that are handled",
    measure=_measure,
    prepare=_prepare,
    sizes=(5000,),
    sides=("webop", "kopf", "go"),
)
