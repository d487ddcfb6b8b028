"""The gate for overload: what it lets in, what it refuses, and that it forgets nothing."""

from __future__ import annotations

import pytest

from webop.errors import ReviewError
from webop.servers.limits import DefaultLimits, Hosting, OverloadGate


def build_gate(**limits: int) -> OverloadGate:
    return Hosting(DefaultLimits(**limits)).gate


def check_refused(error: ReviewError, setting: str) -> None:
    assert error.status == 429
    assert error.retry_after == 1
    assert f"settings.admission.{setting}" in str(error)


def test_reviews_are_held_up_to_the_budget_and_room_is_made_by_release() -> None:
    gate = build_gate(max_held_bytes=1000, max_body=10)
    gate.hold(500, "a", gate.share)
    gate.hold(400, "b", gate.share)
    gate.hold(100, None, gate.share)  # a server that does not say who it is
    with pytest.raises(ReviewError) as caught:
        gate.hold(1, "c", gate.share)
    check_refused(caught.value, "max_held_bytes")
    gate.release(1, "b")
    gate.hold(1, "c", gate.share)


def test_one_address_cannot_take_the_whole_budget() -> None:
    gate = build_gate(max_held_bytes=1000, max_body=10)
    gate.hold(300, "a", gate.share)
    gate.hold(200, "a", gate.share)
    with pytest.raises(ReviewError, match="from one address take more than 500 bytes") as caught:
        gate.hold(1, "a", gate.share)
    check_refused(caught.value, "max_held_bytes")
    gate.hold(500, "b", gate.share)
    gate.release(500, "a")
    gate.release(500, "b")
    gate.hold(500, "a", gate.share)


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
