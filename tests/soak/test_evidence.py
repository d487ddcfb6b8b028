"""The judge of long runs finds each kind of violation in evidence, and none in good evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tools.soak.evidence import Call, Evidence, Life, Process, find_growth, judge


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
    delays={7: {"created": 1001.0}},
)
GOOD = [call("created", 1), call("settled", 2), call("tick", 2.5)]
LATER = call("created", 3, outcome="later", delay=5)


@pytest.mark.parametrize(
    ("rule", "calls", "changes"),
    [
        ("two calls at once for one object", [call("created", 1, last=3), call("settled", 2)], {}),
        (
            "two calls at once for one object",
            [is_interrupted("created", 1), call("settled", 9), call("created", 10)],
            {},
        ),
        ("a timer or daemon twice at once for one object", [*GOOD, call("tick", 3)], {}),
        (
            "two replicas act at once",
            [*GOOD, call("tick", 7, last=10), call("follow", 9, who="b")],
            {},
        ),
        ("called again after it has finished", [*GOOD, call("created", 4)], {}),
        ("called again after it has finished", [*GOOD, call("created", 6, who="b")], {}),
        ("called again after it has finished", [*GOOD, call("created", 6, term=1)], {}),
        ("called again earlier than requested", [GOOD[1], LATER, call("created", 8)], {}),
        (
            "called again earlier than its record says",
            [call("created", 1, who="b", rv=7, wall=1000.0), call("settled", 9)],
            {},
        ),
        ("its last state is not handled", [GOOD[0], is_interrupted("settled", 2)], {}),
        ("its last state is not handled", GOOD, {"version": 2}),
        ("unexpected content is stored", GOOD, {"oddities": ["the result of another one"]}),
        ("its last state is not stored as handled", GOOD, {"recorded": {("created", 1): 5.0}}),
        ("its deletion was not handled", GOOD, {"marked": 6.0, "gone": 7.0}),
        ("its deletion is not complete", GOOD, {"marked": 6.0}),
    ],
)
def test_each_kind_of_violation_is_found(
    rule: str, calls: list[Call], changes: dict[str, Any]
) -> None:
    def find(calls: list[Call], life: Life) -> list[str]:
        return [violation.rule for violation in judge(Evidence(calls, {life.uid: life}, {}))]

    assert find(calls, replace(LIFE, **changes)) == [rule]
    assert find(GOOD, LIFE) == []


STEADY = {"rss": 90e6, "blocks": 5e5, "descriptors": 100.0, "tasks": 120.0, "daemons": 9.0}
COUNT = 300  # samples, one every five seconds


def live(course: Callable[[float], float], name: str) -> Process:
    """Return a process of which something takes a course, over its share of its life."""
    process = Process("a", born=1000.0)
    for number in range(COUNT):
        noise = 1 + 0.004 * math.sin(number * 7)
        value = STEADY[name] * course(number / COUNT) * noise
        process.samples.append((1300.0 + 5 * number, {**STEADY, name: value}))
    return process


@pytest.mark.parametrize("name", ["rss", "blocks", "descriptors", "tasks"])
def test_a_growth_by_six_percent_is_one_and_by_four_is_none(name: str) -> None:
    (found,) = find_growth(live(lambda share: 1 + 0.06 * share, name))
    assert found.text.startswith(f"{name} of a: ")
    assert not list(find_growth(live(lambda share: 1 + 0.04 * share, name)))


def test_resident_memory_that_stays_after_a_peak_is_no_growth_unless_it_goes_on() -> None:
    assert not list(find_growth(live(lambda share: 1 + 0.2 * (share > 0.5), "rss")))
    (found,) = find_growth(live(lambda share: 1 + 0.06 * share + 0.1 * (share > 0.5), "rss"))
    assert found.text.startswith("rss of a: ")
