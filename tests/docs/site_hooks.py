"""Hooks of mkdocs (see ``mkdocs.yml``): what the search finds, and where names in tables break."""

from __future__ import annotations

import re
from typing import Any

# Generated pages that repeat what other pages say; users reach them by links.
_NOT_SEARCHED = frozenset({"messages.md", "parity.md"})
# About webop's development: users rarely look for these.
_RANKED_LOW = frozenset(
    {"bench.md", "contributing.md", "costs.md", "crds_wild.md", "simulation.md", "wild.md"}
)

_CELL_CODE = re.compile(r"(?<=<td><code>)[^<]+(?=</code>)|(?<=<code>)[^<\s]{24,}(?=</code>)")
_BREAK = re.compile(r"(?<=[A-Za-z)])([._/=])(?=[A-Za-z])")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Keep a page out of the search, or rank it low."""
    path = page.file.src_uri
    if path in _NOT_SEARCHED:
        page.meta.setdefault("search", {"exclude": True})
    elif path in _RANKED_LOW or path.startswith("decisions/"):
        page.meta.setdefault("search", {"boost": 0.1})
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Let long names break after dots, underscores and slashes, but not in the middle of words."""
    return _CELL_CODE.sub(lambda found: _BREAK.sub(r"\1<wbr>", found[0]), html)
