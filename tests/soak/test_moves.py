"""The checks of handovers find planted violations, and none in good evidence."""

from __future__ import annotations

from typing import Any

import pytest

from tools.soak.evidence import Call
from tools.soak.handover.moves import (
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
ALL = frozenset(range(SHARDS))
OTHERS = ALL - {SHARD}


def call(who: str, begin: float, handler: str = "tick", **changes: Any) -> Call:
    """Return a call that takes one second and is done, unless it says otherwise."""
    usual: dict[str, Any] = {"last": begin + 1, "end": begin + 1, "outcome": "done"}
    return Call(who, handler, "u", 1, begin, **{**usual, **changes})


def gain(who: str, at: float) -> Gain:
    return Gain(at, who, frozenset({SHARD}))


def test_shards_are_gained_when_they_were_not_owned_or_had_been_lost() -> None:
    claims = [(1.0, OTHERS), (2.0, ALL), (3.0, frozenset({5})), (4.0, None), (5.0, ALL)]
    found = [(gain.at, gain.shards) for gain in read_gains("a", claims)]
    assert found == [(1.0, OTHERS), (2.0, frozenset({SHARD})), (5.0, ALL)]


AB, ABA = [gain("a", 0), gain("b", 3)], [gain("a", 0), gain("b", 3), gain("a", 6)]


@pytest.mark.parametrize(
    ("what", "gains", "calls", "is_right"),
    [
        ("the only one", AB[:1], [call("a", 1), call("a", 9)], True),
        ("moved", AB, [call("a", 1), call("b", 3.01), call("b", 9)], True),
        ("back again", ABA, [call("a", 1), call("b", 4), call("a", 7)], True),
        ("before it has the shard", [gain("a", 2)], [call("a", 1)], False),
        ("another shard", [Gain(0, "a", OTHERS)], [call("a", 1)], False),
        ("never got it", AB[:1], [call("a", 1), call("b", 4)], False),
        ("after another one", AB, [call("a", 1), call("b", 4), call("a", 7)], False),
    ],
)
def test_a_call_without_a_gain_is_found(
    what: str, gains: list[Gain], calls: list[Call], is_right: bool
) -> None:
    found = [violation.at for violation in find_strangers(calls, gains)]
    assert found == ([] if is_right else [calls[-1].begin]), what


@pytest.mark.parametrize(
    ("event", "second", "is_excused"),
    [
        (Event("SIGKILL", 10.5, "a"), call("b", 20, "created"), True),
        (Event("Lease of owners deleted", 11.5), call("b", 20, "created"), True),
        (Event("lost", 12, "a"), call("a", 20, "created"), True),
        (Event("arrival", 11, "b", is_arrival=True), call("b", 20, "created"), False),
        (Event("SIGTERM", 11, "a"), call("b", 20, "created"), False),
        (Event("SIGKILL", 11, "c"), call("b", 20, "created"), False),
        (Event("SIGKILL", 21, "a"), call("b", 20, "created"), False),
    ],
)
def test_a_creation_can_be_handled_again_only_after_a_fault(
    event: Event, second: Call, is_excused: bool
) -> None:
    calls = [call("a", 10, "created"), second]
    found = [violation.at for violation in find_repeated_creations(calls, [event])]
    assert found == ([] if is_excused else [20])


def test_each_move_has_its_cause_and_its_time() -> None:
    events = [
        Event("arrival", 0, "a", is_arrival=True),
        Event("arrival", 3, "b", is_arrival=True),
        Event("SIGKILL", 8, "b"),
        Event("SIGKILL", 8.5, "c"),
        Event("Lease of owners deleted", 20),
    ]
    calls = [call("a", 1), call("b", 5), call("a", 10, "resumed"), call("a", 22, "resumed")]
    kinds = "arrival", "SIGKILL", "Lease of owners deleted"
    assert list_moves(calls, events) == [Move(kind, "u", 2) for kind in kinds]


def test_the_table_has_the_percentiles_by_cause() -> None:
    moves = [Move("SIGKILL", "u", float(number)) for number in range(1, 201)]
    heading, row = build_table(moves)
    assert heading.split()[:2] == ["moves", "after"]
    assert row.split() == ["SIGKILL", "200", "100.50", "198.00", "200.00"]
