"""Reading JSON text that others have written: large texts quickly, and too deep ones at all.

An API server accepts objects of 10 000 levels, but orjson reads only 1024 and writes 254.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any, Final

import orjson

LARGE: Final = 65_536  # bytes: such a text takes long, and should be read in a thread

LEVELS: Final = 200  # of an object; deeper values are ignored

SPARE: Final = 4  # levels

# A run of brackets, and the text before it, with the lists and objects of few levels in it, which
# takes a fourth of the time. Possessive, because texts must be read quickly.
_TEXT: Final = rb'[^][{}"]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^][{}"]*+)*+'
_FLAT = _TEXT
for _ in range(SPARE):
    _FLAT = rb"%b(?:[\[{]%b[\]}]%b)*+" % (_TEXT, _FLAT, _TEXT)
_BRACKETS: Final = re.compile(_FLAT + rb"([\[{]++|[\]}]++)", re.DOTALL)


def load(text: bytes | str) -> Any:
    """Return the value of a JSON text.

    The garbage collector pauses for large ones: it would look at all new values again and again,
    which takes several times as long as to read them.
    """
    if len(text) < LARGE:
        return orjson.loads(text)
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(text)
    finally:
        if is_enabled:
            gc.enable()


def cut(text: bytes, limit: int, mark: Callable[[bytes], bytes] = lambda _: b"null") -> bytes:
    """Return a JSON text with marks in place of values that are nested deeper than the limit.

    Up to ``SPARE`` more levels remain, if nothing is nested in them. The marks are JSON.
    """
    kept: list[bytes] = []
    depth = start = end = begin = 0
    while found := _BRACKETS.match(text, end):  # from here on only
        place, end = found.span(1)
        count = end - place
        if text[place] in b"{[":
            if depth <= limit < depth + count:
                begin = place + limit - depth
                kept.append(text[start:begin])
            depth += count
        else:
            depth -= count
            if depth <= limit < depth + count:
                start = end - (limit - depth)
                kept.append(mark(text[begin:start]))
    return b"".join((*kept, text[start:]))
