"""Decode the JSON of a review at a bounded cost of time and memory.

Decoded, a text like ``[],[],…`` takes thirty times its size, and a decoder blocks the event loop
even from a thread. So the memory is estimated before the text is decoded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from secrets import token_hex
from typing import Any

import orjson

from webop.errors import ReviewError
from webop.objects.diffs import diff
from webop.objects.json_text import LARGE, LEVELS, SPARE, cut, load

# The limit of orjson's encoder, which is a cheap way to check the depth. Objects of this depth
# never exceed Python's recursion limit.
_MAX_DEPTH = 254
# Of the limit, for one state of an object: an update has two, and webop adds annotations. In
# percent.
_STATE = 40
_MANAGED_FIELDS = ("metadata", "managedFields")
_thread = ThreadPoolExecutor(1, "webop-reviews")  # more would hold the event loop longer
_NOT_COUNTED = bytes(set(range(256)) - set(b'"{[,'))

# The head of a review as API servers write it: in this order, before all that users can choose.
HEAD_SIZE = 512
_HEAD = re.compile(
    rb"""\s*\{\s*(?:
        "kind"\s*:\s*"AdmissionReview"\s*,\s*"apiVersion"\s*:\s*"(?P<version>%b)"
        |"apiVersion"\s*:\s*"(?P<other>%b)"\s*,\s*"kind"\s*:\s*"AdmissionReview"
    )\s*,\s*"request"\s*:\s*\{\s*"uid"\s*:\s*"(?P<uid>[A-Za-z0-9-]{1,100})"\s*[,}]"""
    % ((rb"admission\.k8s\.io/v1(?:beta1)?",) * 2),
    re.VERBOSE,
)


async def decode_review(
    body: bytes, hold: Callable[[int], None], limit: int, deep: dict[bytes, bytes]
) -> dict[str, Any]:
    """Decode the JSON of a review; that of a large one in a thread.

    Args:
        body: the bytes of the request.
        hold: is called with the bytes of memory to count for the review; it may raise.
        limit: the bytes of memory that the review may take.
        deep: gets the values that are too deep, by the texts that stand for them.

    Raises:
        ReviewError: the body is not JSON, not an object, too large or too deep (413).
    """
    memory, opened = _estimate(body)
    if memory > limit:
        text = f"The review takes about {memory} bytes of memory; the limit is {limit} bytes"
        raise ReviewError(f"{text} (see settings.admission.max_held_bytes).", status=413)
    hold(memory)
    sizes = opened, memory, limit * _STATE // 100, deep
    if len(body) < LARGE:
        return _decode(body, *sizes)
    return await asyncio.get_running_loop().run_in_executor(_thread, _decode, body, *sizes)


def _decode(
    body: bytes, opened: int, memory: int, limit: int, deep: dict[bytes, bytes]
) -> dict[str, Any]:
    try:
        review = load(body) if opened <= _MAX_DEPTH else _load_deep(body, deep)
    except orjson.JSONDecodeError as error:
        reason = f"The review is not valid JSON: {error}." if body else "The review is empty."
        raise ReviewError(reason) from None
    if not isinstance(review, dict):
        raise ReviewError(f"The review must be a JSON object, not {type(review).__name__}.")
    if memory > limit:
        _check_growth(review, limit)
    return review


def _load_deep(body: bytes, deep: dict[bytes, bytes]) -> Any:
    """Return the value of a JSON text; check its depth.

    An object that is too deep already is served without its deepest values, so that its finalizers
    can be removed. In objects to convert, texts stand for them.
    """
    try:
        review = load(body)
        orjson.dumps(review)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        pass
    else:
        return review
    secret = token_hex(16).encode()  # no user can put it into an object

    def mark(value: bytes) -> bytes:
        text = b'"%b%b"' % (secret, blake2b(value).hexdigest().encode())
        deep[text] = value
        return text

    def count(part: Any) -> int:
        return orjson.dumps(part).count(secret)

    text = cut(body, _MAX_DEPTH - SPARE, mark)
    review = load(text)
    old, new, objects = map(_get_request(review).get, ("oldObject", "object", "objects"))
    deep.clear()
    if objects:  # pydantic reads 200 levels of each
        return load(cut(body, LEVELS - SPARE, mark))
    is_elsewhere = count(review) > count(old) + count(new)
    # Handlers could not see what is new. Managed fields have only the names of fields.
    changes = (item.new for item in diff(old, new) if item.field[:2] != _MANAGED_FIELDS)
    if is_elsewhere or any(map(count, changes)):
        raise ReviewError(f"The review is nested deeper than {_MAX_DEPTH} levels.", status=413)
    return load(re.sub(rb'"%b[0-9a-f]+"' % secret, b"null", text))


def restore(text: bytes, deep: Mapping[bytes, bytes]) -> bytes:
    """Return the JSON of a response with the deep values of the review in their places again."""
    if not deep:
        return text
    return re.sub(rb'"[0-9a-f]{160}"', lambda found: deep.get(found[0], found[0]), text)


def _get_request(review: Any) -> dict[str, Any]:
    request = review.get("request") if isinstance(review, dict) else None
    return request if isinstance(request, dict) else {}


def find_request(head: bytes) -> tuple[str, str] | None:
    """Return the API version and the uid of a review, found in the first bytes of its text.

    They are found only in a text that begins as API servers write it. There, the uid precedes all
    that the user has sent, so no object can forge it.
    """
    found = _HEAD.match(head)
    if found is None:
        return None
    return (found["version"] or found["other"]).decode(), found["uid"].decode()


def _estimate(text: bytes) -> tuple[int, int]:
    """Return the bytes of memory that a JSON text and its value take, and its opening brackets.

    Strings take up to four bytes for each of their characters, and each value some bytes more.
    """
    marks = text.translate(None, _NOT_COUNTED)
    if len(marks) <= _MAX_DEPTH:  # most reviews; it is less in truth
        return 4 * len(text) + 100 * len(marks), len(marks)
    strings, commas = marks.count(b'"') // 2, marks.count(b",")
    opened = len(marks) - marks.count(b'"') - commas
    return 4 * len(text) + 100 * opened + 80 * strings + 24 * commas, opened


def _check_growth(review: dict[str, Any], limit: int) -> None:
    """Refuse an object that becomes too large to be changed later: updates have both states.

    Objects that are as large already are served, so that their finalizers can be removed.
    """
    request = _get_request(review)
    new, old = (_estimate(orjson.dumps(request.get(key)))[0] for key in ("object", "oldObject"))
    if new > limit >= old:
        text = f"The object takes about {new} bytes of memory; the limit is {limit} bytes"
        raise ReviewError(f"{text} (see settings.admission.max_held_bytes).", status=413)
