"""The cost of a call of a timer: one async timer per object, once a second."""

from __future__ import annotations

from bench.model import Bench, Sample, Scenario, Side
from bench.operators import run_operator

_WARMUP = 3  # calls of each timer
_CALLS = 15  # calls of each timer that are measured


async def _measure(bench: Bench, side: Side) -> Sample:
    things = bench.things
    await things.clear()
    with run_operator(bench, side, things.plural, extra="timer") as operator:
        await things.load(bench.objects)
        before = await operator.wait_for_ticks(_WARMUP * bench.objects)
        cpu = operator.read_cpu()
        after = await operator.wait_for_ticks(before + _CALLS * bench.objects)
        spent = operator.read_cpu() - cpu
        memory = operator.read_memory()
    await things.clear()
    return {"cpu_us_per_tick": spent * 1e3 / (after - before), "rss_mb": memory}


SCENARIO = Scenario(
    name="timer",
    summary="one timer per object, called once a second",
    measure=_measure,
    sizes=(2000,),
)
