"""Pools of connections: one per credentials, opened with the first use, closed after the last.

Place in the flow: between the :class:`~webop.client.credentials.Vault` and the transports.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode, urlsplit

from webop.client.credentials import check_proxy, find_server_problem, quote_url
from webop.client.transport import Request, Response, Transport
from webop.errors import LoginError
from webop.tracing import Description, build_trace_headers
from webop.version import __version__

if TYPE_CHECKING:
    from webop.client.credentials import ConnectionInfo, Vault
    from webop.client.requests import Call
    from webop.client.transport import TransportFactory

# Seconds. A server that starts, or an authentication webhook that stumbles, refuses good
# credentials for a moment. Only a request that is sent later than this can confirm a 401.
FORGIVENESS = 0.3


def _get_time() -> float:
    return asyncio.get_running_loop().time()


class NetworkOptions(Protocol):
    """What the client needs to know; read at each call, so that live changes count.

    All times are in seconds; None means no limit. ``settings.networking`` satisfies it.
    """

    request_timeout: float | None  # the limit for a whole regular request with its response
    connect_timeout: float | None  # the same for the TCP handshake in it

    @property
    def error_backoffs(self) -> float | Iterable[float]:
        """The pauses between the attempts: one attempt more than pauses."""

    enforce_retry_after: bool  # whether the server's pause counts also when it is a shorter one
    trust_env: bool  # whether new connections take proxies from the environment


class Session:
    """The connections of some credentials, and what the API server thinks of these.

    Attributes:
        info: the credentials.
        transport: the connections.
        users: how many requests and streams are using it.
        is_refused: whether two requests in a row have got a 401, the second one later than
            :data:`FORGIVENESS` after the first one, and none another response in between.
    """

    def __init__(
        self, info: ConnectionInfo, transport: Transport, vault: Vault, *, trusts_env: bool = False
    ) -> None:
        self.info = info
        self.transport = transport
        self._authorization = info.authorization
        url = urlsplit(info.server)
        # A user in the URL is for the transport.
        if self._authorization is None and trusts_env and url.username is None:
            self._authorization = _read_netrc(url.hostname or "")
        self.users = 0
        self.is_refused = False
        self._vault = vault
        self._base = url.path.rstrip("/")
        self._address, self._port = url.hostname, url.port
        self._headers: dict[tuple[str, str | None], bytes] = {}
        # Since when nothing but 401 (and 5xx, of those in between) has come, by the loop's clock;
        # infinity for "no response yet", None if the last response was another one.
        self._doubted_since: float | None = math.inf

    async def send(self, call: Call, connect_timeout: float | None) -> Response:
        """Send a request; take note of whether the API server accepts the credentials."""
        since = self._doubted_since
        is_decisive = since is not None and _get_time() - since >= FORGIVENESS
        target = self._base + call.path
        if call.params:
            target = f"{target}{'&' if '?' in call.path else '?'}{urlencode(call.params)}"
        key = (call.accept, None if call.content is None else call.content_type)
        headers = (self._headers.get(key) or self._build_headers(*key)) + build_trace_headers()
        response = await self.transport.send(
            Request(call.method, target, headers, call.content, connect_timeout)
        )
        if response.status == 401:
            if self._doubted_since in (None, math.inf):
                self._doubted_since = _get_time()
            elif is_decisive and since == self._doubted_since:
                self.is_refused = True
        elif self._doubted_since is not None and response.status < 500:
            self._doubted_since = None
            self.is_refused = False
            self._vault.confirm()
        return response

    def describe(self, call: Call) -> Description:
        """Say what a request is, for traces, by the conventions of OpenTelemetry for HTTP."""
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
        lines = [f"{key}: {value}\r\n" for key, value in values.items() if value is not None]
        if not all(line[:-2].isprintable() for line in lines):
            message = f"{accept!r} or {content_type!r} is not a media type"
            raise ValueError(message)
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
    pair = f"{found[0]}:{found[2] or ''}".encode()
    return "Basic " + base64.b64encode(pair).decode("ascii")


def _check(info: ConnectionInfo) -> None:
    """Refuse what no request can be made with.

    Raises:
        LoginError: says what it is.
    """
    if problem := find_server_problem(info.server):
        message = f"The server {quote_url(info.server)} {problem}"
        raise LoginError(message, kind="The URL of the server is wrong.")
    if info.proxy_url is not None:
        check_proxy(info.proxy_url)
    value = info.authorization
    if value is not None and not (value.isascii() and value.isprintable()):  # RFC 9110, 5.5
        raise LoginError(
            "The token cannot be sent: it has line breaks in it, or characters beyond ASCII. "
            "Strip whitespace from tokens read from files",
            kind="The token cannot be sent.",
        )


class SessionPool:
    """The sessions of all credentials of a vault."""

    def __init__(
        self, vault: Vault, options: NetworkOptions, transport_factory: TransportFactory
    ) -> None:
        self._vault = vault
        self.options = options
        self._transport_factory = transport_factory
        self._sessions: dict[int, Session] = {}
        self._is_closed = False

    async def acquire(self, last: Session | None = None) -> Session:
        """Take valid credentials with their connections; wait for them if there are none.

        Args:
            last: what to take again if its credentials are still valid.

        Raises:
            LoginError: there are no credentials, or they are not usable; or all is over.
        """
        if self._is_closed:
            raise LoginError(
                "The client is closed: its operator, or its `async with` block, has ended."
            )
        if last is not None and last.info in self._vault:
            last.users += 1
            return last
        info, is_new = await self._vault.get(), False
        while (session := self._sessions.get(id(info))) is None:
            info, is_new = await self._open(info), True
        session.users += 1  # at once: nobody must close it as unused
        if is_new:
            try:
                await self._close_outdated()
            except BaseException:
                session.users -= 1
                raise
        return session

    async def release(self, session: Session) -> None:
        """Give a session back: each one that was acquired, exactly once."""
        session.users -= 1
        if not session.users and session.info not in self._vault:
            await self._close_outdated()

    async def aclose(self) -> None:
        """Close all connections, those in use included."""
        self._is_closed = True
        async with contextlib.AsyncExitStack() as stack:  # also if it is cancelled in between
            while self._sessions:
                stack.push_async_callback(self._sessions.popitem()[1].transport.aclose)

    async def _open(self, info: ConnectionInfo) -> ConnectionInfo:
        """Open a session for credentials; if these are not even readable, return the next ones."""
        try:
            _check(info)
            trusts_env = info.trust_env or self.options.trust_env
            transport = self._transport_factory(dataclasses.replace(info, trust_env=trusts_env))
        except LoginError as exc:
            return await self._vault.invalidate(info, error=exc)
        self._sessions[id(info)] = Session(info, transport, self._vault, trusts_env=trusts_env)
        return info

    async def _close_outdated(self) -> None:
        """Close what nobody uses, and nobody will: the credentials are not valid any more."""
        for key, session in list(self._sessions.items()):
            is_outdated = not session.users and session.info not in self._vault
            # While one pool is being closed, somebody else can have come here for the next one.
            if is_outdated and self._sessions.pop(key, None) is not None:
                await session.transport.aclose()
