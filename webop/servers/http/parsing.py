"""From the bytes of a connection to HTTP requests, with bounds on what their heads may hold."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools

from webop.servers.http.answers import EXCHANGE_EXTENSION, Answer, build_refusal
from webop.servers.http.exchange import HTTPExchange

if TYPE_CHECKING:
    from webop.servers.http.protocol import HTTPProtocol

_MAX_HEAD = 64 * 1024  # bytes of the URL and the headers
_HEADER_OVERHEAD = 32  # bytes that count for each header beside its text


class RefusedError(Exception):
    """What has come is not to be served.

    Args:
        answer: what to say about it.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


class _TooLargeError(Exception):
    """The head of a request is larger than anyone needs."""


class RequestParser:
    """Parses requests, and gives them to the connection as exchanges.

    Args:
        protocol: the connection.
        scope: what the scopes of all of its requests have in common, with their extensions.
        root_path: where the app is mounted, as of ASGI.
    """

    def __init__(self, protocol: HTTPProtocol, scope: dict[str, Any], root_path: str) -> None:
        self._protocol = protocol
        self._scope = scope
        self._state: dict[str, Any] = scope["state"]
        self._extensions: dict[str, Any] = scope["extensions"]
        self._root_path = root_path
        self._parser: Any = httptools.HttpRequestParser(self)
        self._get_time = asyncio.get_running_loop().time
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = 0  # of what is parsed
        self._received = 0  # bytes of a head that is not complete yet
        self._is_expecting = False
        #: Whether a request has begun whose head is not complete yet.
        self.is_in_head = False
        #: The request of which the head is complete, and the rest is not.
        self.incoming: HTTPExchange | None = None
        #: When the latest request has begun, in the time of the event loop.
        self.arrival = 0.0
        #: The length of its body; None if that is not known beforehand.
        self.length: int | None = 0

    @property
    def is_partial(self) -> bool:
        """Whether a request has come in part."""
        return self.is_in_head or self.incoming is not None

    def feed(self, data: bytes) -> bool:
        """Parse what has come; tell whether there can be more requests.

        Raises:
            RefusedError: this is not HTTP, or the head of a request is too large.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return False  # that request is served as any other: an upgrade is only an offer
        except httptools.HttpParserError as error:
            raise RefusedError(_build_objection(error)) from error
        if self.is_in_head:
            self._received += len(data)
            if self._received > _MAX_HEAD:
                raise RefusedError(_HEAD_TOO_LARGE)
        return True

    def stop(self) -> HTTPExchange | None:
        """Parse no more; return the request of which the body is not complete."""
        incoming, self.incoming = self.incoming, None
        self.is_in_head = False
        self._parser = None  # it refers to this object
        return incoming

    # What the parser of HTTP tells.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._url = b""
        self._headers = []
        self._head_size = self._received = 0
        self._is_expecting = False
        self.is_in_head = True
        self.arrival = self._get_time()
        self.length = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._head_size += len(url)
        if self._head_size > _MAX_HEAD:
            raise _TooLargeError
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; or a trailer, which are of no use, but count, too."""
        self._head_size += len(name) + len(value) + _HEADER_OVERHEAD
        if self._head_size > _MAX_HEAD:
            raise _TooLargeError
        name = name.lower()
        self._headers.append((name, value))
        if name == b"content-length":
            self.length = int(value)
        elif name == b"transfer-encoding":
            self.length = None
        elif name == b"expect":
            self._is_expecting = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """Make an exchange of the head."""
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        version = self._parser.get_http_version()
        scope = {
            **self._scope,
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "path": self._root_path + (unquote(path) if "%" in path else path),
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "state": self._state.copy(),
        }
        is_kept = version == "1.1" and self._parser.should_keep_alive()
        exchange = HTTPExchange(self._protocol, scope, self.arrival, is_kept=is_kept)
        exchange.is_expecting = self._is_expecting
        scope["extensions"] = {**self._extensions, EXCHANGE_EXTENSION: exchange}
        self.is_in_head = False
        self.incoming = exchange
        self._protocol.begin(exchange)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        if self.incoming is not None:
            self.incoming.feed(body)

    def on_message_complete(self) -> None:
        """Take note of the end of a request."""
        if self.incoming is not None:
            self.incoming.complete()
            self.incoming = None


_HEAD_TOO_LARGE = build_refusal(
    431, f"The head of the request is too large: {_MAX_HEAD} bytes at most.", closes=True
)


def _build_objection(error: httptools.HttpParserError) -> Answer:
    """Say what is wrong with a request that the parser does not take."""
    if isinstance(error.__context__, _TooLargeError):
        return _HEAD_TOO_LARGE
    reason = error.__context__ or error
    return build_refusal(400, f"This is not a valid HTTP request: {reason}.", closes=True)
