"""Reads all files of an operator."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from webop.migration.code import CodeReader
from webop.migration.findings import Finding, list_files
from webop.migration.pins import read_pins


def examine(paths: Iterable[Path]) -> tuple[list[Finding], set[Path]]:
    """Return what there is to say, file by file, and the files that import Kopf."""
    reader = CodeReader()
    for path in list_files(paths):
        try:
            if path.suffix == ".py":
                reader.read(path)
            reader.findings += read_pins(path)
        except OSError as exc:
            text = f"This cannot be read: {exc.strerror}"
            reader.findings.append(Finding(path, 1, text, must_change=False))
    if reader.importing and not reader.sets_event_loggers:
        text = (
            "Messages of handlers become Events, in Kopf only with settings.posting.loggers: "
            "settings.posting.loggers = False ends it."
        )
        reader.findings.append(Finding(Path(), 0, text, must_change=False))
    return reader.findings, reader.importing
