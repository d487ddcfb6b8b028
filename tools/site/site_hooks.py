"""Hooks of mkdocs (see ``mkdocs.yml``): for the search, the home page, and long names in tables."""

from __future__ import annotations

import re
from typing import Any

# About webop's development: users rarely look for these. Pages that the search must not find at all
# say so themselves (``search: exclude: true``).
_RANKED_LOW = frozenset(
    {"bench.md", "project/changelog.md", "project/contributing.md", "costs.md", "simulation.md"}
)

_CELL_CODE = re.compile(r"(?<=<td><code>)[^<]+(?=</code>)|(?<=<code>)[^<\s]{24,}(?=</code>)")
_BREAK = re.compile(r"(?<=[A-Za-z)])([._/=])(?=[A-Za-z])")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rank a page low in the search; show the home page without sidebars."""
    path = page.file.src_uri
    if path == "index.md":
        page.meta.setdefault("hide", ["navigation", "toc"])
    if path in _RANKED_LOW or path.startswith("decisions/"):
        page.meta.setdefault("search", {"boost": 0.1})
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Let long names break after dots, underscores and slashes, but not in the middle of words."""
    return _CELL_CODE.sub(lambda found: _BREAK.sub(r"\1<wbr>", found[0]), html)
