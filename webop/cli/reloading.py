"""``webop run --reload``: run the command in a child process, and in a new one after a change.

Flow: a file changes → a new child imports the handlers → it reports success → the old child shuts
down as at Ctrl-C → the new one starts. If the import fails, the new child exits, and the old one
continues. For a moment two children have imported handlers, but only one runs an operator.

Each child has a socket to its parent. When the parent closes it or dies, the child shuts down. No
signal is needed (a terminal may already have sent one), and no child outlives its parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from webop.cli.handler_files import list_files
from webop.identities import is_in_pod

logger = logging.getLogger(__name__)

_VARIABLE = "WEBOP_RELOADED_BY"  # the file descriptor of the child's socket
_PAUSE = 0.25  # seconds between two scans of the files
_SHARE = 10  # scans take a tenth of the time at most
_SHUTDOWN_TIMEOUT = 10  # seconds; longer than an operator waits for daemons and handlers


def accept_reload() -> socket.socket | None:
    """Return the socket to the parent, if this process is a child of ``--reload``."""
    number = os.environ.pop(_VARIABLE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return socket.socket(fileno=int(number))


def wait_for_turn(link: socket.socket) -> threading.Event:
    """Report that the handlers are imported, and wait until the old operator has shut down.

    Returns:
        An event that is set when this operator must shut down.

    Raises:
        SystemExit: the parent has closed the socket.
    """
    link.sendall(b"+")
    if not link.recv(1):
        sys.exit(0)
    stop = threading.Event()

    def wait() -> None:
        link.recv(1)
        stop.set()

    threading.Thread(target=wait, name="webop-reload", daemon=True).start()
    return stop


class _Child:
    """A child process that runs the same command as this process."""

    def __init__(self) -> None:
        self._link, other = socket.socketpair()
        self._link.setblocking(False)
        with other:
            # Python compares .pyc files by seconds: a second save within one would be missed.
            variables = {_VARIABLE: str(other.fileno()), "PYTHONDONTWRITEBYTECODE": "1"}
            self.process = subprocess.Popen(  # noqa: S603  the user's own command
                [sys.executable, *sys.orig_argv[1:]],
                pass_fds=[other.fileno()],
                env={**os.environ, **variables},
            )

    @property
    def is_loaded(self) -> bool:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            return bool(self._link.recv(1))
        return False

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def begin(self) -> None:
        with contextlib.suppress(ConnectionError):  # it has exited; the next loop notices
            self._link.sendall(b"+")

    def stop(self, timeout: float | None = None) -> int:
        """Stop it gracefully; return its exit code as a shell reports it.

        Kill it after the timeout in seconds: its threads may run for ever.
        """
        self._link.close()
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            logger.warning(
                "Killing the old operator: it did not shut down within %d s. Look for threads "
                "that do not end.",
                timeout,
            )
            self.process.kill()
            code = self.process.wait()
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        self._link.close()
        self.process.kill()
        self.process.wait()


class Supervisor:
    """Runs the command of this process in children until a signal comes.

    Args:
        folders: the folders to scan for Python files, with all folders below.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = sorted({folder.resolve() for folder in folders})
        self._is_stopping = False
        self._running: _Child | None = None
        self._loading: _Child | None = None
        self._code = 0

    def run(self) -> int:
        """Run until a signal comes; return the exit code of the last child."""
        if is_in_pod():
            logger.warning("--reload is for development. In a pod, replace the image instead.")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle_signal)
        loaded = seen = _scan(self._folders)
        self._loading = _Child()
        while True:
            started = time.monotonic()
            files = _scan(self._folders)
            time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - started)))
            if self._is_stopping:
                break  # the child has got the same Ctrl-C, and may already have exited
            if files != seen:
                changed = sorted(name for name, _ in {*files.items()} ^ {*seen.items()})
                logger.info("%s has changed. Loading the handlers.", os.path.relpath(changed[0]))
                seen = files
            elif files != loaded:  # no change since the last scan: all files are written
                loaded = files
                self._drop()
                self._loading = _Child()
            else:
                self._check_children()
        self._drop()
        return self._code if self._running is None else self._running.stop()

    def _check_children(self) -> None:
        """Switch to the new child if it is ready; report children that have exited."""
        if self._loading is not None and self._loading.is_loaded:
            if self._running is not None:
                self._running.stop(_SHUTDOWN_TIMEOUT)
            self._running, self._loading = self._loading, None
            if not self._is_stopping:
                self._running.begin()
        elif self._loading is not None and self._loading.has_ended:
            effect = "The old handlers keep running" if self._running else "No operator runs"
            logger.error("Cannot load the handlers. %s until a file changes.", effect)
            self._code = self._loading.process.returncode
            self._drop()
        elif self._running is not None and self._running.has_ended:
            self._code = self._running.stop()
            self._running = None
            text = "The operator exited with code %d. It starts again when a file changes."
            logger.error(text, self._code)

    def _drop(self) -> None:
        if self._loading is not None:
            self._loading.kill()
            self._loading = None

    def _handle_signal(self, number: int, _: object) -> None:
        """Stop gracefully at the first signal, immediately at the second."""
        if self._is_stopping:
            for child in filter(None, (self._loading, self._running)):
                child.process.kill()
            os._exit(128 + number)
        self._is_stopping = True


def _scan(folders: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Return the Python files in folders with mtime and size."""
    found = {}
    for path in chain.from_iterable(map(list_files, folders)):
        if path.suffix == ".py":
            with contextlib.suppress(OSError):  # it was just removed
                stat = path.stat()
                found[path] = stat.st_mtime_ns, stat.st_size
    return found
