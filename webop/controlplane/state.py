"""What is written down about each cluster, so that other sessions can find, use and end it.

One JSON file in the folder of the cluster, replaced as a whole at each change.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from webop.errors import ConfigurationError

from . import reaper
from .binaries import APISERVER, ETCD
from .cache import get_root
from .processes import Process, end_process, is_running

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")

# A cluster of another machine that shares the folder cannot be judged; but some day it is over.
_FOREIGN_AGE = 7 * 24 * 3600.0


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
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
