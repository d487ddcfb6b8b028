"""JSON of the API server, of which nothing is nested so deeply that others could not be read.

An API server takes objects of 10 000 levels, orjson reads 1024, and writes 254. One such object in
a list or a watch would keep all others of the kind from being served, and anybody can create it
whose kind has free fields. What is too deep in it is cut off, at the same place in all responses.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import orjson

from webop.backoff import Once

if TYPE_CHECKING:
    from webop.client.failures import Attempt

logger = logging.getLogger(__name__)

_WRITABLE: Final = 254  # levels, for orjson
_KEPT: Final = 200  # of an object
_AROUND: Final = {"list": 2, "watch": 1}  # levels around an object, by the verb
# Brackets, and what is before them. Nothing is tried twice: events must be decoded quickly.
_BRACKETS: Final = re.compile(
    rb'[^][{}"]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^][{}"]*+)*+([][{}])', re.DOTALL
)
_once = Once()


def decode(text: bytes, describe: Callable[[], Attempt]) -> Any:
    """Return the value of a JSON text; null stands for what is nested too deeply in an object.

    Args:
        text: an object, a list of objects, or an event of a watch.
        describe: returns what it is the response to, for a warning.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
    """
    try:
        data = orjson.loads(text)
        opened = text.count(b"{") + text.count(b"[")
        # What is empty is no level on the way to anything; managed fields are full of that.
        if opened <= _KEPT or opened - text.count(b"{}") - text.count(b"[]") < _KEPT:
            return data
        attempt = describe()
        wrapped = data
        for _ in range(_WRITABLE - _KEPT - _AROUND.get(attempt.verb, 0)):
            wrapped = [wrapped]
        orjson.dumps(wrapped)  # the quickest way to find out how deep it is
    except orjson.JSONDecodeError as exc:
        if "depth limit" not in str(exc):
            raise
        attempt = describe()
    except orjson.JSONEncodeError:
        pass
    else:
        return data
    logger.log(
        _once.choose_level((attempt.verb, attempt.resource)),
        "The response to '%s' has an object that is nested deeper than %d levels. The deeper "
        "values are ignored.",
        *(attempt, _KEPT),
    )
    return orjson.loads(_cut(text, _KEPT + _AROUND.get(attempt.verb, 0)))


def _cut(text: bytes, limit: int) -> bytes:
    """Replace what is nested deeper than so many levels by null."""
    kept: list[bytes] = []
    depth = start = 0
    end = 0
    while found := _BRACKETS.match(text, end):  # it is not looked for elsewhere
        place, end = found.span(1)
        if text[place] in b"{[":
            if depth == limit:
                kept += text[start:place], b"null"
            depth += 1
        else:
            depth -= 1
            if depth == limit:
                start = place + 1
    return b"".join((*kept, text[start:]))
