"""Starting the processes of a cluster, watching and ending them; also those of other sessions.

A process started here is a child that must be waited for; one found in a state file is not.
Both are handled alike by their :class:`Process`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import reaper

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_SIZE = 64 * 1024
POLL_INTERVAL = 0.05  # seconds; each look is a TLS handshake that costs CPU

_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Process:
    """One process: what it is, how to recognise it, how to start it again."""

    name: str
    pid: int
    started: str
    argv: tuple[str, ...]


def start_process(name: str, argv: list[str], *, folder: Path, log: Path) -> Process:
    """Start a process in a session of its own: Ctrl-C is for the test run, not for its cluster."""
    # What would act behind our back is left out: etcd's settings, and proxies for webhooks.
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("ETCD_") and not key.lower().endswith("_proxy")
    }
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 - our own command line, no shell
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    return Process(name, child.pid, reaper.get_start_time(child.pid) or "", tuple(argv))


def is_running(process: Process) -> bool:
    """Tell whether exactly this process is still there."""
    child = _children.get(process.pid)
    if child is not None and child.poll() is not None:
        return False
    return reaper.is_running(process.pid, process.started)


def end_process(process: Process) -> None:
    """Kill exactly this process, if it is still there, and wait until it is gone."""
    child = _children.pop(process.pid, None)
    if child is None:
        reaper.end_process(process.pid, process.started)
    else:
        child.kill()
        child.wait()


def start_guard(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that ends the cluster in this folder if this process dies."""
    argv = [sys.executable, "-I", "-S", reaper.__file__, str(folder), str(os.getpid())]
    return subprocess.Popen(  # noqa: S603 - our own command line, no shell
        argv, stdin=subprocess.PIPE, start_new_session=True
    )


def dismiss_guard(guard: subprocess.Popen[bytes]) -> None:
    """End the guard of a cluster that is gone."""
    if guard.stdin is not None:
        guard.stdin.close()
    guard.wait()


def read_last_lines(log: Path, count: int = 15) -> list[str]:
    """Return the last lines of a log; nothing if there is no such file."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_SIZE))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def describe_log(log: Path) -> str:
    """Build the end of an error message: where the log is, and its last lines."""
    lines = "".join(f"\n    {line}" for line in read_last_lines(log))
    return f"Its log is {log}" + (f", and ends with:{lines}" if lines else ", and is empty.")
