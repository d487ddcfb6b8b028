"""Records in peering objects, and who gives way to whom."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.kit.rows import rows
from webop.coordination.peer_records import (
    Peer,
    build_record,
    parse_peers,
    select_rivals,
)

NOW = 1_800_000_000.0
WHEN = "2027-01-15T08:00:00"


@pytest.mark.feature("PEE-13", "PEE-01")
def test_a_record_is_read_as_it_was_written() -> None:
    record = build_record(7, 60, NOW, "maintenance")
    assert record == {
        "priority": 7,
        "lifetime": 60,
        "lastseen": f"{WHEN}+00:00",
        "message": "maintenance",
    }
    assert set(build_record(7, 60, NOW)) == {"priority", "lifetime", "lastseen"}
    assert parse_peers({"a": record}) == ({"a": Peer("a", 7, NOW + 60, "maintenance")}, {})


@pytest.mark.feature("PEE-13")
@rows(
    ("record", "expected"),
    [
        ({"priority": 1, "lifetime": 5, "lastseen": WHEN}, Peer("x", 1, NOW + 5)),
        ({"priority": 1, "lifetime": 5, "lastseen": f"{WHEN}Z"}, Peer("x", 1, NOW + 5)),
        ({"priority": 1, "lifetime": 5, "lastseen": f"{WHEN}.500000"}, Peer("x", 1, NOW + 5.5)),
        ({"priority": 1, "lifetime": 5, "lastseen": "2027-01-15T10:00:00+02:00"}, ...),
        ({"priority": "1", "lifetime": "5", "lastseen": WHEN}, Peer("x", 1, NOW + 5)),
        ({"lastseen": WHEN}, Peer("x", 0, NOW + 60)),
        ({"priority": -3}, Peer("x", -3, math.inf)),
        ({"lifetime": 5, "lastseen": None}, Peer("x", 0, math.inf)),
        ({"lifetime": 10**30, "lastseen": WHEN}, Peer("x", 0, NOW + 10**30)),
        ({"lastseen": WHEN, "namespace": "ns", "message": 5}, Peer("x", 0, NOW + 60, "5")),
    ],
)
def test_records_of_others_are_read_as_they_mean_them(record: Any, expected: Any) -> None:
    peers, problems = parse_peers({"x": record})
    assert peers == {"x": Peer("x", 1, NOW + 5) if expected is ... else expected}
    assert not problems


@rows(
    "record",
    [
        *(None, "text", ["list"], {}),
        *({"priority": "high"}, {"priority": None}),
        *({"lastseen": "yesterday"}, {"lastseen": 5}),
        {"lastseen": WHEN, "lifetime": "long"},
        {"lastseen": WHEN, "lifetime": 10**400},
        {"lastseen": WHEN, "lifetime": None},
    ],
)
def test_garbage_of_one_is_told_and_does_not_hide_the_others(record: Any) -> None:
    peers, problems = parse_peers({"x": record, "y": {"priority": 1}})
    assert list(peers) == ["y"]
    assert list(problems) == ["x"]


@pytest.mark.feature("PEE-02", "PEE-03", "PEE-14", "CFG-08", "D-20")
@rows(
    ("peers", "rivals"),
    [
        ([], []),
        ([Peer("low", -1)], []),
        ([Peer("high", 1)], ["high"]),
        ([Peer("same", 0), Peer("equal", 0)], ["equal", "same"]),
        ([Peer("b", 1), Peer("a", 1), Peer("c", 2), Peer("d", 0)], ["c", "a", "b"]),
        ([Peer("dead", 1, NOW), Peer("same", 0)], ["same"]),
        ([Peer("alive", 1, NOW + 0.1)], ["alive"]),
    ],
)
def test_the_highest_one_acts(peers: list[Peer], rivals: list[str]) -> None:
    assert [peer.identity for peer in select_rivals(peers, "me", 0, NOW)] == rivals


@pytest.mark.feature("PEE-14")
def test_of_two_records_of_one_peer_the_higher_and_later_one_counts() -> None:
    records = [Peer("x", 1, NOW + 5), Peer("x", 1, NOW + 7), Peer("x", 0, NOW + 9)]
    assert select_rivals(records, "me", 0, NOW) == (records[1],)
    assert select_rivals(reversed(records), "me", 0, NOW) == (records[1],)
