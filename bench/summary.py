"""Draws the table of figures in docs/project/measured.md: ``python -m bench.summary``.

The page has the figures, so the picture cannot differ from it. A row is drawn if it has a figure in
ms or MB for at least two sides, and all sides did the same work. Each row
has its own scale, which begins at zero.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import NamedTuple

_DOCS = Path(__file__).parent.parent / "docs"
PAGE = _DOCS / "project" / "measured.md"
PICTURE = _DOCS / "images" / "bench.svg"

_SIDES = ("webop", "kopf", "Go")
_UNITS = ("ms", "MB")
_FIGURE = re.compile(rf"([\d ]+(?:\.\d+)?) ({'|'.join(_UNITS)})")
_WIDTH, _LEFT, _BAR, _GAP = 480, 64, 300, 16  # of the picture, of names, of the longest bar
_STYLE = """<style>
    text { font: 13px system-ui, sans-serif; fill: #1f2328; }
    .name { font-size: 14px; font-weight: 600; }
    .ground { fill: #ffffff; }
    .webop { fill: #0f766e; }
    .peer { fill: #afb8c1; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .ground { fill: #0d1117; }
      .webop { fill: #2dd4bf; }
      .peer { fill: #57606a; }
    }
  </style>"""


class Row(NamedTuple):
    """A row of the table: its title, and the figures by side."""

    title: str
    figures: dict[str, str]


def read_rows(page: str) -> list[Row]:
    """Return the rows of the table that can be drawn.

    Rows of the same scenario follow the one that names it, so they get its name.

    Raises:
        LookupError: the page has no such table.
    """
    header = f"| work | {' | '.join(_SIDES)} | run of |"
    if header not in page:
        raise LookupError(f"{PAGE.name} must have a table that begins with {header!r}.")
    rows, scenario = [], ""
    for line in page.partition(header)[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        title, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if title.startswith("`"):
            scenario, _, title = title.replace("`", "").partition(": ")
        pairs = zip(_SIDES, cells, strict=False)
        figures = {side: cell for side, cell in pairs if _FIGURE.fullmatch(cell)}
        if len(figures) > 1 and "Go:" not in title:
            rows.append(Row(f"{scenario}: {title.partition(', ')[0]}", figures))
    return rows


def build_summary(rows: list[Row]) -> str:
    """Return the picture: bars for each row, with their figures as text."""
    parts: list[str] = []
    y = 12
    for row in rows:
        y += 16
        parts.append(f'<text class="name" x="16" y="{y}">{escape(row.title)}</text>')
        values = {side: _read(text) for side, text in row.figures.items()}
        for side, text in row.figures.items():
            width = max(1, round(_BAR * values[side] / max(values.values())))
            kind = "webop" if side == "webop" else "peer"
            y += 20
            parts += [
                f'<text x="16" y="{y}">{side}</text>',
                f'<rect class="{kind}" x="{_LEFT}" y="{y - 12}" width="{width}" height="15"/>',
                f'<text x="{_LEFT + width + 6}" y="{y}">{text}</text>',
            ]
        y += _GAP
    body = "".join(f"  {part}\n" for part in parts)
    about = "; ".join(
        f"{row.title}: " + ", ".join(f"{side} {text}" for side, text in row.figures.items())
        for row in rows
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" '
        f'height="{y}" role="img" aria-labelledby="title desc">\n'
        f'  <title id="title">CPU and memory of webop, kopf and a Go controller</title>\n'
        f'  <desc id="desc">{escape(about)}.</desc>\n'
        f"  {_STYLE}\n"
        f'  <rect class="ground" width="{_WIDTH}" height="{y}"/>\n{body}</svg>\n'
    )


def _read(figure: str) -> float:
    return float(figure.rpartition(" ")[0].replace(" ", ""))


def main() -> None:
    """Write the picture."""
    rows = read_rows(PAGE.read_text(encoding="utf-8"))
    PICTURE.write_text(build_summary(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
