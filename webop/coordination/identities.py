"""As whom people, pods and processes act in peering objects and Leases (chapter "Peering")."""

from __future__ import annotations

import getpass
import ipaddress
import os
import secrets
import socket
import time


def detect_own_identity() -> str:
    """Return the name of the person or the pod, the same one each time (as Kopf does)."""
    return os.environ.get("POD_ID") or f"{_detect_user()}@{_detect_host()}"


def detect_process_identity() -> str:
    """Return a name for this process that no other one has, but its pod (PEE-18)."""
    place = f"{_detect_user()}@{socket.gethostname()}"  # no DNS on the way to the start
    return os.environ.get("POD_ID") or f"{place}/{int(time.time())}/{secrets.token_hex(3)}"


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
