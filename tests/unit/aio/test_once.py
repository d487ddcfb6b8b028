"""Messages that can repeat: a warning once a minute."""

from __future__ import annotations

import logging
import time

import pytest

from webop.aio.backoff import Once

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
