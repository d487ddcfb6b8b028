"""How long a review may take: the client's ``?timeout=``, less a margin.

API servers add the ``timeoutSeconds`` of the webhook to its URL, in the syntax of Go's
``time.Duration`` (Kubernetes, "Dynamic Admission Control", "Timeouts"). Pure.
"""

from __future__ import annotations

import functools
import re
from urllib.parse import parse_qs

from webop.errors import ReviewError

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,  # the micro sign, which Go writes
    "\u03bcs": 1e-6,  # the Greek letter, which Go reads, too
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_MAX_TEXT = 32  # characters of a duration
_MAX_QUERY = 1024  # bytes; API servers send a timeout and nothing else
_MAX_TIMEOUT = 30.0  # seconds; the longest ``timeoutSeconds`` of a webhook
_MIN_MARGIN, _MAX_MARGIN = 0.05, 1.0  # seconds for sending the response


def parse_duration(text: str) -> float:
    """Return the seconds of a duration in Go's syntax, such as "10s", "1m30s", "1.5s".

    Raises:
        ValueError: it is not a positive duration, or has more than 32 characters.
    """
    seconds, end = 0.0, 0
    while end < len(text) <= _MAX_TEXT and (part := _PART.match(text, end)):
        seconds += float(part[1]) * _UNITS[part[2]]
        end = part.end()
    if end < len(text) or seconds <= 0:
        raise ValueError(f"not a duration such as 10s or 1m30s: {text[:_MAX_TEXT]!r}")
    return seconds


@functools.lru_cache(maxsize=64)  # API servers send few different ones
def read_timeout(query: bytes) -> float | None:
    """Return how many seconds the client waits, from the query of its URL; None if absent.

    It is at most 30 seconds, as in Kubernetes.

    Raises:
        ReviewError: the query has a ``timeout`` that is not a duration, or is too long (414).
    """
    if len(query) > _MAX_QUERY:
        raise ReviewError(f"The query is longer than {_MAX_QUERY} bytes.", status=414)
    values = parse_qs(query.decode("utf-8", "replace"), keep_blank_values=True).get("timeout")
    if not values:
        return None
    try:
        return min(parse_duration(values[0]), _MAX_TIMEOUT)
    except ValueError as error:
        raise ReviewError(f"The timeout= in the URL is {error}.") from None


@functools.lru_cache(maxsize=64)
def compute_budget(timeout: float) -> float:
    """Return after how many seconds the response must be sent, given the client's timeout."""
    margin = min(max(timeout / 10, _MIN_MARGIN), _MAX_MARGIN)
    return max(timeout - margin, timeout / 2)
