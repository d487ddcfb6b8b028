"""The processes of a cluster, and the state file by which other processes can find and end it.

The state is one JSON file in the folder of the cluster; each change replaces the file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from webop.errors import ConfigurationError

from . import reaper
from .binaries import APISERVER, ETCD
from .cache import get_root

POLL_INTERVAL = 0.05  # seconds; each poll costs CPU for a TLS handshake

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
# Whether a cluster of another machine runs is unknown; after this time it is abandoned.
_FOREIGN_AGE = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Process:
    """One process: its identity and its command line."""

    pid: int
    started: str
    argv: tuple[str, ...] = ()


def start_process(argv: Sequence[str], *, folder: Path, log: Path) -> Process:
    """Start a process in a separate session, so that Ctrl-C does not stop the cluster."""
    # Without the user's settings of etcd, and without proxies, which webhooks would use.
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
    child.returncode = 0  # it can outlive this process: otherwise Python warns of it
    return identify(child.pid, argv)


def identify(pid: int, argv: Iterable[str] = ()) -> Process:
    """Return the process of an id that runs now."""
    return Process(pid, reaper.get_start_time(pid) or "", tuple(argv))


def is_running(process: Process) -> bool:
    """Return whether exactly this process is still running."""
    return reaper.is_running(process.pid, process.started)


def end_process(process: Process) -> None:
    """Kill exactly this process, if it is still running, and wait for its end."""
    reaper.end_process(process.pid, process.started)


def start_guard(folder: Path, owner: Process) -> Process:
    """Start the process that ends the cluster in this folder if its owner dies."""
    argv = [sys.executable, "-I", "-S", reaper.__file__, str(folder)]
    argv += [str(owner.pid), owner.started]
    child = subprocess.Popen(argv, start_new_session=True)  # noqa: S603 - our own command line
    child.returncode = 0  # as above
    return identify(child.pid)


@dataclass(frozen=True)
class ClusterState:
    """The content of the state file of a started cluster."""

    name: str
    folder: Path
    logs: Path
    created: float
    owner: Process | None = None  # the cluster ends with it
    host: str = field(default_factory=reaper.get_host)
    server: str = ""
    version: str = ""
    source: str = ""
    binaries: Path = Path()
    processes: Mapping[str, Process] = field(default_factory=dict)  # by their names

    def get_dead_processes(self) -> list[str]:
        """Return the names of required processes that are not running."""
        running = {name for name, process in self.processes.items() if is_running(process)}
        return [name for name in (ETCD, APISERVER) if name not in running]


def check_name(name: str) -> str:
    """Return the name of a cluster, if it is valid.

    Raises:
        ConfigurationError: it is not.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"Invalid name of a cluster: {name!r}. Use up to 40 lower-case letters, digits, dashes."
        )
    return name


def save_state(state: ClusterState) -> None:
    """Write the state atomically."""
    temporary = state.folder / f"{reaper.STATE_FILE}.{os.getpid()}"
    temporary.write_bytes(pydantic_core.to_json(state, indent=2))
    temporary.replace(state.folder / reaper.STATE_FILE)


def load_state(name: str) -> ClusterState | None:
    """Read the state of a cluster; None if there is no valid state file.

    Raises:
        ConfigurationError: the name is invalid.
    """
    path = get_root() / "clusters" / check_name(name) / reaper.STATE_FILE
    try:
        return TypeAdapter(ClusterState).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def load_all_states() -> list[ClusterState]:
    """Read the states of all clusters, sorted by name."""
    paths = (get_root() / "clusters").glob(f"*/{reaper.STATE_FILE}")
    names = sorted(path.parent.name for path in paths)
    return [state for name in names if (state := load_state(name)) is not None]


def is_abandoned(state: ClusterState) -> bool:
    """Return whether the owner of the cluster has died."""
    if state.owner is None:
        return False
    if state.host != reaper.get_host():
        return time.time() - state.created > _FOREIGN_AGE
    return not is_running(state.owner)


def end_abandoned_clusters() -> None:
    """End clusters whose owner and guard have both been killed."""
    for state in load_all_states():
        if is_abandoned(state):
            reaper.end_cluster(state.folder)


def make_private_folder(folder: Path) -> None:
    """Create a folder that only this user can read, for keys and tokens."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
