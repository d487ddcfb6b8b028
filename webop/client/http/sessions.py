"""Sessions: the connections of each credentials, opened at the first use, closed after the last."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode, urlsplit

from webop.client.auth.urls import build_basic, check_proxy, find_server_problem, quote_url
from webop.client.auth.vault import AiohttpSession
from webop.client.http.transport import Request, Transport
from webop.errors import LoginError
from webop.telemetry.tracing import Description, build_trace_headers
from webop.version import __version__

if TYPE_CHECKING:
    from webop.client.auth.vault import ConnectionInfo, Vault
    from webop.client.http.requests import Call
    from webop.client.http.transport import TransportFactory

# Seconds. A starting server, or a failing authentication webhook, can refuse good credentials for a
# moment. Only a request that is sent later than this can confirm a 401.
FORGIVENESS = 0.3


class NetworkOptions(Protocol):
    """The settings of the client, such as ``settings.networking``. Changes take effect.

    All times are in seconds; None means no limit.
    """

    request_timeout: float | None  # the limit for a whole regular request with its response
    connect_timeout: float | None  # the same for the TCP handshake in it

    @property
    def error_backoffs(self) -> float | Iterable[float]:
        """The pauses between the attempts; there is one attempt more than pauses."""

    enforce_retry_after: bool  # whether the server's pause counts also when it is a shorter one
    trust_env: bool  # whether new connections take proxies from the environment


class Session:
    """The connections of some credentials, and whether the API server accepts these.

    Attributes:
        users: how many requests and streams are using it.
        is_refused: whether two requests got a 401, the second one at least :data:`FORGIVENESS`
            after the first one, with no other response in between.
    """

    def __init__(
        self, info: ConnectionInfo, transport: Transport, vault: Vault, *, trusts_env: bool = False
    ) -> None:
        self.info = info
        self.transport = transport
        self._authorization = info.authorization
        url = urlsplit(info.server)
        # The transport sends the user of the URL, if there is one.
        if self._authorization is None and trusts_env and url.username is None:
            self._authorization = _read_netrc(url.hostname or "")
        self.users = 0
        self.is_refused = False
        self._vault = vault
        self._base = url.path.rstrip("/")
        self._address, self._port = url.hostname, url.port
        self._headers: dict[tuple[str, str | None], bytes] = {}
        # The time (of the event loop) since when all responses were 401 (or 5xx, maybe of proxies);
        # infinity before the first response, None if the last response was another one.
        self._doubted_since: float | None = math.inf

    def build_request(self, call: Call, connect_timeout: float | None) -> Request:
        """Build the request of a call, with the credentials."""
        target = self._base + call.path
        if call.params:
            target = f"{target}{'&' if '?' in call.path else '?'}{urlencode(call.params)}"
        key = (call.accept, None if call.content is None else call.content_type)
        headers = (self._headers.get(key) or self._build_headers(*key)) + build_trace_headers()
        if call.etag:
            headers += b"If-None-Match: %s\r\n" % call.etag
        return Request(
            call.method, target, headers, call.content, connect_timeout, call.is_repeatable
        )

    def note(self, status: int, sent_at: float) -> None:
        """Note whether the API server accepts the credentials: the response to a request."""
        if status == 401:
            if self._doubted_since in (None, math.inf):
                self._doubted_since = asyncio.get_running_loop().time()
            elif sent_at - self._doubted_since >= FORGIVENESS:
                self.is_refused = True
        elif self._doubted_since is not None and status < 500:
            self._doubted_since = None
            self.is_refused = False
            self._vault.confirmations += 1

    def describe(self, call: Call) -> Description:
        """Describe a request for traces, by the conventions of OpenTelemetry for HTTP."""
        attempt = call.attempt
        attributes = {
            "http.request.method": call.method,
            "server.address": self._address,
            "server.port": self._port,
            "webop.verb": attempt.verb,
            "webop.resource": attempt.resource,
            "k8s.namespace.name": attempt.namespace,
            "webop.object.name": attempt.name,
        }
        name = f"{call.method} {attempt.resource}"
        return Description(name, attributes, kind="CLIENT", is_inner=True)

    def _build_headers(self, accept: str, content_type: str | None) -> bytes:
        values = {
            "Accept": accept,
            "Accept-Encoding": "identity",  # compression costs more CPU than a cluster's network
            "User-Agent": f"webop/{__version__}",
            "Authorization": self._authorization,
            "Content-Type": content_type,
        }
        given = [*values.items(), *self.info.headers]
        lines = [f"{key}: {value}\r\n" for key, value in given if value is not None]
        if not all(line[:-2].isprintable() for line in lines):
            raise ValueError(f"{accept!r} or {content_type!r} is not a media type")
        headers = self._headers[accept, content_type] = "".join(lines).encode("ascii")
        return headers


def _read_netrc(host: str) -> str | None:
    """Return the Basic authorization for a host by the user's ``.netrc``; None if it has none."""
    import netrc  # noqa: PLC0415  rarely needed

    try:
        found = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    if found is None:
        return None
    return build_basic(found[0], found[2] or "")


def _check(info: ConnectionInfo) -> None:
    """Refuse credentials that cannot be used for a request."""
    if problem := find_server_problem(info.server):
        message = f"The server {quote_url(info.server)} {problem}"
        raise LoginError(message, kind="The URL of the server is wrong.")
    if info.proxy_url is not None:
        check_proxy(info.proxy_url)
    for name, value in (("token", info.authorization), *info.headers):
        if value is not None and not (value.isascii() and value.isprintable()):  # RFC 9110, 5.5
            raise LoginError(
                f"The {name} cannot be sent: it has line breaks in it, or characters beyond ASCII. "
                "Strip whitespace from tokens read from files",
                kind=f"The {name} cannot be sent.",
            )


def build_transport(info: ConnectionInfo) -> Transport:
    """Build the transport of credentials; raise LoginError if the TLS or the proxy is unusable."""
    if isinstance(info, AiohttpSession):
        from webop.client.http.aiohttp_sessions import SessionTransport  # noqa: PLC0415 - optional

        return SessionTransport(info)
    from webop.client.http.connections import ConnectionPool  # noqa: PLC0415 - for most

    return ConnectionPool(info)


class SessionPool:
    """The sessions of all credentials of a vault."""

    def __init__(
        self, vault: Vault, trusts_env: Callable[[], bool], transport_factory: TransportFactory
    ) -> None:
        self._vault = vault
        self._trusts_env = trusts_env
        self._transport_factory = transport_factory
        self._sessions: dict[int, Session] = {}
        self._is_closed = False

    def take(self, last: Session | None = None) -> Session | None:
        """Return an open session with valid credentials: the last one if possible; or None.

        The caller must :meth:`release` it once.
        """
        if self._is_closed:
            return None
        if last is None or last.info not in self._vault:
            last = self._sessions.get(id(self._vault.choose()))
        if last is not None:
            last.users += 1
        return last

    async def open(self) -> Session:
        """Open a session; wait for credentials if there are none. See :meth:`take`."""
        if self._is_closed:
            raise LoginError(
                "The client is closed: its operator, or its `async with` block, has ended."
            )
        info = await self._vault.get()
        while (session := self._sessions.get(id(info))) is None:
            try:
                _check(info)
                trusts_env = info.trust_env or self._trusts_env()
                transport = self._transport_factory(dataclasses.replace(info, trust_env=trusts_env))
            except LoginError as exc:
                info = await self._vault.invalidate(info, error=exc)
            else:
                session = Session(info, transport, self._vault, trusts_env=trusts_env)
                self._sessions[id(info)] = session
        session.users += 1  # before any await, so that it is not closed as unused
        try:
            await self.close_outdated()
        except BaseException:
            session.users -= 1
            raise
        return session

    def release(self, session: Session) -> bool:
        """Release a session, once; return whether :meth:`close_outdated` has something to close."""
        session.users -= 1
        return not session.users and session.info not in self._vault

    async def aclose(self) -> None:
        """Close all connections, including those in use."""
        self._is_closed = True
        async with contextlib.AsyncExitStack() as stack:  # even if this is cancelled
            while self._sessions:
                stack.push_async_callback(self._sessions.popitem()[1].transport.aclose)

    async def close_outdated(self) -> None:
        """Close unused sessions whose credentials are no longer valid."""
        for key, session in list(self._sessions.items()):
            is_outdated = not session.users and session.info not in self._vault
            # While one transport is being closed, another task can close the next one.
            if is_outdated and self._sessions.pop(key, None) is not None:
                await session.transport.aclose()
