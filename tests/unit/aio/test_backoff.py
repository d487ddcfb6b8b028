"""Messages that can repeat, and the pauses that they name."""

from __future__ import annotations

import logging
import time

import pytest

from tests.kit.rows import rows
from webop.aio.backoff import Once, format_pause

DEBUG, WARNING = logging.DEBUG, logging.WARNING


def test_a_message_just_before_a_full_minute_is_not_repeated_just_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once, levels = Once(), []
    for moment in (59.0, 61.0, 118.9, 119.0, 178.0):
        monkeypatch.setattr(time, "monotonic", lambda moment=moment: moment)
        levels.append(once.choose_level("topic"))
    assert levels == [WARNING, DEBUG, DEBUG, WARNING, DEBUG]


def test_a_flood_of_topics_is_remembered_for_a_minute_at_little_cost() -> None:
    once, began = Once(), time.process_time()
    assert {once.choose_level(number) for number in range(20_000)} == {WARNING}
    assert {once.choose_level(number) for number in range(20_000)} == {DEBUG}
    assert time.process_time() - began < 1  # 35 s when each call went through all of them


@rows(
    ("seconds", "text"),
    [
        (1.96414, "1.96"),
        (0.0123456, "0.0123"),
        (300.0, "300"),
        (1987.4, "1990"),
        (1234567, "1230000"),
        (0, "0"),
        (float("inf"), "inf"),
    ],
)
def test_a_pause_with_jitter_is_printed_with_three_digits(seconds: float, text: str) -> None:
    assert format_pause(seconds) == text
