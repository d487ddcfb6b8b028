"""Analyse all files of an operator: code (:mod:`.code`), dependencies and images (:mod:`.pins`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from webop.cli.migration.code import CodeReader
from webop.cli.migration.findings import Finding, list_files
from webop.cli.migration.pins import read_pins


def examine(paths: Iterable[Path]) -> tuple[list[Finding], set[Path]]:
    """Return the findings, file by file, and the files that import Kopf."""
    reader = CodeReader()
    for path in list_files(paths):
        try:
            if path.suffix == ".py":
                reader.read(path)
            reader.findings += read_pins(path)
        except OSError as exc:
            text = f"Cannot read this file: {exc.strerror}"
            reader.findings.append(Finding(path, 1, text, must_change=False))
    if reader.importing and not reader.sets_event_loggers:
        text = (
            "webop posts log messages of handlers as Events; Kopf does so only with "
            "settings.posting.loggers. Set settings.posting.loggers = False to disable it."
        )
        reader.findings.append(Finding(Path(), 0, text, must_change=False))
    return reader.findings, reader.importing
