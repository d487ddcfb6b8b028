"""The identities of people, pods and processes in peering objects, Leases and records of replicas.

The identity of a process describes the process. So after a restart in the same place, an operator
recognises the records of its killed predecessor, and does not wait until they expire.
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import ipaddress
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PROCESS = re.compile(r"\b(\d{1,9})-(\d{1,20})-([0-9a-f]{12})(?:-([0-9a-f]{12}))?(?:/|$)")
_CONTAINER = re.compile(r"/pods/[^/]+/containers/[^/]+/")  # on the disk of the kubelet
_ENDED = frozenset("ZX")  # the states of processes that wait for their parents


@dataclass(frozen=True, slots=True)
class Process:
    """A process, described so that others can check whether it still runs.

    Attributes:
        pid: its id.
        started_at: when it was started, in clock ticks after the boot: ids are used again.
        pid_namespace: where the id counts: the host, its boot, the namespace of ids.
        container: the container of a pod, the same after each restart; empty outside of pods.
    """

    pid: int
    started_at: int
    pid_namespace: str
    container: str = ""

    def __str__(self) -> str:
        container = f"-{self.container}" if self.container else ""
        return f"{self.pid}-{self.started_at}-{self.pid_namespace}{container}"

    def has_replaced(self, other: Process) -> bool:
        """Return whether another process has ended that was in the same place as this one.

        Ids can be looked up in the own namespace only. A container that is started again has
        another namespace; the kubelet has ended the former container before.
        """
        if other == self:
            return False
        if other.pid_namespace == self.pid_namespace:
            return not _is_running(other)
        return self.container != "" and self.container == other.container


def is_former_self(identity: str) -> bool:
    """Return whether an identity is of a process that has ended, in the place of this process.

    False if that is unknown: the process is in another place, or the identity does not describe it.
    """
    found = _PROCESS.search(identity)
    if found is None:
        return False
    pid, started_at, pid_namespace, container = found.groups("")
    return detect_process().has_replaced(
        Process(int(pid), int(started_at), pid_namespace, container)
    )


def is_in_pod() -> bool:
    """Return whether this process runs in a pod of Kubernetes."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def detect_own_identity() -> str:
    """Return the name of the person or the pod, the same one each time (as Kopf does)."""
    return os.environ.get("POD_ID") or f"{_detect_user()}@{_detect_host()}"


def detect_process_identity() -> str:
    """Return a unique name for an operator in this process, or the name of its pod (PEE-18)."""
    place = f"{_detect_user()}@{socket.gethostname()}"  # no DNS during the start
    return os.environ.get("POD_ID") or f"{place}/{detect_process()}/{secrets.token_hex(3)}"


def detect_process() -> Process:
    """Describe the present process."""
    return _describe_process(os.getpid())


@functools.lru_cache(maxsize=1)
def _describe_process(pid: int) -> Process:
    """Describe a process by ``/proc``; without ``/proc``, nobody can recognise it."""
    try:
        _, started_at = _read_stat(pid)
        boot = _PROC.joinpath("sys/kernel/random/boot_id").read_text("ascii")
        namespace = str(_PROC.joinpath("self/ns/pid").readlink())
        mounts = _PROC.joinpath("self/mountinfo").read_text("utf-8", "replace")
        is_own = str(_PROC.joinpath("self").readlink()) == str(pid)
    except (OSError, ValueError, IndexError):
        is_own = False
    if not is_own:
        return Process(pid, 0, secrets.token_hex(6))
    where = _digest(f"{socket.gethostname()} {boot} {namespace}")
    return Process(pid, started_at, where, find_container(mounts))


def find_container(mounts: str) -> str:
    """Return a name for the container of a pod, by ``/proc/self/mountinfo``; empty if it is none.

    The kubelet mounts the file for the termination message, the path of which has the UID of the
    pod and the name of the container.
    """
    roots = [line.split(" ")[3] for line in mounts.splitlines() if line.count(" ") > 3]
    found = {match.group() for match in map(_CONTAINER.search, roots) if match}
    return _digest(found.pop()) if len(found) == 1 else ""


def _is_running(process: Process) -> bool:
    """Return whether a process of this namespace runs, or may run."""
    try:
        os.kill(process.pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is of another user
    try:
        state, started_at = _read_stat(process.pid)
    except OSError:
        return True
    return state not in _ENDED and started_at == process.started_at


def _read_stat(pid: int) -> tuple[str, int]:
    """Return the state of a process, and when it was started (proc_pid_stat(5))."""
    text = _PROC.joinpath(str(pid), "stat").read_text("utf-8", "replace")
    fields = text.rpartition(")")[2].split()  # the name before can contain anything
    return fields[0], int(fields[19])


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _detect_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # such as of containers with arbitrary user ids
        return "webop"


def _detect_host() -> str:
    """Return the name of the machine; better a full one, and none that is but an address."""
    own = socket.gethostname()
    try:
        name, aliases, _ = socket.gethostbyaddr(own)
    except OSError:
        names = []
    else:
        names = [n for n in (name, *aliases) if not n.endswith(".arpa") and not _is_address(n)]
    full = [n for n in names if "." in n]
    short = [n for n in names if n != "localhost"]
    found = next(iter(full + short), own)
    while found.endswith((".local", ".localdomain")):
        found = found.rpartition(".")[0]
    return found


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
