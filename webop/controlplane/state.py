"""The processes of a cluster, and what is written down so that other sessions can find and end it.

A process started here is a child that must be waited for; one found in a state file is not. Both
are handled alike by their :class:`Process`. The state is one JSON file in the folder of the
cluster, replaced as a whole at each change.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from webop.errors import ConfigurationError

from . import reaper
from .binaries import APISERVER, ETCD
from .cache import get_root

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAIL_SIZE = 64 * 1024
POLL_INTERVAL = 0.05  # seconds; each look is a TLS handshake that costs CPU

_children: dict[int, subprocess.Popen[bytes]] = {}

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
# A cluster of another machine that shares the folder cannot be judged; but some day it is over.
_FOREIGN_AGE = 7 * 24 * 3600.0


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


@dataclass(frozen=True)
class Owner:
    """The process that a cluster must not outlive."""

    pid: int
    started: str


@dataclass(frozen=True)
class ClusterState:
    """What is known about a cluster that has been started."""

    name: str
    folder: str
    logs: str
    created: float
    owner: Owner | None = None
    host: str = field(default_factory=reaper.get_host)
    server: str = ""
    version: str = ""
    source: str = ""
    binaries: str = ""
    processes: tuple[Process, ...] = ()

    def get_process(self, name: str) -> Process | None:
        """Find a process by its name."""
        return next((process for process in self.processes if process.name == name), None)

    def get_dead_processes(self) -> list[str]:
        """Name the processes that a cluster needs and that are not running."""
        processes = {name: self.get_process(name) for name in (ETCD, APISERVER)}
        return [
            name
            for name, process in processes.items()
            if process is None or not is_running(process)
        ]

    def put_process(self, process: Process) -> ClusterState:
        """Return the state with a process added, or replaced."""
        others = tuple(one for one in self.processes if one.name != process.name)
        return replace(self, processes=(*others, process))


def check_name(name: str) -> str:
    """Return the name, if it can name a cluster.

    Raises:
        ConfigurationError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot name a cluster: use up to 40 small letters, digits and dashes."
        )
    return name


@contextlib.contextmanager
def lock_name(name: str) -> Iterator[None]:
    """Let one process at a time start the cluster of a name."""
    from filelock import FileLock  # noqa: PLC0415 - not at the load of the pytest plugin

    folder = get_root() / "clusters"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{name}.lock"
    with FileLock(path):
        yield


def save_state(state: ClusterState) -> None:
    """Write the state so that a reader sees either the old or the new one."""
    folder = Path(state.folder)
    temporary = folder / f"{reaper.STATE_FILE}.{os.getpid()}"
    temporary.write_bytes(orjson.dumps(asdict(state), option=orjson.OPT_INDENT_2))
    temporary.replace(folder / reaper.STATE_FILE)


def load_state(name: str) -> ClusterState | None:
    """Read the state of a cluster; None if there is none, or none that can be read.

    Raises:
        ConfigurationError: this is not a name.
    """
    path = get_root() / "clusters" / check_name(name) / reaper.STATE_FILE
    try:
        data = orjson.loads(path.read_bytes())
        data["owner"] = Owner(**data["owner"]) if data["owner"] else None
        data["processes"] = tuple(
            Process(one["name"], one["pid"], one["started"], tuple(one["argv"]))
            for one in data["processes"]
        )
        return ClusterState(**data)
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def load_all_states() -> list[ClusterState]:
    """Read the states of all clusters, sorted by name."""
    paths = (get_root() / "clusters").glob(f"*/{reaper.STATE_FILE}")
    names = sorted(path.parent.name for path in paths)
    return [state for name in names if (state := load_state(name)) is not None]


def is_abandoned(state: ClusterState) -> bool:
    """Tell whether the process that the cluster was for has died."""
    if state.owner is None:
        return False
    if state.host != reaper.get_host():
        return time.time() - state.created > _FOREIGN_AGE
    return not reaper.is_running(state.owner.pid, state.owner.started)


def end_abandoned_clusters() -> None:
    """End the clusters whose guards have been killed as well as their owners."""
    for state in load_all_states():
        if is_abandoned(state):
            reaper.end_cluster(Path(state.folder))


def end_cluster(state: ClusterState) -> None:
    """End a cluster, whoever has started it and in whatever state it is; its logs stay."""
    for process in reversed(state.processes):
        end_process(process)
    reaper.end_cluster(Path(state.folder))


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user can look into: it will hold keys and tokens."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
