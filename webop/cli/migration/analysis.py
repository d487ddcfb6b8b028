"""Analyse all files of an operator: its code, and the pins of its dependencies and images."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from webop.cli.handler_files import list_files
from webop.cli.migration.code import CodeReader
from webop.cli.migration.dependency_pins import read_pins
from webop.cli.migration.findings import Finding


def examine(paths: Iterable[Path]) -> tuple[list[Finding], set[Path]]:
    """Return the findings, file by file, and the files that import Kopf.

    Only regular files are read: broken links and pipes are skipped.
    """
    reader = CodeReader()
    files = chain.from_iterable((path,) if path.is_file() else list_files(path) for path in paths)
    for path in filter(Path.is_file, files):
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
