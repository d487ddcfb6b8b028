"""What can be measured, in the order of the report. A new scenario is a file and a name here."""

from __future__ import annotations

from bench.scenarios import (
    create,
    daemon,
    first,
    idle,
    imports,
    latency,
    profile,
    restart,
    review,
    scale,
    timer,
)

SCENARIOS = {
    module.SCENARIO.name: module.SCENARIO
    for module in (
        create,
        restart,
        timer,
        daemon,
        review,
        imports,
        latency,
        idle,
        first,
        scale,
        profile,
    )
}
