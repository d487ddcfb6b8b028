"""A pool of connections to one API server or its proxy: the default transport of a session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from webop.aio.dedicated_threads import call_in_dedicated_thread
from webop.client.auth.urls import build_basic, check_proxy
from webop.client.http.http1 import Connection, HTTPResponse
from webop.client.http.transport import (
    NotSentError,
    Request,
    TransportError,
    UntrustedServerError,
)

if TYPE_CHECKING:
    from webop.client.auth.vault import ConnectionInfo

# Seconds. Less than the 90 s after which the Go server closes idle connections: a request on a
# connection that the server is closing would fail, and a POST cannot be repeated silently.
_KEEPALIVE = 60.0

_ROUNDS = (1.0, 3.0, 9.0)  # seconds for each address of a host that has several

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HANDSHAKE_TIMEOUT = 60.0  # seconds, if a server or proxy accepts but sends nothing
_BUFFER = 64 * 1024  # bytes
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # of SO_LINGER


class _Address(NamedTuple):
    scheme: str
    host: str
    port: int
    authorization: str | None  # as Basic, from the URL

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return str(self)

    @property
    def name(self) -> str:
        """The host name that the certificate must have."""
        return self.host.rstrip(".")


class ConnectionPool:
    """Connections to one server. Their number is not limited, because each watch keeps one."""

    def __init__(self, info: ConnectionInfo) -> None:
        self._context = info.as_ssl_context()
        url = urlsplit(info.server)
        self._server = _locate(url)
        self._tls_name = info.tls_server_name or self._server.name
        self._proxy = _find_proxy(info, self._server)
        host = str(self._server)
        if self._server.port == _DEFAULT_PORTS.get(self._server.scheme):
            host = host.removesuffix(f":{self._server.port}")
        lines = [f"Host: {host}"]
        if self._server.authorization and not info.authorization:
            lines.append(f"Authorization: {self._server.authorization}")
        self._prefix = b""
        if self._proxy is not None and self._server.scheme == "http":
            self._prefix = f"http://{host}".encode()
            if self._proxy.authorization:
                lines.append(f"Proxy-Authorization: {self._proxy.authorization}")
        self._head = "".join(f"{line}\r\n" for line in lines).encode()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._connections: set[Connection] = set()
        self._opening: set[asyncio.Timeout] = set()  # of connections that are being opened
        self._idle: list[Connection] = []  # the last one was used last
        self._cleaning: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def send(self, request: Request) -> HTTPResponse:
        """Send a request, wait for the head of its response.

        If the server closes a kept connection before it responds, the request is repeated on a new
        one, if it is repeatable.
        """
        data = self._encode(request)
        kept = self._take()
        while True:
            connection = kept or await self._open(request.connect_timeout)
            response = connection.send(data)
            try:
                while not response.status:
                    await response.wait()
            except TransportError:
                if kept is None or self._is_closed:
                    raise
                if response.has_begun or not request.is_repeatable():
                    raise
                kept = None
            else:
                return response

    async def aclose(self) -> None:
        """Close all connections. Requests in flight fail."""
        self._is_closed = True
        if self._cleaning is not None:
            self._cleaning.cancel()
        for connection in list(self._connections):
            connection.abort()
        for limit in self._opening:
            if not limit.expired():
                limit.reschedule(0)
        await asyncio.sleep(0)  # the event loop closes the sockets after this step

    def _encode(self, request: Request) -> bytes:
        method, target, headers, content, *_ = request
        if " " in target or not target.isprintable():
            raise ValueError(f"{target!r} is not a valid path: quote blanks and line breaks")
        if content is None and method in {"GET", "DELETE"}:
            length = b""
        else:
            length = b"Content-Length: %d\r\n" % len(content or b"")
        url = self._prefix + (target.encode() or b"/")
        first_line = b"%s %s HTTP/1.1\r\n" % (method.encode(), url)
        return b"".join((first_line, self._head, headers, length, b"\r\n", content or b""))

    def _take(self) -> Connection | None:
        """Return the usable connection that was used last; None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    def _keep(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._cleaning is None:
            self._cleaning = loop.call_later(_KEEPALIVE, self._clean)

    def _clean(self) -> None:
        """Close connections that were idle for too long; schedule the next cleaning."""
        loop = asyncio.get_running_loop()
        latest = loop.time() - _KEEPALIVE
        while self._idle and self._idle[0].idle_since <= latest:
            self._idle.pop(0).abort()
        self._cleaning = None
        if self._idle:
            self._cleaning = loop.call_at(self._idle[0].idle_since + _KEEPALIVE, self._clean)

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    async def _open(self, connect_timeout: float | None) -> Connection:
        first = self._proxy or self._server
        connection = Connection(self._buffer, self._keep, self._forget)
        limit = asyncio.timeout(connect_timeout or None)
        self._opening.add(limit)
        try:
            async with limit:
                sock = await _connect(await _resolve(first))
                # The event loop does the TLS of the proxy; that of the server is inside.
                is_secure = self._proxy is not None and self._proxy.scheme == "https"
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=self._context if is_secure else None,
                    server_hostname=first.name if is_secure else None,
                )
                self._connections.add(connection)
                await self._set_up(connection)
        except BaseException as exc:
            where = first
            if connection in self._connections:
                connection.abort()
                where = self._server
            if isinstance(exc, OSError | UnicodeError):  # UnicodeError: an invalid name
                if self._is_closed:
                    raise NotSentError("the connection was closed") from exc
                raise _explain(exc, where) from exc
            raise
        finally:
            self._opening.discard(limit)
        if self._is_closed:
            connection.abort()
        return connection

    async def _set_up(self, connection: Connection) -> None:
        """Connect through the proxy, and do the TLS handshake."""
        if self._server.scheme == "http":
            return
        if self._proxy is not None:
            lines = [f"CONNECT {self._server} HTTP/1.1", f"Host: {self._server}"]
            if self._proxy.authorization:
                lines.append(f"Proxy-Authorization: {self._proxy.authorization}")
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT):
                refusal = await connection.tunnel("\r\n".join([*lines, "", ""]).encode())
            if refusal:
                raise TransportError(f"the proxy {self._proxy} refused the connection: {refusal!r}")
        async with asyncio.timeout(_HANDSHAKE_TIMEOUT):
            await connection.secure(self._context, self._tls_name)


# Of socket.getaddrinfo().
_Resolved = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def _locate(url: SplitResult) -> _Address:
    credentials = None
    if url.username is not None:
        credentials = build_basic(unquote(url.username), unquote(url.password or ""))
    port = url.port or _DEFAULT_PORTS.get(url.scheme, 80)
    return _Address(url.scheme, url.hostname or "", port, credentials)


def _find_proxy(info: ConnectionInfo, server: _Address) -> _Address | None:
    """Return the proxy of the credentials, or that of the environment if it is trusted."""
    proxy = info.proxy_url
    if proxy is None and info.trust_env:
        import urllib.request  # noqa: PLC0415 - heavy, and rarely needed

        # With and without the port; so an IPv6 address is also checked without brackets.
        if not any(map(urllib.request.proxy_bypass, (str(server), server.host))):
            proxy = urllib.request.getproxies().get(server.scheme)
            if proxy and "://" not in proxy:
                proxy = f"http://{proxy}"
    if not proxy:
        return None
    check_proxy(proxy)
    return _locate(urlsplit(proxy))


def _explain(exc: OSError | UnicodeError, server: _Address) -> NotSentError:
    """Return an error with the text of the operating system, if it has one."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return UntrustedServerError(
            f"the certificate of {server} is not trusted: {exc}. "
            f"Check the CA in the credentials, and the address of the server"
        )
    if isinstance(exc, ssl.SSLError):
        # Its errno is one of TLS, not of the operating system.
        return NotSentError(f"no TLS connection to {server}: {exc}")
    code = exc.errno if isinstance(exc, OSError) else None
    reason = os.strerror(code) if code and code > 0 else str(exc) or "no response in time"
    return NotSentError(f"no connection to {server}: {reason}")


async def _resolve(server: _Address) -> list[_Resolved]:
    """Resolve a name in a dedicated thread: handlers can occupy those of the event loop."""

    def look_up(flags: int) -> list[_Resolved]:
        return [*socket.getaddrinfo(server.host, server.port, 0, socket.SOCK_STREAM, 0, flags)]

    try:
        return look_up(socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await call_in_dedicated_thread(look_up, socket.AI_ADDRCONFIG)


async def _connect(addresses: list[_Resolved]) -> socket.socket:
    """Connect to the first address that responds; try slow ones again, with more time."""
    failures: list[OSError] = [TimeoutError()]
    for limit in _ROUNDS if addresses[1:] else (None,):
        for address in addresses:
            try:
                async with asyncio.timeout(limit):
                    return await _connect_to(address)
            except OSError as exc:
                failures.append(exc)
        if not any(isinstance(exc, TimeoutError) for exc in failures[-len(addresses) :]):
            break
    raise failures[-1]


async def _connect_to(address: _Resolved) -> socket.socket:
    family, kind, proto, _, target = address
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)  # noqa: FBT003 - of sockets
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Otherwise the kernel would still send data after the close: a replica that lost its lease
        # while the network was down would later overwrite what the new leader has stored.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        await asyncio.get_running_loop().sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock
