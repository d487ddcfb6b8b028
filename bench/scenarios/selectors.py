"""One of four replicas with shards, if the API server sends it all objects or only its own."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from contextlib import ExitStack
from pathlib import Path

from bench.api import Collection, build_names, open_session
from bench.model import Bench, Sample, Scenario, Side
from bench.operators import SHARDS_NAME, run_operator, run_replica
from webop.testing import LocalCluster

_GATE = "--feature-gates=ShardedListAndWatch=true"  # alpha in Kubernetes 1.36 (KEP-5866)
_REPLICAS = 4
_RATE = 50.0  # changes a second
_SECONDS = 20.0  # of changes
_STRIDE = 7919  # a prime, so that the changed objects are spread over the list


async def _measure(bench: Bench, side: Side) -> Sample:
    with run_operator(bench, side, bench.empties.plural):
        handled = await bench.empties.make_annotation()
    await bench.empties.clear()
    await bench.things.clear()
    await bench.things.fill(bench.objects, handled)
    alone = await _run_alone(bench, side)
    all_ = await _run_shared(bench, side)
    with LocalCluster(apiserver_flags=[_GATE]) as local:
        async with open_session(local.server, local.token, local.ca_data) as session:
            things = Collection(session, bench.things.plural)
            await things.define(has_status=False)
            await things.fill(bench.objects, handled)
            kubeconfig = Path(local.kubeconfig)
            selecting = dataclasses.replace(bench, kubeconfig=kubeconfig, things=things)
            own = await _run_shared(selecting, side)
    return {
        f"{name}_{figure}": value
        for name, sample in (("alone", alone), ("gets_all", all_), ("gets_own", own))
        for figure, value in sample.items()
    }


async def _run_alone(bench: Bench, side: Side) -> Sample:
    """Measure a restart of an operator that handles all objects, and changes."""
    with run_operator(bench, side, bench.things.plural, "update") as operator:
        await operator.settle(6)
        cpu, peak = operator.read_cpu(), operator.read_memory("VmHWM")
        await _change(bench)
        await operator.settle(6)
        changing, rss = operator.read_cpu() - cpu, operator.read_memory()
    return _build_sample(cpu, peak, changing, rss)


async def _run_shared(bench: Bench, side: Side) -> Sample:
    """Measure the last one of four replicas, which starts when the others share the shards.

    Of the first one, only the changes: its watch is from when it owned all shards.
    """
    with ExitStack() as stack:
        operators = []
        for number in range(_REPLICAS):
            if number == _REPLICAS - 1:
                await bench.things.wait_shared(SHARDS_NAME, _REPLICAS - 1)
            running = run_replica(bench, side, number, bench.things.plural, "update")
            operators.append(stack.enter_context(running))
        first, *_, operator = operators
        await bench.things.wait_shared(SHARDS_NAME, _REPLICAS)
        await operator.settle(6)
        cpu, peak = operator.read_cpu(), operator.read_memory("VmHWM")
        await first.settle(6)
        before = first.read_cpu()
        await _change(bench)
        await operator.settle(6)
        changing, rss = operator.read_cpu() - cpu, operator.read_memory()
        await first.settle(6)
        of_first = {"first_cpu_ms_per_second_of_changes": (first.read_cpu() - before) / _SECONDS}
    return {**_build_sample(cpu, peak, changing, rss), **of_first}


def _build_sample(cpu: float, peak: float, changing: float, rss: float) -> Sample:
    return {
        "restart_cpu_ms": cpu,
        "rss_peak_mb": peak,
        "cpu_ms_per_second_of_changes": changing / _SECONDS,
        "rss_end_mb": rss,
    }


async def _change(bench: Bench) -> None:
    """Change objects at a steady rate."""
    names, began = build_names(bench.objects), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in itertools.count():
            if number >= _RATE * _SECONDS:
                return
            await asyncio.sleep(max(0.0, began + number / _RATE - time.monotonic()))
            name = names[number * _STRIDE % bench.objects]
            group.create_task(bench.things.change(name, {"sent": time.time_ns()}))


SCENARIO = Scenario(
    name="selectors",
    summary="one of four replicas with shards: a restart, then 50 changes a second",
    measure=_measure,
    sizes=(20_000,),
    repeat=1,
    timeout=1800,
    sides=("webop",),
    by_name_only=True,
)
