"""The cost of each stage of a creation, from samples of the operator's stacks."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
from collections import Counter
from pathlib import Path

from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import run_operator

_SAMPLER = str(Path(__file__).parents[1] / "sampler.py")
_OUTSIDE = "event loop, all the rest"
# A sample belongs to the innermost frame whose "module:function" begins with one of these names;
# the longest name wins. A module of webop that is not listed is its own stage.
_STAGES = {
    "webop.cli": _OUTSIDE,
    "webop.embedding": _OUTSIDE,
    "webop.runtime.operator": _OUTSIDE,
    "__main__:sample": "measuring",
    "handlers:": "the user's handler",
    "logging": "logging",
    "webop.logs": "logging",
    "ssl": "TLS",
    "webop.client": "client: requests, responses",
    "webop.client.http.connections": "HTTP",
    "webop.client.http.http1": "HTTP",
    "webop.client.watch_events": "watch: lines read, parsed",
    "webop.client.http.streams": "watch: lines read, parsed",
    "webop.client.watch": "watch: lines read, parsed",
    "webop.handlers.causes": "planning",
    "webop.handlers.filters": "planning",
    "webop.handlers.registry": "planning",
    "webop.reactor.decision": "planning",
    "webop.calls.execution": "handlers called",
    "webop.calls.current_call": "handlers called",
    "webop.objects.storage": "state on the object",
    "webop.objects.body": "bodies, fields, diffs",
    "webop.objects.diffs": "bodies, fields, diffs",
    "webop.objects.fields": "bodies, fields, diffs",
    "webop.objects.patch": "patches built",
    "webop.reactor.queue": "dispatching",
    "webop.reactor.stream": "dispatching",
    "webop.reactor.turn": "dispatching",
    "webop.reactor.workers": "dispatching",
}
# These stages are split: frames like the following receive.
_BOTH_WAYS = {"HTTP", "TLS"}
_READING = re.compile(r"asyncio\.selector_events:_read_ready|.*:data_received$")


async def _measure(bench: Bench, side: Side) -> Sample:
    things, output = bench.things, bench.workdir / "profile.json"
    await things.clear()
    output.unlink(missing_ok=True)
    python, _, *module = side.argv
    module.remove("--quiet")  # the lines about each object are part of the costs
    sampled = dataclasses.replace(side, argv=(python, _SAMPLER, str(output), *module))
    with run_operator(bench, sampled, things.plural) as operator:
        await operator.settle()
        await things.prove()
        await operator.settle()
        operator.send_signal(signal.SIGUSR1)
        before = operator.read_cpu()
        await things.load(bench.objects)
        await operator.settle(6)
        spent = operator.read_cpu() - before
        operator.send_signal(signal.SIGUSR2)
        await operator.wait_for(output)
    return share_among_stages(json.loads(output.read_text()), spent * 1e3 / bench.objects)


def share_among_stages(stacks: list[tuple[list[str], int]], total: float) -> Sample:
    """Divide the microseconds per object among the stages, the most expensive first."""
    stages: Counter[str] = Counter()
    for stack, count in stacks:
        stage = next(filter(None, map(_find_stage, stack)), _OUTSIDE)
        if stage in _BOTH_WAYS:
            stage += ", receiving" if any(map(_READING.match, stack)) else ", sending"
        stages[stage] += count
    if not stages.total():
        raise BenchError("No samples. Use more --objects.")
    shares = {stage: total * count / stages.total() for stage, count in stages.most_common()}
    return {"all, us per object": total, **shares}


def _find_stage(frame: str) -> str:
    fitting = [name for name in _STAGES if frame.startswith(name)]
    if fitting:
        return _STAGES[max(fitting, key=len)]
    return frame.partition(":")[0] if frame.startswith("webop.") else ""


SCENARIO = Scenario(
    name="profile",
    summary="where the CPU time of created objects goes, in microseconds per object",
    measure=_measure,
    sizes=(5000,),
    repeat=1,
    sides=("webop",),
    by_name_only=True,
)
