"""Hooks of mkdocs (see ``mkdocs.yml``): generated pages, the home page, long names in tables."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from tools.site.messages import build_page

_RANKED_LOW = frozenset({"project/changelog.md"})

_ROOT = Path(__file__).parents[2]
_README = re.compile(r"<!-- README: ([\w ]+) -->")
_CELL_CODE = re.compile(r"(?<=<td><code>)[^<]+(?=</code>)|(?<=<code>)[^<\s]{24,}(?=</code>)")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_TITLE = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td(?=[ >])(?=[^>]*>.)", re.DOTALL)
_FEW = 3  # columns; with two, the second one needs no title
_BREAK = re.compile(r"(?<=[A-Za-z)])([._/=])(?=[A-Za-z])")


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Add the page of messages, which is not in the repository."""
    mkdocs = importlib.import_module("mkdocs.structure.files")  # which the tests do not have
    files.append(mkdocs.File.generated(config, "reference/messages.md", content=build_page()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rank the changelog low in the search; put parts of the README on the home page."""
    path = page.file.src_uri
    if path == "index.md":
        page.meta.setdefault("hide", ["navigation", "toc"])
        markdown = _README.sub(lambda found: read_parts(found[1].split()), markdown)
    if path in _RANKED_LOW:
        page.meta.setdefault("search", {"boost": 0.1})
    return markdown


def read_parts(names: list[str]) -> str:
    """Return parts of the README, with links from the folder of the pages."""
    text = (_ROOT / "README.md").read_text(encoding="utf-8")
    parts = [text.partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0] for name in names]
    assert all(parts), names
    return re.sub(r"(?<=\]\()docs/|(?<=src=\")docs/", "", "\n".join(parts))


def on_page_content(html: str, **_: Any) -> str:
    """Let long names break after dots, underscores and slashes; name the columns in the cells."""
    html = _CELL_CODE.sub(lambda found: _BREAK.sub(r"\1<wbr>", found[0]), html)
    return _TABLE.sub(lambda found: name_cells(found[0]), html)


def name_cells(table: str) -> str:
    """Write the titles of columns into the cells: on a phone, there is no head of the table."""
    titles = [re.sub(r"<[^>]+>", "", title).strip() for title in _TITLE.findall(table)]
    if len(titles) < _FEW:
        return table

    def name_row(row: re.Match[str]) -> str:
        names = iter(["", *titles[1:]])

        def name_cell(cell: re.Match[str]) -> str:
            name = next(names, "")
            return f'<td data-title="{name}"' if name else cell[0]

        return _CELL.sub(name_cell, row[0])

    return _ROW.sub(name_row, table)
