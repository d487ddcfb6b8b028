"""The cost of a reconciler that gives each object two ConfigMaps, and of a restart after that."""

from __future__ import annotations

from bench.api import build_names
from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import run_operator

_EXTRA = "children"


async def _measure(bench: Bench, side: Side) -> Sample:
    await bench.things.clear()
    await bench.maps.clear()
    return {**await _create(bench, side), **await _restart(bench, side)}


async def _create(bench: Bench, side: Side) -> Sample:
    things, maps, names = bench.things, bench.maps, build_names(bench.objects)
    with run_operator(bench, side, things.plural, _EXTRA) as operator:
        await operator.settle()
        bare = operator.read_cpu()
        await maps.prove_owned(things)
        await operator.settle()
        cpu, writes = operator.read_cpu(), await _count_writes(bench)
        await things.fill(bench.objects)
        await maps.wait_complete(names)
        # The watch events of the last writes, and delayed work, also count.
        await operator.settle(6)
        spent, memory = operator.read_cpu() - cpu, operator.read_memory()
        writes = await _count_writes(bench) - writes
    return {
        "cpu_ms_start_without_objects": bare,
        "create_cpu_ms_per_parent": spent / bench.objects,
        "create_writes_per_parent": writes / bench.objects,
        "create_calls_per_parent": _count_calls(bench, operator.read_calls()),
        "create_rss_end_mb": memory,
    }


async def _restart(bench: Bench, side: Side) -> Sample:
    """Start again with all objects and children as they should be."""
    writes = await _count_writes(bench)
    with run_operator(bench, side, bench.things.plural, _EXTRA) as operator:
        await operator.settle(6)
        spent, memory = operator.read_cpu(), operator.read_memory()
        writes = await _count_writes(bench) - writes
        await bench.maps.prove_owned(bench.things)
    return {
        "restart_cpu_ms_per_parent": spent / bench.objects,
        "restart_writes_per_parent": writes / bench.objects,
        "restart_calls_per_parent": _count_calls(bench, operator.read_calls()),
        "restart_rss_idle_mb": memory,
    }


async def _count_writes(bench: Bench) -> float:
    return await bench.things.count_writes() + await bench.maps.count_writes()


def _count_calls(bench: Bench, calls: int) -> float:
    """Return the calls per object; one object more was created and deleted."""
    if calls <= bench.objects:
        raise BenchError(f"{calls} calls for {bench.objects} objects and a canary")
    return calls / (bench.objects + 1)


SCENARIO = Scenario(
    name="children",
    summary="a reconciler gives each object two ConfigMaps by server-side apply; a restart",
    measure=_measure,
    sizes=(2000,),
    timeout=900,
    sides=("webop", "go"),
)
