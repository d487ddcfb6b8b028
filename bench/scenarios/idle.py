"""The memory of an operator with one handler and no objects."""

from __future__ import annotations

from bench.model import Bench, Sample, Scenario, Side
from bench.operators import run_operator


async def _measure(bench: Bench, side: Side) -> Sample:
    with run_operator(bench, side, bench.empties.plural) as operator:
        await operator.settle()
        rss = operator.read_memory()
        await bench.empties.prove()
    return {"rss_mb": rss}


SCENARIO = Scenario(
    name="idle",
    summary="one handler, no objects",
    measure=_measure,
    sides=("webop", "kopf", "go"),
)
