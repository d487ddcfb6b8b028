"""``webop run --reload``: the same command in a child, and in another one when a file changes.

Flow: a file changes → a new child imports the handlers → it says so → the old child stops, as it
does at Ctrl-C → the new one begins. If the import fails, the new child ends, and the old one goes
on. So there is a moment with two sets of handlers imported, but never one with two operators.

Each child is at one end of a connection. When the other end closes, for whatever reason, it stops:
no signal is needed, which a terminal may have sent already, and nobody is left behind.
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
from collections.abc import Iterable, Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

_VARIABLE = "WEBOP_RELOADED_BY"  # the number of the connection, for the child
_PAUSE = 0.25  # seconds between two looks at the files
_SHARE = 10  # looks take a tenth of the time at most
_PATIENCE = 10  # seconds; longer than daemons and handlers are waited for
_OTHERS = {"__pycache__", "node_modules", "site-packages"}


def accept_reload() -> socket.socket | None:
    """Return the connection to the process that reloads this one, if there is one."""
    number = os.environ.pop(_VARIABLE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return socket.socket(fileno=int(number))


def wait_for_turn(link: socket.socket) -> threading.Event:
    """Say that the handlers are imported, and wait until the former ones have stopped.

    Returns:
        What is set when these handlers must stop, too.

    Raises:
        SystemExit: there is nobody to wait for any more.
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
    """The command of this process once more."""

    def __init__(self) -> None:
        self._link, other = socket.socketpair()
        self._link.setblocking(False)
        with other:
            # Compiled files go by seconds: what is saved twice in one of them would not be seen.
            variables = {_VARIABLE: str(other.fileno()), "PYTHONDONTWRITEBYTECODE": "1"}
            self.process = subprocess.Popen(  # noqa: S603  it is what the user has called
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
        with contextlib.suppress(ConnectionError):  # then it has ended, which is seen later
            self._link.sendall(b"+")

    def stop(self, patience: float | None = None) -> int:
        """Stop it gracefully; return its exit code, as shells count it.

        What does not end within so many seconds is killed: threads may run for ever.
        """
        self._link.close()
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            logger.warning(
                "The operator has not ended within %d s, and is killed. Do threads go on?", patience
            )
            self.process.kill()
            code = self.process.wait()
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        self._link.close()
        self.process.kill()
        self.process.wait()


def supervise(folders: Iterable[Path]) -> int:
    """Run the command of this process in children until a signal comes; return the exit code.

    Args:
        folders: whose Python files, those in folders below included, are looked at.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        logger.warning("--reload is for development: in a pod, replace the image instead.")
    return _Supervisor(sorted({folder.resolve() for folder in folders})).run()


class _Supervisor:
    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(folders)
        self._is_stopping = False
        self._running: _Child | None = None
        self._loading: _Child | None = None
        self._code = 0

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)
        before = dict(_look(self._folders))
        self._loading = _Child()
        has_changed = False
        while True:
            started = time.monotonic()
            files = dict(_look(self._folders))
            time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - started)))
            if self._is_stopping:
                break  # the child has had the same Ctrl-C, and may have ended already
            if files != before:
                changed = sorted(name for name, _ in {*files.items()} ^ {*before.items()})
                logger.info("%s has changed. Loading the handlers.", os.path.relpath(changed[0]))
                before, has_changed = files, True
            elif has_changed:  # all is written
                has_changed = False
                self._drop()
                self._loading = _Child()
            else:
                self._proceed()
        self._drop()
        return self._code if self._running is None else self._running.stop()

    def _proceed(self) -> None:
        """See what has become of the children."""
        if self._loading is not None and self._loading.is_loaded:
            if self._running is not None:
                self._running.stop(_PATIENCE)
            self._running, self._loading = self._loading, None
            if not self._is_stopping:
                self._running.begin()
        elif self._loading is not None and self._loading.has_ended:
            what = "those from before keep running" if self._running else "nothing runs"
            logger.error("The handlers cannot be loaded: %s until a file changes.", what)
            self._code = self._loading.process.returncode
            self._drop()
        elif self._running is not None and self._running.has_ended:
            self._code = self._running.stop()
            self._running = None
            text = "The operator has ended with code %d. It starts again when a file changes."
            logger.error(text, self._code)

    def _drop(self) -> None:
        if self._loading is not None:
            self._loading.kill()
            self._loading = None

    def _take(self, number: int, _: object) -> None:
        """Stop gracefully at the first signal, at once at the second."""
        if self._is_stopping:
            for child in filter(None, (self._loading, self._running)):
                child.process.kill()
            os._exit(128 + number)
        self._is_stopping = True


def _look(folders: Iterable[Path]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the Python files in folders, but those of virtual environments, with their state."""
    for folder in folders:
        for place, names, files in os.walk(folder):
            names[:] = [name for name in names if name[0] != "." and name not in _OTHERS]
            if "pyvenv.cfg" in files:
                names.clear()
                continue
            for file in files:
                if file.endswith(".py"):
                    path = Path(place, file)
                    with contextlib.suppress(OSError):  # it has just gone
                        found = path.stat()
                        yield str(path), (found.st_mtime_ns, found.st_size)
