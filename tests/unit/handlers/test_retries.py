"""The pauses between attempts, and the wish to be called again."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.rows import rows
from webop.handlers.retries import choose_backoff


@rows(
    ("pauses", "expected"),
    [
        (7, [7, 7, 7]),
        ([1, 2.5], [1, 2.5, 2.5]),
        (webop.Backoff(first=1, factor=2, limit=3, jitter=0), [1, 2, 3]),
        (webop.Backoff(first=0, jitter=0), [0, 0, 0]),
    ],
)
def test_a_pause_is_a_number_a_list_or_a_rule(pauses: Any, expected: list[float]) -> None:
    assert [choose_backoff(pauses, 60.0, retry) for retry in range(3)] == expected


def test_pauses_vary_and_stay_finite_after_many_failures() -> None:
    rule = webop.Backoff(first=1, factor=10, limit=100, jitter=0.5)
    chosen = [rule.choose(10_000) for _ in range(100)]
    assert all(50 <= pause <= 150 for pause in chosen)
    assert len({*chosen}) > 1


@rows(
    "wrong",
    [
        {"first": -1},
        {"factor": 0.5},
        {"jitter": 2},
        {"first": 100, "limit": 10},
    ],
)
def test_a_rule_with_a_wrong_number_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"webop\.Backoff: "):
        webop.Backoff(**wrong)
    assert webop.Backoff(first=10, limit=10, jitter=0).choose(0) == 10


@rows("after", [-1, "5", None, float("nan")])
def test_a_wish_to_be_called_again_names_seconds(after: Any) -> None:
    with pytest.raises(ValueError, match="after= must be a number"):
        webop.again(after=after)
