"""Listening sockets, with errors that say which address, why, and what to do about it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

from webop.errors import ConfigurationError
from webop.own_threads import call_in_own_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

_BACKLOG = 2048
_FREE_PORT_ATTEMPTS = 10

# A name such as "localhost" resolves to IPv6 addresses also where there is no IPv6.
_UNUSABLE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})

_REMEDIES = {
    errno.EADDRINUSE: "it is in use; stop the other process, or set another port (0: a free one).",
    errno.EACCES: "it is not permitted; set a port of 1024 or above.",
    errno.EADDRNOTAVAIL: "this host has no such address; set one of its own, or 0.0.0.0 for all.",
}


async def open_sockets(host: str, port: int) -> Sequence[socket.socket]:
    """Listen on all addresses of a host, on one and the same port.

    Args:
        host: an address or a name; empty for all interfaces.
        port: 0 takes a free one.

    Raises:
        ConfigurationError: the host has no address, or one of them cannot be listened on.
    """
    name = format_address(host, port)
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"Cannot listen on {name}: ports are numbers from 0 to 65535.")
    addresses = await _resolve(host, port)
    attempts = _FREE_PORT_ATTEMPTS if port == 0 else 1
    while True:
        attempts -= 1
        try:
            return _listen_all(addresses, port)
        except OSError as error:
            # The port that is free at one of the addresses may be in use at the next one.
            if not attempts or error.errno != errno.EADDRINUSE:
                reason = _REMEDIES.get(error.errno or 0, f"{error.strerror}.")
                raise ConfigurationError(f"Cannot listen on {name}: {reason}") from error


def format_address(host: str, port: int) -> str:
    """Return "host:port" in the notation of URLs; "*" for all interfaces."""
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


async def _resolve(host: str, port: int) -> Sequence[tuple[int, str]]:
    """Return the families and the addresses of a host."""
    look_up = partial(socket.getaddrinfo, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        infos = await call_in_own_thread(look_up, host or None, port)
    except (socket.gaierror, UnicodeError) as error:
        name = format_address(host, port)
        reason = "the host name cannot be resolved; check its spelling."
        raise ConfigurationError(f"Cannot listen on {name}: {reason}") from error
    return list(dict.fromkeys((info[0], str(info[4][0])) for info in infos))


def _listen_all(addresses: Sequence[tuple[int, str]], port: int) -> Sequence[socket.socket]:
    sockets: list[socket.socket] = []
    unusable: OSError | None = None
    with contextlib.ExitStack() as stack:
        for family, address in addresses:
            try:
                sock = stack.enter_context(_listen(family, address, port))
            except OSError as error:
                if error.errno not in _UNUSABLE:
                    raise
                unusable = error
            else:
                sockets.append(sock)
                port = sock.getsockname()[1]
        if not sockets and unusable is not None:
            raise unusable
        stack.pop_all()
    return sockets


def _listen(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere, it would let several processes share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # the IPv4 side has a socket of its own
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
