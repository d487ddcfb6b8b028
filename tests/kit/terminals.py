"""A shell at a pseudo-terminal, for tests that type what the pages show."""

from __future__ import annotations

import codecs
import fcntl
import os
import queue
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

_PATIENCE = 600.0  # seconds; for one line
_ROWS = 50
_PROMPT = re.compile("\x1e(\\d+)\x1e")
_ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
# Ctrl-C reaches the command only if the pseudo-terminal is the one that controls the shell.
_SHELL = """\
import fcntl, os, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
"""


class Terminal:
    def __init__(self, folder: Path, environment: dict[str, str], *, columns: int = 100) -> None:
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        modes = termios.tcgetattr(theirs)
        modes[3] &= ~termios.ECHO  # only what commands print is read
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        prompts = {"PS1": "\x1e$?\x1e", "PS2": "", "TERM": "xterm-256color"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SHELL],
            cwd=folder,
            env={**environment, **prompts},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._terminal = ours
        self._printed: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._output = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._code: int | None = None
        self._wait("")
        self.type("set +H")

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:  # the shell has ended (Linux)
                data = b""
            self._printed.put(data)
            if not data:
                return

    @property
    def output(self) -> str:
        """What the last line has printed so far, with the escape sequences of colours."""
        self._take()
        return self._output

    @property
    def text(self) -> str:
        """What the last line has printed so far, as it appears on the screen."""
        lines = _ESCAPES.sub("", self.output).replace("\r\n", "\n").split("\n")
        return "\n".join(line.rpartition("\r")[2] for line in lines)

    @property
    def is_free(self) -> bool:
        self._take()
        return self._code is not None

    def type(self, line: str, *, until: str = "") -> int | None:
        """Type a line; wait until it ends, or prints a text. Return its exit code if it ended."""
        assert self.is_free, f"a command runs in this terminal: {self.text}"
        self._output, self._code = "", None
        os.write(self._terminal, f"{line}\n".encode())
        return self._wait(until)

    def interrupt(self) -> int | None:
        """Press Ctrl-C; return the exit code of the command that ran."""
        os.write(self._terminal, b"\x03")
        return self._wait("")

    def close(self) -> None:
        """Close the window; the shell and its commands end."""
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=10)
        os.close(self._terminal)

    def _wait(self, until: str) -> int | None:
        deadline = time.monotonic() + _PATIENCE
        while not self.is_free and not (until and until in self.text):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{until or 'the end'} is not printed:\n{self.text}")
            time.sleep(0.02)
        return self._code

    def _take(self) -> None:
        """Take over what was printed meanwhile."""
        while not self._printed.empty():
            self._output += self._decoder.decode(self._printed.get())
        if prompt := _PROMPT.search(self._output):
            self._output = self._output[: prompt.start()]
            self._code = int(prompt[1])
