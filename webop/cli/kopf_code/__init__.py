"""Read the files of an operator for Kopf: what must change, and what behaves differently."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """A statement about one line of a file."""

    path: Path
    line: int
    text: str
    must_change: bool = True
