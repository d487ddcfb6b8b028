"""Parse durations such as 30s, 15m, 8h."""

from __future__ import annotations

import datetime as dt
import re

LONGEST = dt.timedelta(hours=8)

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}


def parse_duration(text: str) -> dt.timedelta:
    """Return the duration that a text means.

    Raises:
        ValueError: the text is not a duration, or the duration exceeds :data:`LONGEST`.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,4})([smh])", text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration, such as 30s, 15m or 8h.")
    duration = dt.timedelta(**{_UNITS[match[2]]: int(match[1])})
    if duration > LONGEST:
        raise ValueError(f"{text!r} is too long; {LONGEST.seconds // 3600}h at most.")
    return duration
