"""Control characters in text that people read: in log lines, Kubernetes Events, errors.

Names, paths and messages come from strangers. A line break in them would forge a log line; an
escape sequence or an override of the writing direction would rewrite what a terminal shows.
"""

from __future__ import annotations

import re

# C0, DEL and C1; marks of direction, separators of lines and paragraphs; halves of characters.
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escape(text: str, *, keep: str = "") -> str:
    r"""Replace control characters with escapes, such as ``\n`` and ``\u001b``, as JSON does.

    Args:
        text: what to show; also a JSON document, which means the same afterwards.
        keep: control characters that may stay.
    """
    if text.isprintable():  # as most texts are
        return text
    return _CONTROLS.sub(
        lambda found: found[0] if found[0] in keep else _escape_one(found[0]), text
    )


def _escape_one(character: str) -> str:
    return _SHORT.get(character) or f"\\u{ord(character):04x}"
