"""JSON of the API server, of which nothing is nested so deeply that others could not be read.

An API server takes objects of 10 000 levels, orjson reads 1024, and writes 254. One such object in
a list or a watch would keep all others of the kind from being served, and anybody can create it
whose kind has free fields. What is too deep in it is cut off, at the same place in all answers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import orjson

from webop.pacing import Once

if TYPE_CHECKING:
    from webop.client.failures import Attempt

logger = logging.getLogger(__name__)

_WRITABLE: Final = 254  # levels, for orjson
_KEPT: Final = 200  # of an object that has more
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)
_once = Once()


def decode(text: bytes, describe: Callable[[], Attempt]) -> Any:
    """Return the value of a JSON text; null stands for what is nested too deeply in an object.

    Args:
        text: an object, a list of objects, or an event of a watch.
        describe: returns what it is the answer to, for a warning.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
    """
    try:
        data = orjson.loads(text)
        if text.count(b"{") + text.count(b"[") > _WRITABLE:
            orjson.dumps(data)  # the quickest way to find out how deep it is
    except orjson.JSONDecodeError as exc:
        if "depth limit" not in str(exc):
            raise
    except orjson.JSONEncodeError:
        pass
    else:
        return data
    head = orjson.loads(_cut(text, 2))
    is_list = isinstance(head, dict) and isinstance(head.get("items"), list)
    is_event = isinstance(head, dict) and head.keys() == {"type", "object"}
    around = 2 if is_list else int(is_event)  # levels around an object
    attempt = describe()
    logger.log(
        _once.choose_level((attempt.verb, attempt.resource)),
        "The answer to '%s' has an object that is nested deeper than %d levels. What is deeper is "
        "ignored.",
        *(attempt, _KEPT),
    )
    return orjson.loads(_cut(text, _KEPT + around))


def _cut(text: bytes, limit: int) -> bytes:
    """Replace what is nested deeper than so many levels by null."""

    def keep() -> Iterator[bytes]:
        depth = start = 0
        for token in _TOKENS.finditer(text):
            kind = token[0]
            if kind in b"{[":
                depth += 1
                if depth == limit + 1:
                    yield text[start : token.start()]
                    yield b"null"
            elif kind in b"}]":
                if depth == limit + 1:
                    start = token.end()
                depth -= 1
        yield text[start:]

    return b"".join(keep())
