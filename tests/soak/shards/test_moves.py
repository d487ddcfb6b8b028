"""The checks of runs with shards find planted violations, and none in good evidence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tools.soak.chaos.invariants import Call, Evidence, judge
from tools.soak.shards.moves import (
    Event,
    Gain,
    Move,
    build_table,
    find_repeated_creations,
    find_strangers,
    list_moves,
    read_gains,
)
from webop.objects.shards import SHARDS, find_shard

SHARD = find_shard("u")
OTHERS = frozenset(range(SHARDS)) - {SHARD}


def call(who: str, begin: float, handler: str = "tick", **changes: Any) -> Call:
    """Return a call that takes one second and is done, unless it says otherwise."""
    usual: dict[str, Any] = {"last": begin + 1, "end": begin + 1, "outcome": "done"}
    return Call(who, handler, "u", 1, begin, **{**usual, **changes})


def gain(who: str, at: float) -> Gain:
    return Gain(at, who, frozenset({SHARD}))


ALL = frozenset(range(SHARDS))


def test_shards_are_gained_when_they_were_not_owned_or_had_been_lost() -> None:
    claims = [(1.0, OTHERS), (2.0, ALL), (3.0, frozenset({5})), (4.0, None), (5.0, ALL)]
    found = [(gain.at, gain.shards) for gain in read_gains("a", claims)]
    assert found == [(1.0, OTHERS), (2.0, frozenset({SHARD})), (5.0, ALL)]


@pytest.mark.parametrize(
    ("gains", "calls"),
    [
        pytest.param([gain("a", 0)], [call("a", 1), call("a", 9)], id="the only one"),
        pytest.param(
            [gain("a", 0), gain("b", 3)], [call("a", 1), call("b", 3.01), call("b", 9)], id="moved"
        ),
        pytest.param(
            [gain("a", 0), gain("b", 3), gain("a", 6)],
            [call("a", 1), call("b", 4), call("a", 7)],
            id="back again",
        ),
    ],
)
def test_calls_after_a_gain_are_right(gains: list[Gain], calls: list[Call]) -> None:
    assert [*find_strangers(calls, gains)] == []


@pytest.mark.parametrize(
    ("gains", "calls"),
    [
        pytest.param([gain("a", 2)], [call("a", 1)], id="before it has the shard"),
        pytest.param([Gain(0, "a", OTHERS)], [call("a", 1)], id="another shard"),
        pytest.param([gain("a", 0)], [call("a", 1), call("b", 4)], id="never got it"),
        pytest.param(
            [gain("a", 0), gain("b", 3)],
            [call("a", 1), call("b", 4), call("a", 7)],
            id="goes on after another one",
        ),
        pytest.param(
            [gain("a", 0), gain("b", 1), gain("a", 3)],
            [call("a", 0.5, last=0.6), call("b", 2), call("a", 4), call("b", 6)],
            id="two in turns",
        ),
    ],
)
def test_a_call_without_a_gain_is_found(gains: list[Gain], calls: list[Call]) -> None:
    (violation,) = find_strangers(calls, gains)
    assert violation.at == calls[-1].begin


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (call("a", 1, "updated", last=5.0), call("b", 4, "tick")),
        (call("a", 1, "follow", last=9.0, end=math.inf, outcome=""), call("b", 4, "follow")),
        (call("a", 1, "tick", last=4.5), call("b", 4, "created")),
    ],
)
def test_steps_of_two_replicas_at_once_for_one_object_are_found(first: Call, second: Call) -> None:
    def find(*calls: Call) -> set[str]:
        return {one.rule for one in judge(Evidence([*calls], {}, {}, has_lease=False))}

    assert "two replicas act at once" in find(first, second)
    assert find(first, replace(second, uid="v")) == set()
    # A daemon of a killed process has no end.
    assert find(replace(first, last=3.0), second) == set()


CREATED = [call("a", 10, "created"), call("b", 20, "created")]


@pytest.mark.parametrize(
    "event",
    [
        Event("SIGKILL", 10.5, "a"),
        Event("SIGSTOP", 11.5, "a"),
        Event("Lease of owners deleted", 11.5),
        Event("API server killed", 5),
    ],
)
def test_a_creation_can_be_handled_again_after_a_fault(event: Event) -> None:
    assert [*find_repeated_creations(CREATED, [event])] == []


@pytest.mark.parametrize(
    "event",
    [
        Event("arrival", 11, "b", is_arrival=True),
        Event("SIGTERM", 11, "a", is_orderly=True),
        Event("SIGKILL", 11, "c"),
        Event("SIGKILL", 21, "a"),
    ],
)
def test_a_creation_that_was_handled_again_without_a_fault_is_found(event: Event) -> None:
    (violation,) = find_repeated_creations(CREATED, [event])
    assert violation.at == 20


def test_each_move_has_its_cause_and_its_time() -> None:
    events = [
        Event("arrival", 0, "a", is_arrival=True),
        Event("arrival", 3, "b", is_arrival=True),
        Event("SIGKILL", 8, "b"),
        Event("SIGKILL", 8.5, "c"),
        Event("Lease of owners deleted", 20),
    ]
    calls = [call("a", 1), call("b", 5), call("a", 10, "resumed"), call("a", 22, "resumed")]
    assert list_moves(calls, events) == [
        Move("arrival", "u", 2),
        Move("SIGKILL", "u", 2),
        Move("Lease of owners deleted", "u", 2),
    ]


def test_the_table_has_the_percentiles_by_cause() -> None:
    moves = [Move("SIGKILL", "u", float(number)) for number in range(1, 201)]
    heading, row = build_table(moves)
    assert heading.split()[:2] == ["moves", "after"]
    assert row.split() == ["SIGKILL", "200", "100.50", "198.00", "200.00"]
