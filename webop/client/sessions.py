"""Pools of connections: one per credentials, opened with the first use, closed after the last.

Place in the flow: between the :class:`~webop.client.credentials.Vault` and the transports.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import httpx

from webop.client.credentials import find_server_problem
from webop.client.transport import build_request
from webop.errors import LoginError
from webop.version import __version__

if TYPE_CHECKING:
    from webop.client.api import NetworkOptions
    from webop.client.calls import Call
    from webop.client.credentials import ConnectionInfo, Vault
    from webop.client.transport import TransportFactory

_PARALLEL_REQUESTS = 16


class Session:
    """A transport with what is the same in all requests made with the same credentials."""

    __slots__ = ("_base", "_headers", "gate", "info", "transport", "users")

    def __init__(self, info: ConnectionInfo, transport: httpx.AsyncBaseTransport) -> None:
        self.info = info
        self.transport = transport
        self.users = 0
        # Each connection costs a TLS handshake and some 100 KB; many objects at once need no more
        # than these for requests. Streams have their own ones.
        self.gate = asyncio.Semaphore(_PARALLEL_REQUESTS)
        self._base = info.server.rstrip("/")
        self._headers: dict[tuple[str, str | None], httpx.Headers] = {}

    def build_request(self, call: Call, connect_timeout: float | None) -> httpx.Request:
        """Build the HTTP request for a call."""
        url = self._base + call.path
        if call.params:
            url = f"{url}{'&' if '?' in call.path else '?'}{urlencode(call.params)}"
        key = (call.accept, None if call.content is None else call.content_type)
        headers = self._headers.get(key) or self._build_headers(*key)
        return build_request(call.method, url, headers, call.content, connect_timeout)

    def _build_headers(self, accept: str, content_type: str | None) -> httpx.Headers:
        values = {
            "Accept": accept,
            "Accept-Encoding": "identity",  # compression costs more CPU than a cluster's network
            "User-Agent": f"webop/{__version__}",
            "Authorization": self.info.authorization,
            "Content-Type": content_type,
        }
        headers = httpx.Headers({key: value for key, value in values.items() if value is not None})
        self._headers[accept, content_type] = headers
        return headers


def _check(info: ConnectionInfo) -> None:
    """Refuse what no request can be made with.

    Raises:
        LoginError: says what it is.
    """
    addresses = [("server", info.server)]
    if info.proxy_url is not None:
        addresses.append(("proxy", info.proxy_url))
    for what, address in addresses:
        problem = find_server_problem(address)
        if problem:
            message = f"The {what} {address!r} {problem}"
            raise LoginError(message)
    if not _is_for_headers(info.authorization):
        raise LoginError(
            "The token cannot be sent: it has line breaks in it, or characters beyond ASCII. "
            "A token that was read from a file is to be stripped"
        )


def _is_for_headers(value: str | None) -> bool:
    """Tell whether a value can be a header's (RFC 9110, 5.5)."""
    return value is None or (value.isascii() and value.isprintable())


class SessionPool:
    """The sessions of all credentials of a vault."""

    def __init__(
        self, vault: Vault, options: NetworkOptions, transport_factory: TransportFactory
    ) -> None:
        self._vault = vault
        self._options = options
        self._transport_factory = transport_factory
        self._sessions: dict[int, Session] = {}

    async def acquire(self) -> Session:
        """Take valid credentials with their connections; wait for them if there are none.

        Raises:
            LoginError: there are no credentials, or they are not usable.
        """
        info = await self._vault.get()
        session = self._sessions.get(id(info)) or await self._open(info)
        session.users += 1
        return session

    async def release(self, session: Session) -> None:
        """Give a session back: each one that was acquired, exactly once."""
        session.users -= 1
        if not session.users and session.info not in self._vault:
            await self._close_outdated()

    async def aclose(self) -> None:
        """Close all connections, those in use included."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.transport.aclose()

    async def _open(self, info: ConnectionInfo) -> Session:
        """Open a pool for credentials, or for the next ones if these are not even readable."""
        try:
            _check(info)
            trusts_env = info.trust_env or self._options.trust_env
            transport = self._transport_factory(dataclasses.replace(info, trust_env=trusts_env))
        except LoginError as exc:
            next_info = await self._vault.invalidate(info, error=exc)
            return self._sessions.get(id(next_info)) or await self._open(next_info)
        session = self._sessions[id(info)] = Session(info, transport)
        await self._close_outdated()
        return session

    async def _close_outdated(self) -> None:
        """Close what nobody uses, and nobody will: the credentials are not valid any more."""
        for key, session in list(self._sessions.items()):
            is_outdated = not session.users and session.info not in self._vault
            # While one pool is being closed, somebody else can have come here for the next one.
            if is_outdated and self._sessions.pop(key, None) is not None:
                await session.transport.aclose()
