"""Serve an ASGI app on a port in the running event loop.

It listens on all addresses of a host, says what to do if a port cannot be used, and stops without
losing a request. :mod:`webop.servers.http.protocol` serves the connections. Signals are not handled
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

from webop.aio.dedicated_threads import call_in_dedicated_thread
from webop.errors import ConfigurationError
from webop.servers.http.connection_slots import Slots
from webop.servers.http.protocol import LINGERING_SECONDS, ASGIApp, Connection, Serving
from webop.servers.limits import Hosting, get_hosting

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_SETTLE_SECONDS = 0.05  # seconds for data that has arrived but was not read or accepted
_CHECK_SECONDS = 0.01
_FREE_PORT_ATTEMPTS = 10
_ACCEPTED_AT_ONCE = 64
_ACCEPT_PAUSE = 1.0  # seconds after a failure

# "localhost" can resolve to an IPv6 address on hosts without IPv6.
_UNUSABLE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
_REMEDIES = {
    errno.EADDRINUSE: "the port is in use; stop that process, or set another port (0: a free one).",
    errno.EACCES: "it is not permitted; set a port of 1024 or above.",
    errno.EADDRNOTAVAIL: "this host has no such address; set one that it has, or 0.0.0.0 for all.",
}


class Listener:
    """An async context manager that serves an ASGI app on a port.

    On exit, it stops accepting, closes idle connections, gives the requests in flight
    ``drain_timeout`` seconds, cancels the rest, and closes all connections.

    Args:
        app: the ASGI 3 app; its lifespan is not run.
        host: the address or name to listen on (all addresses of a name); empty for all interfaces.
        port: the port to listen on; 0 for a free one, see :attr:`port`.
        ssl_context: returns the TLS context for a new connection; None for plain HTTP. The
            contexts may differ in their certificates, and in the CAs that verify clients.
        hosting: the limits; by default, the current one.

    Raises:
        ConfigurationError: (on entering) it cannot listen there.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        ssl_context: Callable[[], ssl.SSLContext] | None = None,
        hosting: Hosting | None = None,
    ) -> None:
        self.host = host
        #: The port in use; never 0 after entering.
        self.port = port
        hosting = get_hosting() if hosting is None else hosting
        self._serving = Serving(app, hosting, ssl_context, Slots(hosting))
        self._sockets: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> Collection[Connection]:
        """The connections that are open now."""
        return self._serving.connections

    def close_connections(self) -> None:
        """Close each connection after its requests in flight; clients can open new ones.

        TLS handshakes are cancelled: they use an earlier context.
        """
        for connection in list(self.connections):
            connection.shutdown()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._sockets = await _open_sockets(self.host, self.port)
        self.port = self._sockets[0].getsockname()[1]
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept_waiting, sock)
        logger.debug("Listening on %s.", _format_address(self.host, self.port))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        serving = self._serving
        try:
            serving.is_stopping = True
            try:
                await asyncio.sleep(_SETTLE_SECONDS)
            finally:
                await self._stop_accepting()
            self.close_connections()
            if not await self._drain(serving.hosting.limits.drain_timeout):
                for request in serving.requests:
                    request.task.cancel()
                if not await self._drain(LINGERING_SECONDS):
                    logger.debug("Some clients did not close their connections.")
        finally:
            for connection in list(self.connections):
                connection.transport.abort()

    async def _drain(self, seconds: float) -> bool:
        """Wait until no connection is open and no request is served; return False if some are."""
        end = self._loop.time() + seconds
        while self._accepting or self._serving.connections or self._serving.requests:
            if self._loop.time() >= end:
                return False
            await asyncio.sleep(_CHECK_SECONDS)
        return True

    async def _stop_accepting(self) -> None:
        """Accept the connections in the backlog, then close the port."""
        try:
            for sock in self._sockets:
                self._loop.remove_reader(sock)
                for _ in range(_BACKLOG // _ACCEPTED_AT_ONCE):
                    if not self._accept_waiting(sock):
                        break
                    await asyncio.sleep(0)
                sock.close()  # in the same turn: others would come
        finally:
            for sock in self._sockets:
                sock.close()

    def _accept_waiting(self, sock: socket.socket) -> bool:
        """Accept some connections; return whether more may wait."""
        return all(self._accept(sock) for _ in range(_ACCEPTED_AT_ONCE))

    def _accept(self, sock: socket.socket) -> bool:
        """Accept a connection; return whether there was one.

        It does not use a task with ``sock_accept()``, whose cancellation can lose a connection.
        """
        try:
            accepted, _ = sock.accept()
        except BlockingIOError:
            return False
        except ConnectionError:  # the client has disconnected
            return True
        except OSError as error:  # such as too many open files
            advice = " Raise the limit (ulimit -n)." if error.errno == errno.EMFILE else ""
            logger.warning("Cannot accept a connection: %s.%s", error.strerror, advice)
            self._loop.remove_reader(sock)
            self._loop.call_later(_ACCEPT_PAUSE, self._resume, sock)
            return False
        task = self._loop.create_task(self._connect(accepted))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        return True

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: Connection(self._serving), accepted)
        except OSError:  # the client has disconnected
            accepted.close()

    def _resume(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.add_reader(sock, self._accept_waiting, sock)


async def _open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listen on all addresses of a host, on the same port."""
    name = _format_address(host, port)
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"Cannot listen on {name}: a port must be from 0 to 65535.")
    look_up = partial(socket.getaddrinfo, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        infos = await call_in_dedicated_thread(look_up, host or None, port)
    except (socket.gaierror, UnicodeError) as error:
        reason = "the host name cannot be resolved; check its spelling."
        raise ConfigurationError(f"Cannot listen on {name}: {reason}") from error
    addresses = list(dict.fromkeys((info[0], str(info[4][0])) for info in infos))
    attempts = _FREE_PORT_ATTEMPTS if port == 0 else 1
    while True:
        attempts -= 1
        try:
            return _listen_all(addresses, port)
        except OSError as error:
            # A port that is free at one address may be in use at the next.
            if not attempts or error.errno != errno.EADDRINUSE:
                reason = _REMEDIES.get(error.errno or 0, f"{error.strerror}.")
                raise ConfigurationError(f"Cannot listen on {name}: {reason}") from error


def _format_address(host: str, port: int) -> str:
    """Return "host:port" as in URLs; "*" for all interfaces."""
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


def _listen_all(addresses: Sequence[tuple[int, str]], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    unusable: OSError | None = None
    with contextlib.ExitStack() as stack:
        for family, address in addresses:
            sock = socket.socket(family, socket.SOCK_STREAM)
            stack.callback(sock.close)
            if os.name == "posix":  # elsewhere, it would let several processes share a port
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # IPv4 has a separate socket
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind((address, port))
                sock.listen(_BACKLOG)
                sock.setblocking(False)  # noqa: FBT003 - the interface of sockets
            except OSError as error:
                if error.errno not in _UNUSABLE:
                    raise
                unusable = error
                sock.close()
            else:
                sockets.append(sock)
                port = sock.getsockname()[1]
        if not sockets and unusable is not None:
            raise unusable
        stack.pop_all()
    return sockets
