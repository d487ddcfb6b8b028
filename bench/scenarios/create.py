"""The cost of each created object: one handler that returns nothing."""

from __future__ import annotations

from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import run_operator


async def _measure(bench: Bench, side: Side) -> Sample:
    things = bench.things
    await things.clear()
    with run_operator(bench, side, things.plural, bench.more) as operator:
        await operator.settle()
        await things.prove()
        await operator.settle()
        idle, cpu, writes = operator.read_memory(), operator.read_cpu(), await things.count_writes()
        await things.load(bench.objects)
        # The watch events of the last writes, and delayed work, also count.
        await operator.settle(6)
        sample = {
            "cpu_ms_per_object": (operator.read_cpu() - cpu) / bench.objects,
            "writes_per_object": (await things.count_writes() - writes) / bench.objects,
            "rss_idle_mb": idle,
            "rss_end_mb": operator.read_memory(),
        }
    calls = operator.read_calls()
    if calls != bench.objects + 1:
        raise BenchError(
            f"The handler was called {calls} times for {bench.objects} objects and a canary"
        )
    return sample


SCENARIO = Scenario(
    name="create",
    summary="objects created as fast as the server takes them, each handled once",
    measure=_measure,
    sizes=(2000,),
    sides=("webop", "kopf", "go"),
)
