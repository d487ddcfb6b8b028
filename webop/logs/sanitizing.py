"""Make foreign text safe for log lines, Kubernetes Events and errors.

Names, paths and messages come from strangers. A line break in them could forge a log line; an
escape sequence or an override of the writing direction could change what a terminal shows. Error
messages of other programs can contain passwords and tokens.
"""

from __future__ import annotations

import re

# C0, DEL and C1; marks of direction, separators of lines and paragraphs; halves of characters.
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_HIDING_LIMIT = 10_000  # characters
_SECRETS = (
    re.compile(r"(://)[^/\s]{1,500}(?=@)"),  # passwords can have "@", too
    # Quotes can be escaped: programs quote the answers of others.
    re.compile(
        r"""((?:token|password|passwd|secret|[_-]key|apikey|-data)[\\"']{0,4}\s{0,9}"""
        r"""(?:[=:]|%3d)\s{0,9}\\?(["'])?)(?(2)(?:(?!\2).)+|[^\s",}]+)""",
        re.IGNORECASE,
    ),
    re.compile(r"(--[\w-]{0,40}(?:token|password|secret|key)\s{1,9})\S+", re.IGNORECASE),
    re.compile(r"(\b(?:bearer|basic|authorization: \w{1,20})\s{1,9})\S+", re.IGNORECASE),
    # Long words as machines make them: of all kinds of characters, or hexadecimal.
    re.compile(
        r"""((?:^|[\s"'=:,(]|(?<=\w)\.))(?=\S{0,300}?[a-z])(?=\S{0,300}?[A-Z])(?=\S{0,300}?\d)"""
        r"[A-Za-z0-9+_-][A-Za-z0-9+/=_-]{19,}"
    ),
    re.compile(r"(\b)[0-9a-f]{32,}"),
)


def escape(text: str, *, keep: str = "") -> str:
    r"""Replace control characters with escapes, such as ``\n`` and ``\u001b``, as JSON does.

    The meaning of a JSON document stays the same.
    """
    if text.isprintable():  # as most texts are
        return text
    return _CONTROLS.sub(
        lambda found: (
            found[0] if found[0] in keep else _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
        ),
        text,
    )


def describe_line(file: str, number: int | None, code: str | None = None) -> str:
    """Return a line of a file as text, for messages; with its code."""
    return escape(f"({file}, line {number}{f': {code.strip()}' if code else ''})")


def hide_secrets(text: str, known: str | None = None) -> str:
    """Hide what looks like a password, a token or a key in the output of another program.

    A short secret in a sentence, such as "hunter2 is wrong", looks like any other word: it is
    hidden only if it is known.
    """
    text = text[:_HIDING_LIMIT]
    if known:
        text = text.replace(known, "***")
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text
