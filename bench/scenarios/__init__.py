"""All scenarios, in the order of the report. To add one, add a file and its name here."""

from __future__ import annotations

from bench.scenarios import (
    children,
    create,
    daemon,
    first,
    idle,
    imports,
    latency,
    plan,
    profile,
    restart,
    review,
    scale,
    selectors,
    shards,
    timer,
)

SCENARIOS = {
    module.SCENARIO.name: module.SCENARIO
    for module in (
        create,
        restart,
        children,
        timer,
        daemon,
        review,
        imports,
        latency,
        idle,
        first,
        scale,
        plan,
        shards,
        selectors,
        profile,
    )
}
