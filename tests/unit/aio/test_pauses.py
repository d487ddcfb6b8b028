"""Pauses in messages."""

from __future__ import annotations

from tests.kit.rows import rows
from webop.aio.backoff import format_pause


@rows(
    ("seconds", "text"),
    [
        (1.96414, "1.96"),
        (0.0123456, "0.0123"),
        (15, "15"),
        (300.0, "300"),
        (287.43, "287"),
        (3600, "3600"),
        (1987.4, "1990"),
        (86400.0, "86400"),
        (1234567, "1230000"),
        (0, "0"),
        (float("inf"), "inf"),
    ],
)
def test_a_pause_with_jitter_is_printed_with_three_digits(seconds: float, text: str) -> None:
    assert format_pause(seconds) == text
