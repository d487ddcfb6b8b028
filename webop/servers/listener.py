"""Running an ASGI app on a port, in the running event loop.

What it does beside others: sockets with clear errors, the verified client certificate in the ASGI
scope, certificates that can be changed while it serves, and a stop that loses no request: what has
come is answered, connections in the queue of the kernel included, and no client meets a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from webop.servers.hosting import Hosting, get_hosting
from webop.servers.http.accepting import Acceptor
from webop.servers.http.protocol import HTTPProtocol
from webop.servers.http.sockets import format_address, open_sockets
from webop.servers.http.tls import SecureTransport

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

__all__ = ["ASGIApp", "HTTPProtocol", "Listener"]

logger = logging.getLogger(__name__)

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]

_BUFFER_SIZE = 64 * 1024
_QUIET_SECONDS = 0.1  # without a request, until an idle connection is closed
_FRESH_SECONDS = 1.0  # for the handshake and the first request of a new connection
_CLOSING_SECONDS = 1.5  # for those who do not close their side
_STEP = 0.01


@dataclass(frozen=True)
class _Config:
    """What the protocol wants to know of a configuration."""

    loaded_app: ASGIApp
    root_path: str = ""


@dataclass(eq=False)
class _State:
    """What the connections of one listener share."""

    hosting: Hosting
    connections: set[HTTPProtocol] = field(default_factory=set)
    handshakes: set[SecureTransport] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    default_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    #: Connections that asyncio is taking over.
    arrivals: set[asyncio.Task[Any]] = field(default_factory=set)
    is_stopping: bool = False


class Listener:
    """An async context manager that serves an ASGI app on a port for as long as it is open.

    Flow: open the sockets, serve; on exit, stop accepting, serve what is connected already, let
    the requests in flight finish within the time to drain, answer the rest by 503. Idle
    connections are closed when nothing has come for a moment. Every answer says then that the
    connection is closed; it says so earlier, when the operator begins to stop
    (``hosting.is_stopping``).

    Args:
        app: the ASGI 3 app; its lifespan is not run.
        host: the address or the name to listen on, at all of its addresses; empty for all
            interfaces.
        port: the port to listen on; 0 takes a free one, see :attr:`port`.
        ssl_context: returns the TLS context for a new connection; None is plain HTTP.
        hosting: the limits, and whether the operator is stopping; by default, the current one.

    Raises:
        ConfigurationError: (on entering) it is not possible to listen there.
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
        #: The port in use; not 0 any more once entered.
        self.port = port
        self._config = _Config(app)
        self._ssl_context = ssl_context
        self._hosting = get_hosting() if hosting is None else hosting
        self._state = _State(self._hosting)
        self._buffer = memoryview(bytearray(_BUFFER_SIZE))
        self._acceptor: Acceptor
        self._loop: asyncio.AbstractEventLoop

    async def __aenter__(self) -> Self:
        sockets = await open_sockets(self.host, self.port)
        self.port = sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._acceptor = Acceptor(sockets, self._serve)
        self._acceptor.start()
        logger.debug("Listening on %s.", format_address(self.host, self.port))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end = self._loop.time() + self._hosting.limits.drain_timeout
        try:
            self._state.is_stopping = True
            await self._acceptor.close()
            await self._retire(end)
            await self._cut()
        finally:
            for connection in list(self._state.connections):
                connection.abort()
            for handshake in list(self._state.handshakes):
                handshake.abort()

    def _serve(self, connection: socket.socket) -> None:
        """Take over an accepted connection."""
        task = self._loop.create_task(self._connect(connection))
        self._state.arrivals.add(task)
        task.add_done_callback(self._state.arrivals.discard)

    async def _connect(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone already
            await self._loop.connect_accepted_socket(self._make_protocol, connection)

    def _make_protocol(self) -> HTTPProtocol | SecureTransport:
        if self._ssl_context is None:
            return self._make_http()
        state = self._state
        return SecureTransport(self._ssl_context(), self._make_http, state.handshakes, self._buffer)

    def _make_http(self) -> HTTPProtocol:
        return HTTPProtocol(self._config, self._state)

    async def _retire(self, end: float) -> None:
        """Let each connection end when its last request is answered, or when none comes."""
        fresh_end = self._loop.time() + _FRESH_SECONDS
        quiet_end = self._loop.time() + _QUIET_SECONDS
        while self._has_connections() and (now := self._loop.time()) < end:
            await asyncio.sleep(_STEP)
            for connection in list(self._state.connections):
                is_old = connection.has_served or connection.get_idle_time() > _FRESH_SECONDS
                if now >= (quiet_end if is_old else fresh_end):
                    connection.shutdown()
            if now >= fresh_end:
                for handshake in list(self._state.handshakes):
                    handshake.abort()

    def _has_connections(self) -> bool:
        return bool(self._state.connections or self._state.handshakes or self._state.arrivals)

    async def _cut(self) -> None:
        """End what has taken too long."""
        pending = set(self._state.tasks)
        if pending:
            limit = self._hosting.limits.drain_timeout
            logger.warning("Cutting %d requests after %s seconds.", len(pending), limit)
        for connection in list(self._state.connections):
            connection.cut()
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=_CLOSING_SECONDS)
        end = self._loop.time() + _CLOSING_SECONDS
        while self._has_connections() and self._loop.time() < end:  # noqa: ASYNC110 - many sets
            await asyncio.sleep(_STEP)
