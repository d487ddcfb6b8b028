"""The interface between the client and what sends its requests: by default, webop's own HTTP/1.1.

Tests use other transports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from webop.client.auth.vault import ConnectionInfo


class TransportError(OSError):
    """A request got no complete response; the text says why."""


class NotSentError(TransportError):
    """The request was not sent: there is no connection."""


class UntrustedServerError(NotSentError):
    """The certificate of the server is not trusted: its CA can have been replaced."""


class Request(NamedTuple):
    """An HTTP request.

    Attributes:
        method: in upper case.
        target: the path and the query from the root of the server, quoted.
        headers: encoded lines, each with its line end; without those that depend on the connection
            and on the length of the content.
        content: the body; None if there is none.
        connect_timeout: the limit for opening a new connection, in seconds; None means no limit.
        is_repeatable: returns whether it can be sent again if the server may have executed it.
    """

    method: str
    target: str
    headers: bytes
    content: bytes | None = None
    connect_timeout: float | None = None
    is_repeatable: Callable[[], bool] = bool

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.target}>"  # the headers have the credentials


class Response(Protocol):
    """A response whose content can still arrive."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The headers by names in lower case."""

    @property
    def is_complete(self) -> bool:
        """Whether all of it has arrived; False also if that is unknown."""

    async def receive(self) -> bytes:
        """Wait for the next piece of the content; nothing at the end.

        Raises:
            TransportError: the content was cut off.
        """

    async def aclose(self) -> None:
        """Close the connection if the content was not received to the end."""


class Transport(Protocol):
    """Connections to one API server with one set of credentials."""

    async def send(self, request: Request) -> Response:
        """Send a request, wait for the head of its response.

        Raises:
            TransportError: there is no response.
        """

    async def aclose(self) -> None:
        """Close all connections. Requests in flight fail."""


TransportFactory = Callable[["ConnectionInfo"], Transport]
