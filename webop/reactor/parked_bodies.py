"""Bodies of objects that wait: as text, compressed if it is long; beyond a limit, not even that."""

from __future__ import annotations

import zlib
from typing import Any, Final

import orjson

from webop.objects.json_text import load

_COMPRESSED: Final = 1000  # bytes; shorter texts are not compressed
_LIMIT: Final = 24_000_000  # bytes per kind; beyond, bodies are read again when needed


class ParkedBodies:
    """The texts that are kept instead of the bodies of one kind."""

    def __init__(self) -> None:
        self._bytes = 0

    def park(self, raw: Any, *, is_needed: bool = False) -> bytes:
        """Return a text to keep instead of a body; empty if too much is kept already.

        A body that is needed cannot be read again: its text is never empty.
        """
        if self._bytes >= _LIMIT and not is_needed:
            return b""
        dumped = orjson.dumps(raw)
        # A copy, as the buffer of the original is larger than the text.
        is_long = len(dumped) > _COMPRESSED
        text = zlib.compress(dumped, 1) if is_long else bytes(memoryview(dumped))
        self._bytes += len(text)
        return text

    def drop(self, text: bytes | None) -> None:
        """Record that a text is no longer kept."""
        self._bytes -= len(text or b"")

    def restore(self, text: bytes) -> dict[str, Any]:
        """Return the body that a text was made of; it must not be empty."""
        self.drop(text)
        raw: dict[str, Any] = load(text if text[0] == 0x7B else zlib.decompress(text))
        return raw
