"""The time from sending a creation to the call of the handler, in an idle operator."""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import run_operator

_PAUSE_SECONDS = 0.05


async def _measure(bench: Bench, side: Side) -> Sample:
    things, answered = bench.things, {}
    await things.clear()
    with run_operator(bench, side, things.plural) as operator:
        await operator.settle()
        await things.prove()
        for number in range(bench.objects):
            await asyncio.sleep(_PAUSE_SECONDS)
            sent = time.time_ns()
            await things.create(f"thing-{number}", {"sent": sent})
            answered[sent] = time.time_ns()
        await operator.settle()
    lines = (bench.workdir / "latency.txt").read_text().splitlines()
    called = {int(sent): int(now) for sent, now in map(str.split, lines)}
    if called.keys() != answered.keys():
        raise BenchError(f"The handler was called for {len(called)} of {len(answered)} objects")
    return {
        **_build_sample("sent_to_called", [called[sent] - sent for sent in called]),
        **_build_sample("answered_to_called", [called[sent] - answered[sent] for sent in called]),
    }


def _build_sample(name: str, nanoseconds: list[int]) -> Sample:
    deciles = statistics.quantiles(nanoseconds, n=10)
    return {f"{name}_p50_ms": deciles[4] / 1e6, f"{name}_p90_ms": deciles[8] / 1e6}


SCENARIO = Scenario(
    name="latency",
    summary="one object at a time, from sending its creation to the call of the handler",
    measure=_measure,
    sizes=(200,),
    sides=("webop", "kopf", "go"),
)
