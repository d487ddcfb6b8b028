"""The memory of an object with an idle async daemon."""

from __future__ import annotations

from bench.model import Bench, Sample, Scenario, Side
from bench.operators import run_operator


async def _measure(bench: Bench, side: Side) -> Sample:
    things, empties = bench.things, bench.empties
    await things.clear()
    with run_operator(bench, side, empties.plural, extra="daemon") as operator:
        await operator.settle()
        bare = operator.read_memory()
    with run_operator(bench, side, things.plural, extra="daemon"):
        await things.load(bench.objects)
    # Restarted, so that memory for the creation of the objects does not count.
    with run_operator(bench, side, things.plural, extra="daemon") as operator:
        await operator.settle(3)
        full = operator.read_memory()
    await things.clear()
    return {"rss_kb_per_object": (full - bare) * 1e3 / bench.objects, "rss_mb": full}


SCENARIO = Scenario(
    name="daemon",
    summary="one idle async daemon per object, after a restart",
    measure=_measure,
    sizes=(2000,),
)
