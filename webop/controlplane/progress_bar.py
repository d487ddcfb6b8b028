"""The progress of long downloads and builds, shown on a terminal or in a log."""

from __future__ import annotations

import contextlib
import time
from typing import TextIO

# A terminal shows one line that is rewritten; a log (CI) gets a line at intervals.
_TERMINAL_INTERVAL = 0.2
_PLAIN_INTERVAL = 10.0


class Progress:
    """Writes notes and steps to a text stream, with the time that each step has taken so far.

    It never raises: a closed stream must not stop a build.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._interval = _TERMINAL_INTERVAL if self._is_terminal else _PLAIN_INTERVAL
        self._what = ""
        self._begun = 0.0
        self._written = 0.0
        self._latest = ""
        self._shown = ""

    def note(self, text: str) -> None:
        """Write a line, e.g. that a source cannot be reached."""
        self.finish()
        self._write(f"{text}\n")

    def step(self, what: str, done: int, total: int, unit: str) -> None:
        """Write the progress of a step, unless the last line is too recent.

        A total of 0 means "unknown". Called often, also when only the time has changed.
        """
        now = time.monotonic()
        if what != self._what:
            self.finish()
            self._what, self._begun, self._written = what, now, float("-inf")
        self._latest = (
            f"{what}: {_format_amount(done, total, unit)}, {format_time(now - self._begun)}"
        )
        if now - self._written >= self._interval:
            self._written = now
            self._show()

    def finish(self) -> None:
        """Write the latest progress, if it is not shown yet, and end the line."""
        if self._what:
            if self._latest != self._shown:
                self._show()
            if self._is_terminal:
                self._write("\n")
        self._what = self._latest = self._shown = ""

    def _show(self) -> None:
        # "\x1b[K" clears the rest of a longer previous line.
        self._write(f"\r{self._latest}\x1b[K" if self._is_terminal else f"{self._latest}\n")
        self._shown = self._latest

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def format_time(seconds: float) -> str:
    """Return a duration as minutes and seconds, e.g. "3:07"."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def _format_amount(done: int, total: int, unit: str) -> str:
    if unit == "bytes":
        amount = f"{done / 1e6:.0f}"
        return f"{amount} of {total / 1e6:.0f} MB" if total else f"{amount} MB"
    return f"{done} of {total} {unit}" if total else f"{done} {unit}"
