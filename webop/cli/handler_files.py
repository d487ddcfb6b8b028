"""The files of users' code: those of a folder, without hidden ones and libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


def list_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those in it, in order; skip virtual environments."""
    for place, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name[0] != "." and name not in _SKIPPED)
        if "pyvenv.cfg" in files:
            names.clear()
            continue
        yield from (Path(place, file) for file in sorted(files) if file[0] != ".")
