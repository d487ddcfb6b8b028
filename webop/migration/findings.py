"""What there is to say about an operator, and which of its files are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


class Finding(NamedTuple):
    """One place in the files."""

    path: Path
    line: int
    text: str
    must_change: bool = True


def list_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and those in folders; no hidden ones there, and no virtual environments.

    What is no plain file is left out: links to nowhere, pipes.
    """
    for path in paths:
        if path.is_file():
            yield path
        for folder, inner, files in os.walk(path):
            inner[:] = sorted(
                name
                for name in inner
                if not name.startswith(".")
                and name not in _SKIPPED
                and not Path(folder, name, "pyvenv.cfg").exists()
            )
            visible = (Path(folder, name) for name in sorted(files) if not name.startswith("."))
            yield from filter(Path.is_file, visible)
