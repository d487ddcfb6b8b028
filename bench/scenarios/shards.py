"""Two replicas that share the work against one, with a handler that uses the CPU."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import SHARDS_NAME, run_operator, run_replica


async def _measure(bench: Bench, side: Side) -> Sample:
    one, two = await _load(bench, side, 1), await _load(bench, side, 2)
    return {**one, **two, "speedup": one["one_seconds"] / two["two_seconds"]}


async def _load(bench: Bench, side: Side, replicas: int) -> Sample:
    """Create objects; return CPU per object of all replicas, and the seconds until all are handled.

    Each replica has a core. The API server and the load use the same cores: with only as many
    cores as replicas, they take from the replicas what a cluster would not.
    """
    things, cores = bench.things, sorted(os.sched_getaffinity(0))
    await things.clear()
    with ExitStack() as stack:
        operators = []
        for number in range(replicas):
            if replicas == 1:
                running = run_operator(bench, side, things.plural, "busy")
            else:
                running = run_replica(bench, side, number, things.plural, "busy")
            operators.append(stack.enter_context(running))
            operators[-1].pin(cores[number % len(cores)])
        if replicas > 1:
            await things.wait_shared(SHARDS_NAME, replicas)
        await things.prove()
        for operator in operators:
            await operator.settle()
        before, began = sum(each.read_cpu() for each in operators), time.monotonic()
        await things.load(bench.objects)
        seconds = time.monotonic() - began
        for operator in operators:
            await operator.settle(6)
        cpu = sum(each.read_cpu() for each in operators) - before
    calls = [each.read_calls() for each in operators]
    if sum(calls) != bench.objects + 1 or min(calls) < bench.objects / replicas / 2:
        raise BenchError(f"The handlers were called {calls} times for {bench.objects} objects")
    name = "one" if replicas == 1 else "two"
    return {f"{name}_cpu_ms_per_object": cpu / bench.objects, f"{name}_seconds": seconds}


SCENARIO = Scenario(
    name="shards",
    summary="objects whose handler takes 3 ms of CPU, by one replica and by two with shards",
    measure=_measure,
    sizes=(2000,),
    sides=("webop",),
    by_name_only=True,
)
