"""The default HTTP transport of the client: httpx's interface in front, aiohttp's engine behind.

The seam is ``httpx.AsyncBaseTransport``: tests put ``httpx.MockTransport`` there. The engine was
chosen by measurement: a PATCH over httpx's own one takes several times more CPU. For the same
reason, requests are prepared with what they need only: building a usual ``httpx.Request`` takes
as much time as everything that webop does around a PATCH.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import NEEDS_CLEANUP_CLOSED
from multidict import CIMultiDict
from yarl import URL

from webop.client.tls import build_ssl_context
from webop.own_threads import call_in_own_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from webop.client.credentials import ConnectionInfo

TransportFactory = Callable[["ConnectionInfo"], httpx.AsyncBaseTransport]

# Seconds. Below the 90 s after which the Go server closes idle connections itself: a request that
# is sent into a connection that is being closed would fail, and PATCH is not resent silently.
_KEEPALIVE = 60.0


class LazyURL(httpx.URL):
    """A URL that is parsed when somebody looks into it: the default transport does not."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        # Called for absent attributes only: those that the parsing sets.
        if name == "_text" or "_text" not in self.__dict__:
            raise AttributeError(name)
        super().__init__(self.__dict__.pop("_text"))
        return getattr(self, name)

    def __str__(self) -> str:
        text: str | None = self.__dict__.get("_text")
        return super().__str__() if text is None else text


def build_request(
    method: str,
    url: str,
    headers: httpx.Headers,
    content: bytes | None = None,
    connect_timeout: float | None = None,
) -> httpx.Request:
    """Build a request with the URL parsed lazily; the headers are shared and must not be changed.

    Args:
        method: in upper case.
        url: absolute, quoted.
        headers: all but Host and Content-Length, which are up to the transport.
        content: the body.
        connect_timeout: in seconds, for the TCP handshake.
    """
    request = httpx.Request(
        method,
        _NOWHERE,
        headers=headers,
        stream=httpx.ByteStream(content or b""),
        extensions={"timeout": {"connect": connect_timeout}},
    )
    request.url = LazyURL(url)
    request.read()
    return request


def build_transport(info: ConnectionInfo) -> httpx.AsyncBaseTransport:
    """Make a transport with a pool of connections for one set of credentials.

    Raises:
        LoginError: the TLS credentials are not usable.
    """
    return AiohttpTransport(info)


class AiohttpTransport(httpx.AsyncBaseTransport):
    """A pool of connections to one server.

    The pool is not limited: each watch keeps a connection, and none may starve the requests.
    """

    def __init__(self, info: ConnectionInfo) -> None:
        self._info = info
        self._context = build_ssl_context(info)
        self._session: aiohttp.ClientSession | None = None
        self._headers: dict[tuple[tuple[bytes, bytes], ...], CIMultiDict[str]] = {}
        self._timeouts: dict[float | None, aiohttp.ClientTimeout] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the response is to be read and closed by the caller."""
        session = self._session or self._open()
        try:
            response = await session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=self._convert(request.headers),
                data=request.content or None,
                timeout=self._get_timeout(request),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError) as exc:
            raise httpx.NetworkError(_explain(exc), request=request) from exc
        return httpx.Response(
            response.status, headers=response.raw_headers, stream=_Content(response)
        )

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                resolver=_Resolver(),
                ssl=self._context,
                keepalive_timeout=_KEEPALIVE,
                # Those of cancelled requests say farewell in TLS; close() is not to wait for it.
                enable_cleanup_closed=NEEDS_CLEANUP_CLOSED,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            proxy=self._info.proxy_url,
            trust_env=self._info.trust_env,
        )
        return self._session

    def _convert(self, headers: httpx.Headers) -> CIMultiDict[str]:
        key = tuple(headers.raw)
        converted = self._headers.get(key)
        if converted is None:
            converted = self._headers[key] = CIMultiDict(headers.multi_items())
        return converted

    def _get_timeout(self, request: httpx.Request) -> aiohttp.ClientTimeout:
        connect = request.extensions.get("timeout", {}).get("connect")
        timeout = self._timeouts.get(connect)
        if timeout is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect)
            self._timeouts[connect] = timeout
        return timeout


class _Resolver(AbstractResolver):
    """Resolves names beside the threads of the event loop, which the user's calls may fill."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        look_up = partial(socket.getaddrinfo, flags=socket.AI_ADDRCONFIG)
        infos = await call_in_own_thread(look_up, host, port, family, socket.SOCK_STREAM)
        return [
            ResolveResult(
                hostname=host,
                host=socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0],
                port=port,
                family=found,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for found, _, proto, _, address in infos
        ]

    async def close(self) -> None:
        """Nothing is kept."""


class _Content(httpx.AsyncByteStream):
    """The content of a response, in pieces as large as have come."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = self._response.content.readany
        try:
            while chunk := await read():
                yield chunk
        except (aiohttp.ClientError, OSError) as exc:
            raise httpx.ReadError(_explain(exc)) from exc

    async def aclose(self) -> None:
        # What is not read to the end is not read at all: the connection is not reused. It is cut
        # off: the farewell of TLS would wait for the server, maybe longer than the loop runs.
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._response.close()


_NOWHERE = httpx.URL("https://kubernetes.default.svc")


def _explain(exc: Exception) -> str:
    """Tell the reason in the words of the operating system, where it has some."""
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return (
            f"the certificate of {exc.host}:{exc.port} is not trusted: {exc.certificate_error}. "
            f"Check the CA in the credentials, and the address of the server"
        )
    if isinstance(exc, aiohttp.ClientSSLError):
        # Its errno is one of TLS, which means something else to the operating system.
        return f"no TLS connection to {exc.host}:{exc.port}: {exc.os_error}"
    if isinstance(exc, aiohttp.ClientConnectorError):
        code = exc.os_error.errno
        reason = os.strerror(code) if code and code > 0 else str(exc.os_error)
        return f"no connection to {exc.host}:{exc.port}: {reason}"
    return str(exc) or type(exc).__name__
