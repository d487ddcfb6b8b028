"""Hooks of mkdocs (see ``mkdocs.yml``): rank pages about the project low in the search."""

from __future__ import annotations

from typing import Any

_PROJECT = frozenset(
    {"bench.md", "contributing.md", "costs.md", "parity.md", "simulation.md", "wild.md"}
)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Set the search rank of a page; users rarely look for pages about webop's development."""
    if page.file.src_uri in _PROJECT:
        page.meta.setdefault("search", {"boost": 0.1})
    return markdown
