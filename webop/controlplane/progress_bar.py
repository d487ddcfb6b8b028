"""How a long download or build tells how far it is."""

from __future__ import annotations

import time
from typing import Protocol, TextIO

# On a terminal one line is rewritten; elsewhere (CI) a new line is written now and then.
_TERMINAL_INTERVAL = 0.2
_PLAIN_INTERVAL = 10.0


class Progress(Protocol):
    """Gets notes and steps from the sources of binaries; never raises."""

    def note(self, text: str) -> None:
        """Tell something once, e.g. that a source cannot be reached."""

    def step(self, what: str, done: int, total: int, unit: str) -> None:
        """Tell how far something is; a total of 0 means that it is not known.

        It is called often, also when nothing has changed but the time.
        """

    def finish(self) -> None:
        """Tell that nothing more is coming for now."""


class StreamProgress:
    """Writes notes and steps to a text stream, with the time that each step has taken so far."""

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
        """Write a line."""
        self.finish()
        self._write(f"{text}\n")

    def step(self, what: str, done: int, total: int, unit: str) -> None:
        """Write how far it is, unless that was done a moment ago."""
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
        """Write the last known step, if it was held back, and end its line."""
        if self._what:
            if self._latest != self._shown:
                self._show()
            if self._is_terminal:
                self._write("\n")
        self._what = self._latest = self._shown = ""

    def _show(self) -> None:
        # "\x1b[K" clears what a longer line has left at the end.
        self._write(f"\r{self._latest}\x1b[K" if self._is_terminal else f"{self._latest}\n")
        self._shown = self._latest

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a closed stream must not stop a build
            return


def format_time(seconds: float) -> str:
    """Write a duration as minutes and seconds, e.g. "3:07"."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def _format_amount(done: int, total: int, unit: str) -> str:
    if unit == "bytes":
        amount = f"{done / 1e6:.0f}"
        return f"{amount} of {total / 1e6:.0f} MB" if total else f"{amount} MB"
    return f"{done} of {total} {unit}" if total else f"{done} {unit}"
