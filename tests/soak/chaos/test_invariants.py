"""The judge of chaos runs finds each kind of violation in evidence, and none in good evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tools.soak.chaos.invariants import (
    Call,
    Evidence,
    Life,
    Process,
    find_growth,
    judge,
    read_lines,
)
from tools.soak.chaos.plan import LINK_FAULTS, PROCESS_FAULTS, SERVER_FAULTS, build_plan


def call(
    handler: str,
    begin: float,
    *,
    who: str = "a",
    version: int = 1,
    last: float = 0.0,
    **fields: Any,
) -> Call:
    """Return a call that takes one second and is done, unless it says otherwise."""
    last = last or begin + 1
    fields = {"outcome": "done", "end": last, **fields}
    return Call(who, handler, "u", version, begin, last=last, **fields)


def is_interrupted(handler: str, begin: float, last: float = 0.0, **fields: Any) -> Call:
    return call(handler, begin, last=last, outcome="", end=math.inf, **fields)


LIFE = Life(
    "u",
    "crate",
    had_finalizer=True,
    recorded={("created", 1): 5.0, ("settled", 1): 5.0, ("all", 1): 5.0},
)
GOOD = [call("created", 1), call("settled", 2), call("tick", 2.5)]


def find(calls: list[Call], life: Life = LIFE, *, has_lease: bool = True) -> list[str]:
    evidence = Evidence(calls, {life.uid: life}, {}, has_lease=has_lease)
    return [violation.rule for violation in judge(evidence)]


AT_ONCE = "two calls at once for one object"
TWICE = "a timer or daemon twice at once for one object"
LEADERS = "two replicas act at once"
AGAIN = "called again after it has finished"
EARLIER = "called again earlier than requested"
STORED = "called again earlier than its record says"
STRANGE = "unexpected content is stored"
UNHANDLED = "its last state is not handled"
UNSTORED = "its last state is not stored as handled"
UNDELETED = "its deletion was not handled"
ENDLESS = "its deletion is not complete"


@pytest.mark.parametrize(
    ("rule", "calls"),
    [
        (AT_ONCE, [call("created", 1, last=3), call("settled", 2)]),
        (AT_ONCE, [is_interrupted("created", 1), call("settled", 9), call("created", 10)]),
        (TWICE, [*GOOD, call("tick", 3)]),
        (TWICE, [*GOOD, is_interrupted("follow", 7), call("follow", 9)]),
        (LEADERS, [*GOOD, call("tick", 7, last=10), call("follow", 9, who="b")]),
        (AGAIN, [*GOOD, call("created", 4)]),
        (AGAIN, [*GOOD, call("created", 6, who="b")]),
        (AGAIN, [*GOOD, call("created", 6, term=1)]),
        (EARLIER, [GOOD[1], call("created", 3, outcome="later", delay=5), call("created", 8)]),
        (STORED, [call("created", 1, who="b", rv=7, wall=1000.0), call("settled", 9)]),
        (UNHANDLED, [call("created", 1), call("settled", 2, outcome="later")]),
        (UNHANDLED, [call("created", 1), is_interrupted("settled", 2)]),
    ],
)  # fmt: skip
def test_each_kind_of_violation_is_found_in_the_calls(rule: str, calls: list[Call]) -> None:
    life = replace(LIFE, delays={7: {"created": 1001.0}})
    assert find(calls, life) == [rule]


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        (STRANGE, {"oddities": ["it has got the result of another one"]}),
        (UNHANDLED, {"version": 2}),
        (UNSTORED, {"recorded": {("created", 1): 5.0}}),
        (UNDELETED, {"marked": 6.0, "gone": 7.0}),
        (ENDLESS, {"marked": 6.0}),
    ],
)
def test_each_kind_of_violation_is_found_in_what_is_stored(
    rule: str, changes: dict[str, Any]
) -> None:
    assert find(GOOD, replace(LIFE, **changes)) == [rule]


STEADY = {"rss": 90e6, "blocks": 5e5, "descriptors": 100.0, "tasks": 120.0, "daemons": 9.0}
COUNT = 300  # samples, one every five seconds


def grow_slowly(by: float) -> Callable[[float], float]:
    return lambda share: 1 + by * share


def grow_at_once(by: float) -> Callable[[float], float]:
    return lambda share: 1 + by * (share > 0.5)


def live(course: Callable[[float], float], name: str, **usual: float) -> Process:
    """Return a process of which something takes a course, over its share of its life."""
    process = Process("a", born=1000.0)
    for number in range(COUNT):
        noise = 1 + 0.004 * math.sin(number * 7)
        value = STEADY[name] * course(number / COUNT) * noise
        moment = process.born + 300 + 5 * number
        process.samples.append((moment, {**STEADY, **usual, name: value}))
    return process


@pytest.mark.parametrize("daemons", [9, 0])
@pytest.mark.parametrize(
    ("name", "grow"),
    [
        *[(name, grow_slowly) for name in ("rss", "blocks", "descriptors", "tasks")],
        *[(name, grow_at_once) for name in ("blocks", "descriptors", "tasks")],
    ],
)
def test_a_growth_by_six_percent_is_one_and_by_four_is_none(
    grow: Callable[[float], Callable[[float], float]], name: str, daemons: int
) -> None:
    (found,) = find_growth(live(grow(0.06), name, daemons=daemons))
    assert found.text.startswith(f"{name} of a: ")
    assert not list(find_growth(live(grow(0.04), name, daemons=daemons)))


def test_resident_memory_that_stays_after_a_peak_is_no_growth_unless_it_goes_on() -> None:
    assert not list(find_growth(live(grow_at_once(0.2), "rss")))
    (found,) = find_growth(live(lambda share: 1 + 0.06 * share + 0.1 * (share > 0.5), "rss"))
    assert found.text.startswith("rss of a: ")


def test_lines_become_calls_and_a_step_that_was_stopped_ends_when_it_was() -> None:
    begin = {"call": 0, "handler": "created", "uid": "u", "version": 1, "retry": 0, "rv": 5}
    lines = [
        json.dumps(["begin", 1.0, {**begin, "wall": 1001.0}]),
        json.dumps(["step", 9.0, {"call": 0}]),
        json.dumps(["sample", 9.1, {"tasks": 1}]),
        json.dumps(["end", 9.2, {"call": 0, "outcome": "cancelled", "delay": 0}]),
    ]
    process = Process("a", terms=[0.5], pauses=[(2.0, 8.0)])
    (read,) = read_lines(process, lines)
    assert (read.begin, read.last, read.end, read.outcome) == (1.0, 2.0, 2.0, "cancelled")
    assert (read.actor, process.samples) == (("a", 1), [(9.1, {"tasks": 1})])


def test_a_seed_fixes_the_plan_and_half_of_it_is_for_the_leader() -> None:
    plan = build_plan(7, 1800, 3)
    assert plan == build_plan(7, 1800, 3) != build_plan(8, 1800, 3)
    targets = [fault.target for fault in plan if fault.kind not in SERVER_FAULTS]
    assert set(targets) == {None, 0, 1, 2}
    assert targets.count(None) == pytest.approx(len(targets) / 2, rel=0.25)
    assert {fault.kind for fault in plan} == {*LINK_FAULTS, *PROCESS_FAULTS, *SERVER_FAULTS}
