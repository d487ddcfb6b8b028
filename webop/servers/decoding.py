"""Decode the JSON of a review at a bounded cost of time and memory.

Decoded, a text like ``[],[],…`` takes thirty times its size, and a decoder blocks the event loop
even from a thread. So the values are counted before they are decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from webop.errors import ReviewError

# Values in a review: the commas and opening brackets outside of strings. An object in etcd has
# at most 1.5 MiB, an update has two states of it, and objects of only short fields and
# ``managedFields`` have 9 bytes per value: 350 000 values. The number allowed here takes at most
# 110 MiB and 0.3 s.
_MAX_VALUES = 400_000
# The limit of orjson's encoder, which is a cheap way to check the depth. Objects of this depth
# never exceed Python's recursion limit.
_MAX_DEPTH = 254
# Decoded, a text takes at most ten times its size, or 100 bytes for each value of less than
# 10 bytes.
_VALUE_SIZE = 10
_CONTENT = bytes(set(range(256)) - set(b'"{[,'))
_ALL_BUT_VALUES = bytes(set(range(256)) - set(b"{[,"))


def decode_review(body: bytes, hold: Callable[[int], None]) -> dict[str, Any]:
    """Decode the JSON of a review.

    Args:
        body: the bytes of the request.
        hold: is called with the memory to count beyond the size of the text, in units of text
            bytes; it may raise.

    Raises:
        ReviewError: the body is not JSON, not an object, or too complex.
    """
    values = body.translate(None, _ALL_BUT_VALUES)
    count = len(values)
    if count > _MAX_VALUES and _count_values(body) > _MAX_VALUES:
        raise ReviewError(f"The review has more than {_MAX_VALUES} values.", status=413)
    if (excess := min(count, _MAX_VALUES) * _VALUE_SIZE - len(body)) > 0:
        hold(excess)
    try:
        review = orjson.loads(body)
        if count > _MAX_DEPTH and count - values.count(b",") > _MAX_DEPTH:
            orjson.dumps(review)
    except orjson.JSONDecodeError as error:
        reason = f"The review is not valid JSON: {error}." if body else "The review is empty."
        raise ReviewError(reason) from None
    except orjson.JSONEncodeError:
        raise ReviewError(f"The review is nested deeper than {_MAX_DEPTH} levels.") from None
    if not isinstance(review, dict):
        raise ReviewError(f"The review must be a JSON object, not {type(review).__name__}.")
    return review


def _count_values(body: bytes) -> int:
    """Count the values of a JSON text; only its strings, if these exceed the limit."""
    text = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _CONTENT)
    strings = text.count(b'"') // 2
    return strings if strings > _MAX_VALUES else len(b"".join(text.split(b'"')[::2]))
