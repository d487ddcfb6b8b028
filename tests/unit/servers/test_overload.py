"""The gate for overload: what it lets in, what it refuses, and that it forgets nothing."""

from __future__ import annotations

import pytest

from webop.errors import ReviewError
from webop.servers.limits import DefaultLimits, Hosting, OverloadGate


def build_gate(**limits: int) -> OverloadGate:
    return Hosting(DefaultLimits(**limits)).gate


def test_the_largest_review_is_served_if_the_budget_is_smaller() -> None:
    gate = build_gate(max_held_bytes=10, max_body=50)
    assert gate.share == 250
    gate.hold(250, "a", gate.share)
    with pytest.raises(ReviewError):
        gate.hold(1, "a", gate.share)
    gate.release(250, "a")
    gate.hold(250, "a", gate.share)


def test_limits_that_are_replaced_count_at_once() -> None:
    hosting = Hosting(DefaultLimits(max_reviews=1))
    hosting.gate.enter({})
    hosting.limits = DefaultLimits(max_reviews=2)
    hosting.gate.enter({})
    with pytest.raises(ReviewError):
        hosting.gate.enter({})
