"""``webop run --reload``: run the command in a child process, and in a new one after a change.

Each child has a socket to its parent. When the parent closes it or dies, the child shuts down. No
signal is needed (a terminal may already have sent one), and no child outlives its parent.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from webop.errors import ConfigurationError
from webop.identities import is_in_pod

logger = logging.getLogger(__name__)

_VARIABLE = "WEBOP_RELOADED_BY"  # the file descriptor of the child's socket
_POLL_INTERVAL = 500  # milliseconds
_SHUTDOWN_TIMEOUT = 10  # seconds; longer than an operator waits for daemons and handlers


def accept_reload() -> threading.Event | None:
    """Return an event that is set when this child of ``--reload`` must shut down.

    Return None if this process is not such a child.
    """
    number = os.environ.pop(_VARIABLE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    link, stop = socket.socket(fileno=int(number)), threading.Event()

    def wait() -> None:
        link.recv(1)
        stop.set()

    threading.Thread(target=wait, name="webop-reload", daemon=True).start()
    return stop


class _Child:
    """A child process that runs the same command as this process."""

    def __init__(self) -> None:
        self._link, other = socket.socketpair()
        with other:
            # Python compares .pyc files by seconds: a second save within one would be missed.
            variables = {_VARIABLE: str(other.fileno()), "PYTHONDONTWRITEBYTECODE": "1"}
            self.process = subprocess.Popen(  # noqa: S603  the user's own command
                [sys.executable, *sys.orig_argv[1:]],
                pass_fds=[other.fileno()],
                env={**os.environ, **variables},
            )

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


def supervise(folders: Iterable[Path]) -> int:
    """Run children until a signal comes; return the exit code of the last one.

    Args:
        folders: the folders with the Python files to watch, with all folders below.

    Raises:
        ConfigurationError: the package watchfiles is not installed.
    """
    try:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415  an optional dependency
    except ImportError:
        raise ConfigurationError(
            "--reload needs the package watchfiles. Install it: pip install watchfiles"
        ) from None
    if is_in_pod():
        logger.warning("--reload is for development. In a pod, replace the image instead.")
    stop, child, has_ended = threading.Event(), _Child(), False

    def handle_signal(number: int, _: object) -> None:
        """Stop gracefully at the first signal, immediately at the second."""
        if stop.is_set():
            child.process.kill()
            os._exit(128 + number)
        stop.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, handle_signal)
    for changes in watch(
        *folders,
        watch_filter=PythonFilter(),
        stop_event=stop,
        rust_timeout=_POLL_INTERVAL,
        yield_on_timeout=True,
    ):
        if changes:
            path = min(path for _, path in changes)
            logger.info("%s has changed. Restarting the operator.", os.path.relpath(path))
            child.stop(_SHUTDOWN_TIMEOUT)
            child, has_ended = _Child(), False
        elif not has_ended and (code := child.process.poll()) is not None:
            has_ended = True
            text = "The operator exited with code %d. It starts again when a file changes."
            logger.error(text, code)
    return child.stop()
