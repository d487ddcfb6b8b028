"""The cost of the import, in a new interpreter each time."""

from __future__ import annotations

import resource
import subprocess

from bench.model import Bench, Sample, Scenario, Side


async def _measure(_bench: Bench, side: Side) -> Sample:
    _run(side, f"import {side.name}")  # compile first
    bare, full = _run(side, "pass"), _run(side, f"import {side.name}")
    return {"cpu_ms": full, "cpu_ms_above_bare_python": full - bare}


def _run(side: Side, code: str) -> float:
    """Return user and system time in ms; no other child may end at the same time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([side.python, "-c", code], check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


SCENARIO = Scenario(
    name="import",
    summary="python -c 'import …'",
    measure=_measure,
    repeat=7,
)
