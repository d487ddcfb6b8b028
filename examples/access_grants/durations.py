"""Durations as people write them: 30s, 15m, 8h."""

from __future__ import annotations

import datetime as dt
import re

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}


def parse_duration(text: str) -> dt.timedelta:
    """Return the duration that a text stands for.

    Raises:
        ValueError: it stands for none.
    """
    match = re.fullmatch(r"([1-9]\d{0,5})([smh])", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration; 30s, 15m, 8h are.")
    return dt.timedelta(**{_UNITS[match[2]]: int(match[1])})
