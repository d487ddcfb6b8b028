"""Which replica owns which shards, and how many it should own."""

from __future__ import annotations

from typing import Any

from tests.kit.rows import rows
from webop.coordination.shard_map import ANNOTATION, ShardMap, Term, divide

Json = dict[str, Any]

A, B, C = (Term(f"x-member-0{n}", name, "2026-11-30T00:00:00Z") for n, name in enumerate("abc"))
EMPTY: Json = {"metadata": {"name": "x-shards", "uid": "u", "resourceVersion": "5"}}


def test_what_is_written_is_read() -> None:
    known = ShardMap("u").take(frozenset(range(10)), A).take(frozenset({3, 60}), B)
    raw = known.write(EMPTY, "x")
    assert raw["metadata"]["labels"] == {"webop.dev/shards": "x"}
    assert raw["metadata"]["resourceVersion"] == "5"
    found = ShardMap.parse(raw)
    assert found == known
    owner_of = {shard: term for term, shards in found.owners.items() for shard in shards}
    assert (owner_of[3], owner_of[4], owner_of.get(11)) == (B, A, None)
    assert found.get(A) == frozenset(range(10)) - {3}


def test_each_write_changes_the_lease() -> None:  # else API servers keep its version
    first = ShardMap("u").write(EMPTY, "x")
    second = ShardMap.parse(first).write(first, "x")
    assert first != second
    assert ShardMap.parse(first) == ShardMap.parse(second)


@rows(
    "text",
    [
        "{",
        '[{"slot": "x", "holder": "a"}]',
        '[{"slot": "x", "holder": "a", "since": "", "shards": "70"}]',
        '[{"slot": "x", "holder": "a", "since": "", "shards": 7}]',
        (
            '[{"slot": "x", "holder": "a", "since": "", "shards": "0-3"},'
            ' {"slot": "y", "holder": "b", "since": "", "shards": "3"}]'
        ),
        '[{"slot": "Not a Name", "holder": "a", "since": "", "shards": "1"}]',
        '[{"slot": "x-member-99", "holder": "a", "since": "", "shards": "1"}]',
        "null",
    ],
)
def test_an_annotation_that_cannot_be_read_is_a_problem(text: str) -> None:
    meta = {**EMPTY["metadata"], "annotations": {ANNOTATION: text}}
    found = ShardMap.parse({"metadata": meta})
    assert ANNOTATION in found.problem
    assert not found.owners
    assert found.uid == "u"


@rows(
    ("members", "owned", "shares"),
    [
        ({A: None}, {}, {A: 64}),
        ({A: None, B: None, C: None}, {}, {A: 22, B: 21, C: 21}),
        ({A: None, B: None, C: None}, {C: 64}, {A: 21, B: 21, C: 22}),
        ({A: None, B: None, C: None}, {A: 21, B: 22, C: 21}, {A: 21, B: 22, C: 21}),
        ({A: None, B: None, C: 2}, {}, {A: 31, B: 31, C: 2}),
        ({A: None, B: 2, C: 2}, {}, {A: 62, B: 1, C: 1}),
        ({A: None, B: 0, C: 2}, {B: 2}, {A: 62, B: 0, C: 2}),
        ({}, {}, {}),
    ],
)
def test_shares(
    members: dict[Term, int | None], owned: dict[Term, int], shares: dict[Term, int]
) -> None:
    assert divide(members, owned) == shares
