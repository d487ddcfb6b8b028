from __future__ import annotations

import pytest

from durations import parse_duration


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("15m", 900), ("8h", 28800)])
def test_durations_are_numbers_with_units(text: str, seconds: int) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "5", "h", "0h", "-1h", "1.5h", "1d", "1h ", "999999h"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9h", "481m", "28801s", "99999h"])
def test_durations_above_eight_hours_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="too long; 8h at most"):
        parse_duration(text)
