"""Patterns by which API servers accept only what pydantic accepts, too. Pure.

API servers check formats more loosely than pydantic, so each gets a pattern. And they use RE2,
while pydantic uses the expressions of Rust: where a pattern means different texts in both, it is
written in another way, or refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_YEAR: Final = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_BYTE: Final = r"(25[0-5]|(2[0-4]|1\d|[1-9])?\d)"
_IPV4: Final = rf"({_BYTE}\.){{3}}{_BYTE}"
_HEX: Final = "[0-9A-Fa-f]"
FORMATS: Final = {
    "date": f"^{_YEAR}-[0-9]{{2}}-[0-9]{{2}}$",
    "date-time": f"^{_YEAR}-[0-9-]{{5}}[Tt][0-9:]{{8}}([.,][0-9]+)?"
    "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^[0-9A-Fa-f:]+({_IPV4})?$",
    "uuid": r"(?i)^([\da-f]{8}-([\da-f]{4}-){3}|[\da-f]{20})[\da-f]{12}$",
    **{
        f"uuid{version}": r"(?i)^([\da-f]{8}-[\da-f]{4}-V[\da-f]{3}-[89ab][\da-f]{3}-|"
        r"[\da-f]{12}V[\da-f]{3}[89ab][\da-f]{3})[\da-f]{12}$".replace("V", f"{version}")
        for version in range(1, 9)
    },
}

_PORT: Final = "([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_LABEL: Final = "[0-9A-Z_a-z]+(-[0-9A-Z_a-z]+)*"  # not "xn--…", of which some are wrong
_HOST: Final = rf"(({_LABEL}\.)*[A-Z_a-z][0-9A-Z_a-z]*(-[0-9A-Z_a-z]+)*\.?|{_IPV4})"
_USER: Final = f"([!$&-.0-;=A-Z_a-z~]|%{_HEX}{{2}})*@"
_FIRST: Final = f"([!$&-.0-;=?-Z_a-z~]|%{_HEX}{{2}})"
_TEXT: Final = f"([!$&-;=?-Z_a-z~]|%{_HEX}{{2}})*"
_HOSTED: Final = "[A-EG-Za-eg-z][0-9A-Za-z+.-]*|ftp"  # not "file"
_HOSTLESS: Final = "[A-EGI-VX-Za-egi-vx-z][0-9A-Za-z+.-]*"  # nor "http", "ws" …
_NEVER_HOSTLESS: Final = frozenset({"file", "ftp", "http", "https", "ws", "wss"})

# Beyond those of RE2. Python has a few more than Rust, and a class can choose its expressions.
_SPACES: Final = "\x0b\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SCRIPTS: Final = "Arabic|Cyrillic|Devanagari|Greek|Han|Hangul|Hebrew|Hiragana|Katakana|Latin|Thai"
_PLAIN: Final = rf"\\(?:[afnrtvs]|x{_HEX}{{2}}|x\{{{_HEX}+\}}|[^0-9A-Za-z<>])|\[:\^?\w+:\]"
_CLASS: Final = rf"{_PLAIN}|\\(?:[dw]|p[LMNPSZC]|p\{{(?:[LMNPSZ][a-z]?|C[cfo]?|{_SCRIPTS})\}})"
_IN_SET: Final = r"(?!&&|--|~~)[^\[\]\\]"
_COUNT: Final = "(?:1000|[0-9]{1,3})"
_TOKEN: Final = re.compile(
    rf"\[(?!\^)\]?(?:{_CLASS}|{_IN_SET})*\]|\[\^\]?(?:{_PLAIN}|{_IN_SET})*\]|{_CLASS}|\\[AzS]"
    r"|\((?:\?(?:[imsU]*(?:-[imsU]+)?[:)]|P?<[A-Z_a-z][0-9A-Z_a-z]*>))?(?!\?)"
    rf"|(?:[*+?]|\{{{_COUNT}(?:,{_COUNT}?)?\}})\??(?![*+?{{])|[^\\\[(*+?{{]|(?P<unlike>.{{1,5}})",
    re.DOTALL,
)


def build_url(schemes: Sequence[str] | None, *, needs_host: bool) -> str:
    """Return the pattern of URLs, of some schemes or of all."""
    hosted, hostless = _HOSTED, _HOSTLESS
    if schemes is not None:
        hosted = "|".join(re.escape(name) for name in schemes if name != "file")
        hostless = "|".join(re.escape(name) for name in schemes if name not in _NEVER_HOSTLESS)
    forms = [f"(?i:{hosted})://({_USER})?{_HOST}(:{_PORT}?)?([/?]{_TEXT})?"] if hosted else []
    if hostless and not needs_host:
        forms.append(f"(?i:{hostless}):(/|///)?({_FIRST}{_TEXT})?")
    if not needs_host and (schemes is None or "file" in schemes):
        forms.append(f"(?i:file):///({_FIRST}{_TEXT})?")
    return f"^({'|'.join(forms)})(#{_TEXT})?$"


def adapt_pattern(pattern: str) -> str:
    """Return a pattern as API servers understand it, or raise a ValueError with what to write."""
    return _TOKEN.sub(_adapt_token, pattern)


def _adapt_token(token: re.Match[str]) -> str:
    text = r"[^\s]" if token[0] == r"\S" else token[0]
    if token["unlike"]:
        raise ValueError(
            f"API servers understand {text!r} differently, or not at all. Write the characters: "
            r"[^0-9] for \D, [^0-9A-Za-z_] for \W, (^|[^0-9A-Za-z_]) for \b. Use no sets in sets, "
            "no lookarounds, no flags other than i, m, s, U, and at most 1000 repetitions"
        )
    return f"{text[:-1]}{_SPACES}]" if text.startswith("[^") and r"\s" in text else text
