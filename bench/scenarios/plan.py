"""The cost of a plan: the decisions for objects that were never handled; then with calls."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

from bench.model import Bench, BenchError, Sample, Scenario, Side


async def _prepare(bench: Bench) -> None:
    await bench.things.clear()
    await bench.things.fill(bench.objects)


async def _measure(bench: Bench, side: Side) -> Sample:
    writes = await bench.things.count_writes()
    decided = _plan(bench, side, "")
    called = _plan(bench, side, "children", "--call")
    if await bench.things.count_writes() != writes:
        raise BenchError("A plan has written.")
    return {
        **{f"decisions_{name}": value for name, value in decided.items()},
        **{f"calls_{name}": value for name, value in called.items()},
    }


def _plan(bench: Bench, side: Side, extra: str, *options: str) -> Sample:
    """Return the time of one plan; no other child may end at the same time."""
    variables = {
        "SIDE": side.name,
        "PLURAL": bench.things.plural,
        "WORKDIR": str(bench.workdir),
        "EXTRA": extra,
    }
    more = {f"BENCH_{name}": value for name, value in variables.items()}
    argv = side.python, "-m", "webop", "plan", "-A", *options, "-o", "json", side.argv[-1]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        argv,
        env={**os.environ, "KUBECONFIG": str(bench.kubeconfig), **more},
        cwd=bench.workdir,
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        check=False,
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {one["title"]: one for one in json.loads(done.stdout)["sections"]}
    (section,) = (one for title, one in found.items() if bench.things.plural in title)
    if done.returncode != 2 or section["changed"] != bench.objects:
        raise BenchError(f"The plan has {section['changed']} changed objects.")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_ms_per_object": cpu * 1e3 / bench.objects}


SCENARIO = Scenario(
    name="plan",
    summary="webop plan for objects that were never handled; with --call, two children each",
    measure=_measure,
    prepare=_prepare,
    sizes=(5000,),
    repeat=1,
    timeout=600,
    sides=("webop",),
    by_name_only=True,
)
