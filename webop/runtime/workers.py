"""Worker processes of an ASGI server: with several, an app would handle each object several times.

The server starts all workers from one process. Each claims a name that has the id of that process;
the kernel releases it when the worker ends. This works on Linux.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

_claims: list[socket.socket] = []  # open until the process ends


def claim(what: Iterable[str]) -> bool:
    """Claim something for this process; return False if another worker of its server has done so.

    Return True in processes that are not workers, such as uvicorn without ``--workers``.

    Args:
        what: what only one worker can do; other texts do not conflict with it.
    """
    is_gunicorn = os.environ.get("SERVER_SOFTWARE", "").startswith("gunicorn")
    if sys.platform != "linux" or (multiprocessing.parent_process() is None and not is_gunicorn):
        return True
    # Containers have their own ids of processes, and a pod can share its network with others.
    place = (str(os.getppid()), str(Path("/proc/self/ns/pid").readlink()), *what)
    name = f"\0webop-{hashlib.sha256(repr(place).encode()).hexdigest()}"
    if any(claimed.getsockname() == name.encode() for claimed in _claims):
        return True  # by an earlier operator of this process
    with contextlib.ExitStack() as stack:
        claimed = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        try:
            claimed.bind(name)
        except OSError:
            return False
        stack.pop_all()
    _claims.append(claimed)
    return True


def release() -> None:
    """Release all claims of this process, as it handles no objects any more.

    So the worker that replaces it in a reload can start while this one still drains.
    """
    while _claims:
        _claims.pop().close()
