"""The identities of people, pods and processes in peering objects, Leases and records of replicas.

In a pod, the environment variable ``POD_ID`` has the name of the pod. So a container that restarts
has the identity of its killed predecessor and overwrites its records. Elsewhere, each process has
its own identity, and the records of a killed one count until they expire.
"""

from __future__ import annotations

import getpass
import ipaddress
import os
import secrets
import socket


def is_in_pod() -> bool:
    """Return whether this process runs in a pod of Kubernetes."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def detect_own_identity() -> str:
    """Return the name of a person, the same one each time; in a pod, not that of its operator."""
    return f"{_detect_user()}@{_detect_host()}"


def detect_process_identity() -> str:
    """Return a unique name for an operator in this process, or the name of its pod."""
    place = f"{_detect_user()}@{socket.gethostname()}"  # no DNS during the start
    return os.environ.get("POD_ID") or f"{place}/{os.getpid()}/{secrets.token_hex(3)}"


def detect_process() -> str:
    """Return a name for this process, which can be that of its killed predecessor in the same pod.

    The processes of a container have different ids, but its first one has the same id after each
    restart. Processes with the same id in two containers of a pod can have the same name.
    """
    pod = os.environ.get("POD_ID")
    return f"{pod}/{socket.gethostname()}/{os.getpid()}" if pod else secrets.token_hex(6)


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
