"""Log lines for a person at a terminal: short, with colours.

``webop run`` uses them if nobody has chosen a format, and if the standard error is a terminal.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TextIO

from webop.logs.formats import TextFormatter, build_prefix
from webop.logs.sanitizing import escape

_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def accepts_colours(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a stream shows colours, and its user wants them (https://no-color.org)."""
    is_plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return stream.isatty() and not is_plain


class TerminalFormatter(TextFormatter):
    """Lines with the time of the day, the level, the object, and the message.

    Like :class:`TextFormatter`, it shows control characters of messages as escapes: only the
    formatter's own colours reach the terminal.
    """

    def __init__(self, *, has_prefix: bool, has_colours: bool) -> None:
        super().__init__("%(message)s", has_prefix=has_prefix)
        self._has_colours = has_colours

    def build_line(self, record: logging.LogRecord) -> str:
        """Return the line without the traceback."""
        prefix = build_prefix(record) if self._has_prefix else ""
        parts = (
            self.paint(time.strftime("%H:%M:%S", self.converter(record.created)), "2"),
            self.paint(f"{record.levelname:7}", _COLOURS.get(record.levelname, "0")),
            self.paint(escape(prefix.rstrip()), "36"),
            escape(record.message),
        )
        return " ".join(filter(None, parts))

    def paint(self, text: str, colour: str) -> str:
        """Return a text in a colour, if colours are shown (ECMA-48, "Select Graphic Rendition")."""
        return f"\x1b[{colour}m{text}\x1b[0m" if text and self._has_colours else text


def find_formatter() -> TerminalFormatter | None:
    """Return the formatter of the terminal; None if there is none, or only errors are logged."""
    root = logging.getLogger()
    found = (handler.formatter for handler in root.handlers if root.isEnabledFor(logging.INFO))
    return next((each for each in found if isinstance(each, TerminalFormatter)), None)
