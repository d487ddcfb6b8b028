"""JSON of the API server, with too deeply nested values cut off.

An API server accepts objects of 10 000 levels, but orjson reads only 1024 and writes 254. One such
object in a list or a watch would make all objects of its kind unreadable, and users can create it
if the kind has free fields. The deeper values are cut off at the same level in all responses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import orjson

from webop.aio.backoff import Once
from webop.objects.json_text import LARGE, LEVELS, cut, load

if TYPE_CHECKING:
    from webop.client.http.failed_requests import Attempt

logger = logging.getLogger(__name__)

_WRITABLE: Final = 254  # levels, for orjson
_AROUND: Final = {"list": 2, "watch": 1}  # levels around an object, by the verb
_once = Once()
_thread = ThreadPoolExecutor(1, "webop-json")  # more would hold the event loop longer


async def decode(text: bytes, describe: Callable[[], Attempt]) -> Any:
    """Return the value of a JSON text, with null in place of values that are nested too deeply.

    Large texts are read in a thread, so that the event loop is not held for long. The value of
    nothing is None. ``describe`` returns the request, for a warning.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
    """
    if not text:
        return None
    if len(text) < LARGE:
        return _decode(text, describe)
    return await asyncio.get_running_loop().run_in_executor(_thread, _decode, text, describe)


def _decode(text: bytes, describe: Callable[[], Attempt]) -> Any:
    opened = text.count(b"{") + text.count(b"[")
    try:
        data = load(text)
        # Empty mappings and lists add no level for other values; managed fields have many.
        if opened <= LEVELS or opened - text.count(b"{}") - text.count(b"[]") < LEVELS:
            return data
        attempt = describe()
        wrapped = data
        for _ in range(_WRITABLE - LEVELS - _AROUND.get(attempt.verb, 0)):
            wrapped = [wrapped]
        orjson.dumps(wrapped)  # the quickest way to find out how deep it is
    except orjson.JSONDecodeError:
        if opened <= LEVELS:
            raise
        attempt = describe()
    except orjson.JSONEncodeError:
        pass
    else:
        return data
    data = wrapped = None  # not in memory beside the other
    data = load(cut(text, LEVELS + _AROUND.get(attempt.verb, 0)))  # raises if it is not JSON
    logger.log(
        _once.choose_level((attempt.verb, attempt.resource)),
        "The response to '%s' has an object that is nested deeper than %d levels. The deeper "
        "values are ignored.",
        *(attempt, LEVELS),
    )
    return data
