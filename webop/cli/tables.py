"""Tables of text with aligned columns, for the commands that list something."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

import click

_GAP = 2
_NARROWEST = 10


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows; they fit into the width of the terminal, if there is one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo(build_table(rows, width))


def build_table(rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return rows as lines with aligned columns; wrap cells to fit into the width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        available = width - _GAP * (len(widths) - 1)
        while sum(widths) > available and (widest := max(widths)) > _NARROWEST:
            widths[widths.index(widest)] -= 1
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
            lines.append((" " * _GAP).join(padded).rstrip())
    return "\n".join(lines)
