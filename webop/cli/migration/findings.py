"""The findings about an operator, and the choice of files to read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


class Finding(NamedTuple):
    """A statement about one line of a file."""

    path: Path
    line: int
    text: str
    must_change: bool = True


def list_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and those in folders; skip hidden files there, and virtual environments.

    Only regular files count: broken links and pipes are skipped.
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
