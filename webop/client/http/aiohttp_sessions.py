"""Requests through a session of aiohttp that a login handler has created.

This is the transport of :class:`webop.AiohttpSession`, whose users install aiohttp.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from webop.client.http.transport import NotSentError, Request, TransportError
from webop.logs.sanitizing import hide_secrets

if TYPE_CHECKING:
    from webop.client.auth.vault import AiohttpSession


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise the errors of aiohttp as those of transports."""
    try:
        yield
    except aiohttp.ClientError as exc:
        # Its errors quote the URLs of proxies with their passwords.
        reason = hide_secrets(str(exc)) or type(exc).__name__
        is_sent = not isinstance(exc, aiohttp.ClientConnectorError)
        raise (TransportError if is_sent else NotSentError)(f"aiohttp: {reason}") from None


class SessionResponse:
    """A response whose content can still arrive."""

    is_complete = False  # it is not known here

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.raw_headers}
        self._response = response

    async def receive(self) -> bytes:
        """Wait for a piece of the content; nothing at the end."""
        with _translated():
            return await self._response.content.readany()

    async def aclose(self) -> None:
        """Close the connection if the content was not received to the end."""
        if not self._response.content.at_eof():
            self._response.close()


class SessionTransport:
    """The connections of the session, with its authentication."""

    def __init__(self, info: AiohttpSession) -> None:
        url = urlsplit(info.server)
        self._root = f"{url.scheme}://{url.netloc}"
        self._session: aiohttp.ClientSession = info.aiohttp_session

    async def send(self, request: Request) -> SessionResponse:
        """Send a request, wait for the head of its response. Redirections are not followed."""
        if self._session.closed:
            raise NotSentError("the session of aiohttp is closed")
        lines = request.headers.decode("latin-1").splitlines()
        headers = dict(line.split(": ", 1) for line in lines)
        if "User-Agent" in self._session.headers:
            headers.pop("User-Agent", None)
        with _translated():
            response = await self._session.request(
                request.method,
                URL(self._root + request.target, encoded=True),
                headers=headers,
                data=request.content,
                allow_redirects=False,
                raise_for_status=False,  # also if the session raises by default
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=request.connect_timeout),
            )
        found = SessionResponse(response)
        if self._session.auto_decompress:
            found.headers.pop(b"content-encoding", None)
        return found

    async def aclose(self) -> None:
        """Close the session. Requests in flight fail."""
        await self._session.close()
