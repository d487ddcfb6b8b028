"""Which namespaces are served: patterns of names (chapter "Scopes"). Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable
from typing import TypeGuard

NamespacePattern = str | re.Pattern[str]


def is_exact(pattern: NamespacePattern) -> TypeGuard[str]:
    """Return whether a pattern is just the name of one namespace."""
    return isinstance(pattern, str) and not set(pattern) & set("*?!,")


def matches_pattern(name: str, pattern: NamespacePattern) -> bool:
    """Return whether a pattern matches a namespace.

    A pattern is a comma-separated list of globs, where ``!`` negates: the rightmost glob that
    matches decides, but the name must also match the first one. A regular expression must match
    the whole name.
    """
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    globs = [glob.strip() for glob in pattern.split(",")]
    if globs[0].startswith("!"):
        globs.insert(0, "*")
    hits = [glob for glob in globs if fnmatch.fnmatchcase(name, glob.lstrip("!"))]
    return hits[:1] == globs[:1] and not hits[-1].startswith("!")


def select_namespaces(
    names: Iterable[str], patterns: Collection[NamespacePattern]
) -> frozenset[str]:
    """Return the names that any of the patterns matches."""
    return frozenset(
        name for name in names if any(matches_pattern(name, pattern) for pattern in patterns)
    )
