"""The newest states of objects in memory: whole while they are few, as text while many wait."""

from __future__ import annotations

import zlib
from typing import Any, Final

import orjson

from webop.objects.json_text import load
from webop.reactor.entry import Entry

_COMPRESSED: Final = 1000  # bytes; shorter texts are not compressed
_LIMIT: Final = 48_000_000  # bytes for all kinds; beyond, states are read again when needed


class Bodies:
    """The states of all objects of an operator, with a limit for those that are kept as text."""

    def __init__(self) -> None:
        self._bytes = 0

    def keep(self, obj: Entry, raw: dict[str, Any] | None) -> None:
        """Keep a state of an object instead of the present one; None to forget that."""
        if isinstance(obj.body, bytes):
            self._bytes -= len(obj.body)
        obj.body = raw

    def park(self, obj: Entry) -> None:
        """Keep only the text of a state, or nothing if that is too much.

        That of a deleted object is always kept: it cannot be read again.
        """
        if not isinstance(raw := obj.body, dict):
            return
        obj.body = None
        if self._bytes < _LIMIT or obj.is_gone:
            dumped = orjson.dumps(raw)
            # A copy, as the buffer of the original is larger than the text.
            is_long = len(dumped) > _COMPRESSED
            obj.body = zlib.compress(dumped, 1) if is_long else bytes(memoryview(dumped))
            self._bytes += len(obj.body)

    def load(self, obj: Entry) -> dict[str, Any] | None:
        """Return the state of an object, which is whole then; None if it must be read."""
        if isinstance(text := obj.body, bytes):
            self.keep(obj, load(text if text[0] == 0x7B else zlib.decompress(text)))
        return obj.body if isinstance(obj.body, dict) else None
