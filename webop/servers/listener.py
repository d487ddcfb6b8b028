"""Running an ASGI app on a port, in the running event loop, by uvicorn's HTTP protocol.

Only the protocol is taken from uvicorn: its ``Server`` ends the process when a port is taken,
installs signal handlers, and polls ten times a second. What is here instead: sockets with clear
errors, the verified client certificate in the ASGI scope, and a stop that lets what is in flight
be answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from webop.servers.endpoint import SSLPEER_EXTENSION
from webop.servers.sockets import format_address, open_sockets

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

logger = logging.getLogger(__name__)

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]

# API servers keep idle connections for 90 seconds. They must be the first to close: a request
# that meets a connection being closed by the server fails.
_KEEP_ALIVE_SECONDS = 120
_HANDSHAKE_SECONDS = 10.0
_CLOSING_SECONDS = 1.0  # for those who do not answer to the closing of TLS
_BACKLOG = 2048


class _State(ServerState):
    """What the connections of one listener share."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopping = False
        self.idle = asyncio.Event()  # there are no connections left; watched while stopping


class HTTPProtocol(HttpToolsProtocol):
    """HTTP/1.1 that hands on verified client certificates, and sends a response at once.

    The certificate gets into the extensions of the ASGI scope. It works under uvicorn alone, too::

        uvicorn --http webop.servers.listener:HTTPProtocol webop.app:app
    """

    _sslpeer: dict[object, object] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection (after the TLS handshake, if there is any)."""
        super().connection_made(transport)
        # It is empty for a certificate that the context was not told to verify.
        self._sslpeer = transport.get_extra_info("peercert") or None
        if isinstance(self.server_state, _State) and self.server_state.is_stopping:
            transport.abort()  # its handshake took longer than we have

    def connection_lost(self, exc: Exception | None) -> None:
        """End the service of a connection."""
        super().connection_lost(exc)
        if isinstance(self.server_state, _State) and not self.connections:
            self.server_state.idle.set()

    def on_message_begin(self) -> None:
        """Begin to parse a request."""
        super().on_message_begin()
        if self._sslpeer is not None:
            self.scope.setdefault("extensions", {})[SSLPEER_EXTENSION] = self._sslpeer

    def on_headers_complete(self) -> None:
        """Begin to serve a request."""
        super().on_headers_complete()
        cycle: RequestResponseCycle | None = self.cycle  # there is none for websockets
        if cycle is not None and self.scope["method"] != "HEAD":  # which has no body to wait for
            cycle.transport = _ResponseTransport(cycle)


class _ResponseTransport(asyncio.Transport):
    """The transport of one response: its head waits for the body (as ASGI wants, too).

    Head and body are one TLS record and one packet then, and one wake-up of the client. On
    asyncio's own loop, this is a large part of the CPU time of a small response.
    """

    __slots__ = ("_cycle", "_head", "_is_held", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""
        self._is_held = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hold the head of the response, send everything else."""
        if self._cycle.response_started and not self._is_held:
            self._head = bytes(data)
            self._is_held = True
        elif self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after what is sent."""
        self._transport.close()

    def is_closing(self) -> bool:
        """Tell whether the connection is being closed."""
        return self._transport.is_closing()


class Listener:
    """An async context manager that serves an ASGI app on a port for as long as it is open.

    Flow: open the sockets, serve; on exit stop accepting, close the idle connections, let the
    requests in flight finish within ``grace``, cancel the rest.

    Args:
        app: the ASGI 3 app; its lifespan is not run.
        host: the address or the name to listen on, at all of its addresses; empty for all
            interfaces.
        port: the port to listen on; 0 takes a free one, see :attr:`port`.
        ssl_context: the server's TLS context; None is plain HTTP. Certificates that are loaded
            into it later are used for new connections.
        grace: how many seconds the requests in flight have on exit.

    Raises:
        ConfigurationError: (on entering) it is not possible to listen there.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        ssl_context: ssl.SSLContext | None = None,
        grace: float = 10.0,
    ) -> None:
        self.host = host
        #: The port in use; not 0 any more once entered.
        self.port = port
        self._app = app
        self._ssl_context = ssl_context
        self._grace = grace
        self._servers: list[asyncio.Server] = []
        self._state = _State()

    async def __aenter__(self) -> Self:
        sockets = await open_sockets(self.host, self.port)
        self.port = sockets[0].getsockname()[1]
        config = self._build_config()
        is_secure = self._ssl_context is not None
        loop = asyncio.get_running_loop()
        for sock in sockets:
            server = await loop.create_server(
                lambda: HTTPProtocol(config, self._state, app_state={}),
                sock=sock,
                backlog=_BACKLOG,
                ssl=self._ssl_context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if is_secure else None,
                ssl_shutdown_timeout=_CLOSING_SECONDS if is_secure else None,
            )
            self._servers.append(server)
        logger.debug("Listening on %s.", format_address(self.host, self.port))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._state.is_stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()  # at once if idle, else after the response
        try:
            await self._finish_requests()
            await self._finish_connections()
        finally:
            for connection in list(self._state.connections):
                connection.transport.abort()

    def _build_config(self) -> Config:
        config = Config(
            self._app,
            http=HTTPProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        config.load()
        return config

    async def _finish_requests(self) -> None:
        if not self._state.tasks:
            return
        _, pending = await asyncio.wait(set(self._state.tasks), timeout=self._grace)
        if pending:
            logger.warning("Cutting %d requests after %s seconds.", len(pending), self._grace)
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=_CLOSING_SECONDS)

    async def _finish_connections(self) -> None:
        if self._state.connections:
            self._state.idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._state.idle.wait(), _CLOSING_SECONDS)
