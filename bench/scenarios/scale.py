"""Restarts with more and more handled objects, while one of them is changed each second."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time

from bench.api import Collection, build_names
from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import Operator, run_operator

_STRIDE = 7919  # a prime, so that the changed objects are spread over the list


async def _prepare(bench: Bench) -> None:
    """Create the objects with the annotation of a handling; real handling would take too long."""
    with run_operator(bench, bench.sides[0], bench.empties.plural):
        handled = await bench.empties.make_annotation()
    await bench.empties.clear()
    await bench.things.clear()
    await bench.things.fill(bench.objects, handled)


async def _measure(bench: Bench, side: Side) -> Sample:
    began, sent = time.monotonic(), dict[int, float]()
    with run_operator(bench, side, bench.things.plural, extra="update") as operator:
        async with asyncio.TaskGroup() as group:
            changing = group.create_task(_change(operator, bench.things, bench.objects, sent))
            idle = await operator.settle(6)
            changing.cancel()
        await operator.settle()
        cpu, peak = operator.read_cpu(), operator.read_memory("VmHWM")
    lines = (bench.workdir / "latency.txt").read_text().splitlines()
    called = {int(stamp): int(now) for stamp, now in map(str.split, lines)}
    if operator.read_calls() or sent.keys() - called.keys():
        raise BenchError("Objects were handled as new, or changes were not handled.")
    waits = [called[stamp] - stamp for stamp, moment in sent.items() if moment < idle]
    if not waits:
        raise BenchError("The operator was idle before the first change. Use more --objects.")
    return {
        "cpu_ms_per_object": cpu / bench.objects,
        "rss_peak_mb": peak,
        "seconds_to_idle": idle - began,
        "change_to_called_p50_ms": statistics.median(waits) / 1e6,
        "change_to_called_max_ms": max(waits) / 1e6,
    }


async def _change(
    operator: Operator, things: Collection, objects: int, sent: dict[int, float]
) -> None:
    """Change another object each second; put the timestamp and time of each into ``sent``."""
    await operator.wait_started()
    names = build_names(objects)
    for number in itertools.count():
        stamp, moment = time.time_ns(), time.monotonic()
        await things.change(names[number * _STRIDE % objects], {"sent": stamp})
        sent[stamp] = moment
        await asyncio.sleep(1)


SCENARIO = Scenario(
    name="scale",
    summary="restart with handled objects, one of them changed each second",
    measure=_measure,
    prepare=_prepare,
    sizes=(10_000, 30_000, 100_000),
    repeat=1,
    timeout=1800,
    by_name_only=True,
)
