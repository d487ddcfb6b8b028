"""HTTP/1.1 over TLS for a port that everybody in the cluster can reach, by httptools.

Flow: the event loop fills the read buffer; :class:`Connection` decrypts and parses it, and starts
the app (ASGI 3) in a task for each request; :class:`_Request` is the ``receive`` and ``send`` of
that task.

TLS works on buffers in memory here: an idle connection takes 24 KiB, where asyncio's TLS takes 288,
and counts for the limits from its first byte on.

Guarantees:
    - Heads, trailers and connections are limited in number and in bytes. At the limit of
      connections, an idle one makes way (:class:`~webop.servers.http.connection_slots.Slots`).
    - A connection is closed if a TLS handshake or a request is not received, or a response not
      read, within ``read_timeout``; and if it is idle for ``idle_timeout``.
    - A request that crosses the end of an idle connection gets a response: 503 with Retry-After.
    - A request that was received before a malformed one gets its response.
    - Requests are served one at a time. A client that pipelines gets the response to the first one;
      then the connection closes (RFC 9112, 9.3.2: such a client sends the others again).

Caveats: a response that is sent in several parts ends with its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools

from webop.servers.http.connection_slots import Slots
from webop.servers.http.responses import (
    RETRY,
    SSLPEER_EXTENSION,
    Headers,
    Response,
    build_refusal,
)
from webop.servers.limits import MAX_HEAD, MAX_HEADERS, Hosting

logger = logging.getLogger(__name__)

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]

_READ_SIZE = 64 * 1024  # bytes
_USUAL_URL = 256  # bytes
_MAX_DROPPED = 1024 * 1024  # bytes after the last request
_RECORD = 16 * 1024  # bytes of a TLS record; buffers in memory never shrink
LINGERING_SECONDS = 1.5  # for the client to close its side
_FRESH_SECONDS = 1.0  # for the first request of a connection while the server stops
_VERSIONS = ("1.0", "1.1")
_BODILESS = (204, 304)  # statuses
_BODY_HEADERS = (b"content-length", b"transfer-encoding")
_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}


class _RefusedError(Exception):
    """A request breaks a limit or a rule; the argument is the response, or None."""


@dataclass(eq=False)
class Serving:
    """What the connections of a listener share.

    Attributes:
        app: the ASGI 3 app.
        hosting: the limits.
        get_context: returns the TLS context for a new connection; None for plain HTTP.
        buffer: for each read of any connection, as it is parsed at once.
        record: for each TLS record that is decrypted.
        connections: those that are open, also before their TLS handshake.
        requests: those whose tasks run.
        is_stopping: whether the listener is being closed.
    """

    app: ASGIApp
    hosting: Hosting
    get_context: Callable[[], ssl.SSLContext] | None
    slots: Slots
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(_READ_SIZE)))
    record: memoryview = field(default_factory=lambda: memoryview(bytearray(_RECORD)))
    connections: set[Connection] = field(default_factory=set)
    requests: set[_Request] = field(default_factory=set)
    is_stopping: bool = False


class Connection(asyncio.BufferedProtocol):
    """A connection of a client, from the moment when it is accepted."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._loop = asyncio.get_running_loop()
        self._limits = limits = serving.hosting.limits
        self.transport: asyncio.Transport
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_secure = serving.get_context is None  # or the TLS handshake is complete
        self._parser: Any = None  # refers back to this, and goes after the last request
        self._scope: dict[str, Any] = {}  # what all requests have
        self._request = _NO_REQUEST  # the last one
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._received = 0  # bytes since the last request, or since the last part of its body
        self._is_in_head = False
        self._arrival: float | None = None  # of a request that is not complete
        self._idle_since = self._loop.time()
        # A handshake may take as long as a request.
        self._idle_limit = limits.idle_timeout if self._is_secure else limits.read_timeout
        self._is_fresh = False
        self._is_paused = False
        self._is_closed = False  # nothing more is written; what comes is dropped
        self.writable = asyncio.Event()  # the client reads its responses
        self.writable.set()
        self._progress = self._idle_since  # when the client last read a part of a response
        self._unsent = 0  # bytes of responses, at that time
        self._check: asyncio.TimerHandle | None = None

    # Called by the listener.

    def shutdown(self) -> None:
        """Close after the response in flight; a new connection may still send one request."""
        if not self._request.is_over:
            self._request.keep_alive = False
        elif self._serving.is_stopping and not self._is_secure:
            self._begin_fresh()
        elif not self._is_fresh:
            self.make_way()

    @property
    def waiting_since(self) -> float | None:
        """Since when there is no complete request; None if one is being served."""
        request = self._request
        is_read = self.transport.get_write_buffer_size() == 0  # else see _watch()
        if not (is_read and (request.is_over or request.more_body)):
            return None
        return self._idle_since if self._arrival is None else self._arrival

    def make_way(self) -> None:
        """Close, with a response to a request that is on its way: its client then retries.

        Without it, the client could not know whether the request was processed, and API servers
        would fail it. Clients without a request ignore the response (RFC 9112, 9.2).
        """
        # A request whose body is not complete has got its response already.
        is_between = self._is_secure and (self._arrival is None or self._is_in_head)
        if is_between:
            self.write(_CLOSED)
        if self._is_closed:
            self.transport.abort()
        self._close()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection, if it gets a slot."""
        serving = self._serving
        # A cast, not an assertion: the transports of uvloop have no class of asyncio.
        self.transport = cast("asyncio.Transport", transport)
        client = transport.get_extra_info("peername")
        if not serving.slots.take(self, client[0] if client else ""):
            self.transport.abort()
            return
        serving.connections.add(self)
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "http",
            "client": client and client[:2],
            "root_path": "",
            "extensions": {},
        }
        if serving.get_context is not None:
            context = serving.get_context()
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._scope["scheme"] = "https"
        self._parser = httptools.HttpRequestParser(self)
        if serving.is_stopping:  # accepted while the port was being closed
            self._begin_fresh()
        else:
            self._watch()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature of asyncio
        """Return the buffer for the next read."""
        return self._serving.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt and parse the data of a read."""
        data = self._serving.buffer[:nbytes]
        if self._tls is None or self._is_closed:
            self._feed(data)
            return
        for start in range(0, nbytes, _RECORD):
            self._incoming.write(data[start : start + _RECORD])
            self._decrypt(self._tls)

    def pause_writing(self) -> None:
        """Read no more requests until the client has read its responses."""
        self.writable.clear()
        self.choose_reading()

    def resume_writing(self) -> None:
        """Read again."""
        self.writable.set()
        self.choose_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of asyncio
        """Clean up a closed connection."""
        self._serving.slots.free(self)
        self._serving.connections.discard(self)
        if self._check is not None:
            self._check.cancel()
        self.writable.set()
        self._request.end()
        self._request, self._parser, self._tls = _NO_REQUEST, None, None  # no reference cycles

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Begin a request."""
        if not self._request.is_over:
            raise _RefusedError(None)
        self._url, self._headers = b"", []
        self._is_in_head = True
        self._arrival = self._loop.time()

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, or a trailer, which nobody gets."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin to serve a request."""
        parser, headers = self._parser, self._headers
        is_long = self._received > MAX_HEAD and (  # else it is small
            len(self._url) + sum(len(name) + len(value) for name, value in headers) > MAX_HEAD
        )
        if is_long or len(headers) > MAX_HEADERS:
            raise _RefusedError(_HEAD_TOO_LARGE)
        version, found = parser.get_http_version(), dict(headers)
        hosts = [name for name, _ in headers].count(b"host")
        if hosts > 1 or (version == "1.1" and not hosts):  # RFC 9112, 3.2
            reason = f"A request must have one Host header, got {hosts}."
            raise _RefusedError(build_refusal(400, reason))
        if version not in _VERSIONS:
            raise _RefusedError(build_refusal(505, f"HTTP/{version} is not supported."))
        if parser.should_upgrade() and not found.keys().isdisjoint(_BODY_HEADERS):
            raise _RefusedError(_NO_UPGRADE)  # the parser would drop the body
        url = self._url
        path, query = (_split_usual if len(url) < _USUAL_URL else _split)(url)
        self._is_in_head = False
        self._headers = []  # of trailers: proxies do not check those
        scope = {
            **self._scope,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "path": path,
            "query_string": query,
            "headers": headers,
        }
        request = self._request = _Request(self, scope)
        is_old = version == "1.0"
        request.is_awaited = not is_old and found.get(b"expect", b"").lower() == b"100-continue"
        # A client that gets a refusal instead of "100 Continue" may send the next request.
        is_last = request.is_awaited or is_old or self._serving.is_stopping
        request.keep_alive = not is_last and parser.should_keep_alive()
        self._is_fresh = False

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._received = 0
        request = self._request
        if not request.is_over:
            request.body += body
            request.wake()
            if len(request.body) > _READ_SIZE:
                self.choose_reading()

    def on_message_complete(self) -> None:
        """End a request."""
        self._arrival = None
        self._received = 0
        self._request.more_body = False
        self._request.wake()

    # Called by a request.

    def write(self, data: bytes) -> None:
        """Encrypt and send data, unless the connection is closed."""
        if self._is_closed or self.transport.is_closing():
            return
        if self._tls is None:
            self.transport.write(data)
            return
        view, parts = memoryview(data), []
        try:
            while view:
                view = view[self._tls.write(view[:_RECORD]) :]
                parts.append(self._outgoing.read())
        except ssl.SSLError:
            self.transport.abort()
        self.transport.write(b"".join(parts))

    def end_response(self, *, keep_alive: bool) -> None:
        """Close, or be ready for the next request."""
        self._idle_since = self._loop.time()
        if not keep_alive:
            self._close()
        else:
            self.choose_reading()

    def choose_reading(self) -> None:
        """Read, unless the client takes no responses, or the app does not take the body."""
        is_full = len(self._request.body) > _READ_SIZE
        is_unread = not self.writable.is_set()
        is_waiting = (is_full or is_unread) and not self._is_closed
        must_pause = is_waiting or self._received > _MAX_DROPPED
        if must_pause != self._is_paused and not self.transport.is_closing():
            self._is_paused = must_pause
            (self.transport.pause_reading if must_pause else self.transport.resume_reading)()

    # Between the event loop and the parser.

    def _decrypt(self, tls: ssl.SSLObject) -> None:
        record, incoming = self._serving.record, self._incoming
        try:
            if not self._is_secure:
                tls.do_handshake()
                self._is_secure = True
                self._idle_since = self._loop.time()
                if not self._is_fresh:
                    self._idle_limit = self._limits.idle_timeout
                # Empty for a certificate that the context does not verify.
                if peer := tls.getpeercert():
                    self._scope["extensions"] = {SSLPEER_EXTENSION: peer}
            while not (self._is_closed or self.transport.is_closing()):
                count: int = tls.read(_RECORD, record)  # type: ignore[assignment]
                if not count:  # the client has closed its side
                    self._close()
                    break
                self._feed(record[:count])
                if not incoming.pending and not tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self.transport.write(self._outgoing.read())  # the alert for the client
            self.transport.close()
        if self._outgoing.pending and not self._is_closed:  # such as steps of the handshake
            self.transport.write(self._outgoing.read())

    def _feed(self, data: memoryview) -> None:
        """Parse data; after the last request, drop it: closing on unread data loses a response."""
        self._received += len(data)
        if self._parser is None:
            self.choose_reading()
            return
        before = self._request
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stop_parsing(None)  # ignore the upgrade, serve the request (RFC 9110, 7.8)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _RefusedError):  # no name for it: that is a cycle
                self._stop_parsing(error.__context__.args[0])
            else:
                reason = f"This is not a valid HTTP request: {error}."
                self._stop_parsing(build_refusal(400, reason))
        is_large = self._received > MAX_HEAD or len(self._headers) > MAX_HEADERS
        if is_large and self._arrival is not None:
            self._stop_parsing(_HEAD_TOO_LARGE)
        if (request := self._request) is not before:
            request.task = self._loop.create_task(request.run(self._serving))
            self._serving.requests.add(request)

    def _stop_parsing(self, refusal: Response | None) -> None:
        """Accept no more requests; respond to a complete one, then close.

        Args:
            refusal: the response to an incomplete request; None if the last one is complete.
        """
        request, has_begun = self._request, self._arrival is not None and not self._is_in_head
        self._arrival = None
        self._is_in_head = False
        self._parser = None
        if not request.is_over and not has_begun:
            request.keep_alive = False
            return
        if refusal is not None and not (has_begun and request.is_begun):
            self.write(_encode(refusal))
        self._close()

    def _close(self) -> None:
        """Close after all that is written is sent, and the client has closed its side.

        A socket that is closed with unread data loses the response that is on its way (RFC 9112,
        9.6). In a flood, only so many connections wait for their clients as may be open.
        """
        if self._is_closed or self.transport.is_closing():
            return
        if self._tls is not None and self._is_secure:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()  # it does not wait for the client
            self.transport.write(self._outgoing.read())
        self._is_closed, self._parser, self._arrival = True, None, None
        self._request.end()
        is_flood = len(self._serving.connections) > 2 * self._limits.max_connections
        if is_flood or not self._is_secure:
            self.transport.close()
            return
        self.choose_reading()
        self._progress = self._loop.time()
        self._restart_watch()
        try:
            self.transport.write_eof()
        except OSError:  # the client has reset the connection
            self.transport.abort()

    def _begin_fresh(self) -> None:
        """Wait for the first request for a moment only, as the listener is being closed."""
        self._is_fresh = True
        self._idle_limit = _FRESH_SECONDS
        self._idle_since = self._loop.time()
        self._restart_watch()

    def _restart_watch(self) -> None:
        if self._check is not None:
            self._check.cancel()
        self._watch()

    def _watch(self) -> None:
        """Close the connection if the client does not send or read in time, or is idle."""
        now, unsent = self._loop.time(), self.transport.get_write_buffer_size()
        is_lingering = self._is_closed and not unsent
        limit = LINGERING_SECONDS if is_lingering else self._limits.read_timeout
        self._check = self._loop.call_later(min(limit, self._idle_limit) / 4, self._watch)
        # While reading is paused, the end of a connection is not noticed.
        if unsent < self._unsent or not (unsent or self._is_closed):
            self._progress = now
        self._unsent = unsent
        if now - self._progress > limit:
            self.transport.abort()
        elif self._is_closed:
            pass  # only its client is waited for
        elif self._arrival is not None:
            if now - self._arrival > limit and (self._is_in_head or self._request.is_over):
                self._stop_parsing(None)
        elif self._request.is_over and now - self._idle_since > self._idle_limit:
            self.make_way()


class _Request:
    """A request, with the ``receive`` and ``send`` of ASGI for its task."""

    task: asyncio.Task[None]
    keep_alive = True
    body = b""  # received and not yet taken by the app
    more_body = True
    is_begun = False  # whether a part of the response is sent
    is_over = False  # whether all of it is sent, or the client has disconnected
    is_awaited = False  # whether the client waits for "100 Continue"
    _is_taken = False  # whether the app has taken the end of the body
    _start: Any = None  # the message that begins the response
    _waiter: asyncio.Future[None] | None = None

    def __init__(self, connection: Connection, scope: dict[str, Any]) -> None:
        self._connection = connection
        self._scope = scope

    async def run(self, serving: Serving) -> None:
        """Run the app."""
        try:
            await serving.app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("Failed to serve a request at %r", self._scope["path"][:99])
        else:
            if not self.is_over:
                logger.error("The app sent no response at %r.", self._scope["path"][:99])
        finally:
            serving.requests.discard(self)
            if not self.is_over:
                if not self.is_begun:
                    self._connection.write(_FAILED)
                self.end()
                self._connection.end_response(keep_alive=False)

    def end(self) -> None:
        """End the request: its response is sent, or the client has disconnected."""
        self.is_over = True
        self.body = b""
        self.wake()

    def wake(self) -> None:
        """Let the app receive what is new."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> Any:
        """Receive a message (ASGI)."""
        while not self.is_over:
            if self.body or not (self.more_body or self._is_taken):
                body, self.body, self._is_taken = self.body, b"", not self.more_body
                return {"type": "http.request", "body": body, "more_body": self.more_body}
            if self.is_awaited:
                self.is_awaited = False
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._connection.choose_reading()
            if self._waiter is None or self._waiter.done():
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Send a message (ASGI)."""
        kind = message["type"]
        if self.is_over:
            return
        if kind == "http.response.start" and self._start is None:
            self._start = message
            return
        if kind != "http.response.body" or self._start is None:
            raise RuntimeError(f"The app has sent {kind!r} at the wrong time.")
        body, more = message.get("body") or b"", message.get("more_body", False)
        if self._scope["method"] == "HEAD" or self._start["status"] in _BODILESS:
            body = None
        data = body or b""
        if not self.is_begun:
            data = self._encode_head(body, more=more) + data
            self.is_begun = True
            self.is_awaited = False
        self._connection.write(data)
        if more:
            await self._connection.writable.wait()
        else:
            self.end()
            self._connection.end_response(keep_alive=self.keep_alive)

    def _encode_head(self, body: bytes | None, *, more: bool) -> bytes:
        headers = tuple((bytes(n).lower(), bytes(v)) for n, v in self._start.get("headers", ()))
        found = dict(headers)
        if more or found.get(b"connection") == b"close":
            self.keep_alive = False
        if not more and body is not None:
            size = b"%d" % len(body)
            if b"content-length" not in found:
                headers += ((b"content-length", size),)
            elif found[b"content-length"] != size:
                raise ValueError("The Content-Length of the response is not that of its body.")
        return _encode_head(self._start["status"], headers, closes=not self.keep_alive)


_NO_REQUEST = _Request(cast("Connection", None), {})
_NO_REQUEST.is_over = True


@functools.lru_cache(maxsize=128)
def _encode_head(status: int, headers: Headers, *, closes: bool) -> bytes:
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    lines += [b"%b: %b\r\n" % header for header in headers if header[0] != b"connection"]
    if closes:
        lines.append(b"connection: close\r\n")
    head = b"".join(lines)
    if not head.count(b"\n") == head.count(b"\r") == len(lines):
        raise ValueError("A header of the response has a line break.")
    return head + b"\r\n"


def _encode(response: Response) -> bytes:
    head = _encode_head(response.status, tuple(response.list_headers()), closes=True)
    return head + response.body


_HEAD_TOO_LARGE = build_refusal(
    431,
    f"The head of the request is too large; the limits are {MAX_HEAD} bytes and {MAX_HEADERS} "
    "headers.",
)
_NO_UPGRADE = build_refusal(
    400, "This server speaks HTTP only: send the request without the Upgrade header."
)
_MALFORMED_URL = build_refusal(400, "This is not a valid HTTP request: the URL is malformed.")
_FAILED = _encode(build_refusal(500, "The operator failed; see its log for details."))
_CLOSED = _encode(
    build_refusal(
        503, "The connection was idle and is closed; send the request again.", headers=RETRY
    )
)


def _split(url: bytes) -> tuple[str, bytes]:
    """Return the path and the query of a URL, which may be absolute (RFC 9112, 3.2.2)."""
    try:
        parsed = httptools.parse_url(url)
        return unquote((parsed.path or b"/").decode("ascii")), parsed.query or b""
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        raise _RefusedError(_MALFORMED_URL) from None


_split_usual = functools.lru_cache(maxsize=64)(_split)  # API servers send a few different ones
