"""End the processes of a cluster whose owner has died; identify processes reliably.

A process is identified by its id *and* its start time, so that a reused id is never killed. This
module is a library for :mod:`.state`, and also a program: a test run starts
``python reaper.py <folder of the cluster> <pid and start time of the test run>`` beside its
cluster. This guard notices the death of the test run, also by ``kill -9``, and ends the cluster.
It imports nothing of webop, so it starts in some milliseconds and needs little memory.

Caveat: a crash between the start of a process and its record in the state file leaves an
unrecorded process. On Linux, it is found by its working folder, which is the cluster's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE_FILE = "state.json"

# Names of processes as Linux shows them: at most 15 characters.
_NAMES = ("etcd", "kube-apiserver", "kube-controller")
_POLL_INTERVAL = 0.5
_END_TIMEOUT = 10.0


def get_start_time(pid: int) -> str | None:
    """Return the start time of a process as text; None if it is gone or a zombie."""
    if not Path("/proc/self/stat").exists():
        command = ["/bin/ps", "-o", "state=,lstart=", "-p", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        state, _, started = done.stdout.strip().partition(" ")
        return started.strip() if state and not state.startswith("Z") else None
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the name in parentheses, and can hold anything (proc_pid_stat(5)).
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else fields[19]


def get_host() -> str:
    """Return the scope of process ids: one boot and one pid namespace."""
    parts = [os.uname().nodename]
    with contextlib.suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()]
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def is_running(pid: int, started: str) -> bool:
    """Return whether exactly this process is still running."""
    return get_start_time(pid) == started


def end_process(pid: int, started: str) -> None:
    """Kill exactly this process, if it is still running, and wait for its end.

    SIGKILL, because the data is removed anyway, and an API server takes a second to shut down.
    """
    deadline = time.monotonic() + _END_TIMEOUT
    while is_running(pid, started) and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(pid, 0)  # a child ends with its last thread, which has its memory and ports
        except ChildProcessError:
            time.sleep(0.005)
    with contextlib.suppress(ChildProcessError):  # a child that has ended by itself
        os.waitpid(pid, os.WNOHANG)


def end_cluster(folder: Path) -> None:
    """End all processes of a cluster, recorded in its state file or not, and remove its folder.

    The logs are elsewhere and stay.
    """
    for pid, started in _read_processes(folder):
        end_process(pid, started)
    for pid in _find_unrecorded(folder):
        end_process(pid, get_start_time(pid) or "")
    shutil.rmtree(folder, ignore_errors=True)


def _read_processes(folder: Path) -> list[tuple[int, str]]:
    try:
        state = json.loads((folder / STATE_FILE).read_bytes())
        if state["host"] != get_host():
            return []
        return [(int(one["pid"]), str(one["started"])) for one in state["processes"].values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _find_unrecorded(folder: Path) -> list[int]:
    found, folder = [], folder.resolve()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() != folder:
                continue
            if (entry / "comm").read_text(encoding="utf-8", errors="replace").startswith(_NAMES):
                found.append(int(entry.name))
    return found


def guard(folder: Path, owner: int, started: str) -> None:
    """Wait until the owner dies, then end its cluster; return when the cluster is gone."""
    while is_running(owner, started) and folder.exists():
        time.sleep(_POLL_INTERVAL)
    if folder.exists():
        end_cluster(folder)


if __name__ == "__main__":
    guard(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
