"""uvicorn's HTTP protocol with limits, for a port that everybody in the cluster can reach.

``webop run`` uses it for webhooks; plain uvicorn can, too::

    uvicorn --http webop.servers.http.protocol:HTTPProtocol webop.app:app

Flow: uvicorn's ``HttpToolsProtocol`` parses requests, :class:`_Connection` runs the app for each,
and :class:`_Cycle` sends its response. This module adds limits and, in the scope, the verified
client certificate. A review costs less CPU than under uvicorn: the head and the body of a response
are one write, and each request has fewer objects and callbacks.

Guarantees:
    - Heads, trailers and connections are limited in number and in bytes. At the limit of
      connections, an idle one makes way (:class:`~webop.servers.http.connection_slots.Slots`).
    - A connection is closed if a request is not received, or a response not read, within
      ``read_timeout``; and if it is idle for ``idle_timeout``.
    - A request that crosses the end of an idle connection gets a response: 503 with Retry-After.
    - A request that was received before a malformed one gets its response.
    - Requests are served one at a time. A client that pipelines gets the response to the first one;
      then the connection closes (RFC 9112, 9.3.2: such a client sends the others again).

It relies on code that uvicorn 0.39 to 0.54 have in common: ``tests/unit/servers/test_uvicorn.py``
lists all of it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl, service_unavailable
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from webop.servers.http.connection_slots import Slots
from webop.servers.http.responses import RETRY, SSLPEER_EXTENSION, Response, build_refusal
from webop.servers.limits import Hosting, get_hosting

_MAX_HEAD = 64 * 1024  # bytes of the URL, the headers and the trailers
_HEADER_OVERHEAD = 32  # bytes that count for each header beside its text
_VERSIONS = ("1.0", "1.1")
_BODY_HEADERS = (b"content-length", b"transfer-encoding")
_FRESH_SECONDS = 1.0  # for the first request of a connection while the server stops
_MAKE_WAY_SECONDS = 0.1
_READ_SIZE = 64 * 1024  # bytes
_MAX_DROPPED = 1024 * 1024  # bytes after the last request


class _RefusedError(Exception):
    """A request breaks a limit or a rule; the argument is the response, or None."""


class HTTPProtocol(asyncio.BufferedProtocol):
    """One connection. The arguments are those that uvicorn passes to its protocols.

    All connections of a server share one read buffer, as each read is parsed at once. For other
    protocols, asyncio and uvloop allocate 256 KiB twice for each read of a TLS connection.
    """

    def __init__(self, config: Any, server_state: Any, *args: Any, **kwargs: Any) -> None:
        # Built after the TLS handshake: if that fails, connection_lost() is never called.
        self._build = partial(_Connection, config, server_state, *args, **kwargs)
        self._connection: _Connection | None = None
        self._began = asyncio.get_running_loop().time()
        if not hasattr(server_state, "slots"):
            server_state.slots = Slots(lambda: _find_hosting(config, server_state).limits)
            server_state.read_buffer = memoryview(bytearray(_READ_SIZE))
        self._slots: Slots = server_state.slots
        self._buffer: memoryview = server_state.read_buffer
        #: Ends the TLS handshake; our listener sets it before. None under another server.
        self.cancel: Callable[[], object] | None = None
        self._is_cancelled = False

    @property
    def waiting_since(self) -> float | None:
        """Since when there is no complete request; None if one is being served."""
        return self._began if self._connection is None else self._connection.waiting_since

    def make_way(self) -> None:
        """Close the connection in favour of another one."""
        if self._connection is not None:
            self._connection.make_way()
        else:
            self.cancel_handshake()

    def cancel_handshake(self) -> None:
        """Close the connection if its TLS handshake is not complete."""
        if self._connection is None and self.cancel is not None:
            self._is_cancelled = True
            self.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection, after the TLS handshake if there is one."""
        if self.cancel is None:  # the server is not ours: it has not asked for a slot
            address = transport.get_extra_info("peername")
            if not self._slots.take(self, address[0] if isinstance(address, tuple) else ""):
                transport.abort()  # type: ignore[attr-defined]
                return
        elif self._is_cancelled:  # uvloop would not report the end of it
            transport.abort()  # type: ignore[attr-defined]
            return
        self._connection = connection = self._build()
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]
        connection.connection_made(transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up a closed connection."""
        self._slots.free(self)
        if self._connection is not None:
            self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature of asyncio
        """Return the buffer for the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the data of a read."""
        if self._connection is not None:
            self._connection.data_received(self._buffer[:nbytes])


class _Connection(HttpToolsProtocol):
    def __init__(self, config: Any, server_state: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, server_state, *args, **kwargs)
        self._limits = _find_hosting(config, server_state).limits
        self._idle_limit = max(self.timeout_keep_alive, self._limits.idle_timeout)
        self._extensions: dict[str, Any] = {}
        self.message_event = asyncio.Event()  # data has arrived for the current request
        self._can_reset = getattr(config, "reset_contextvars", False)
        self._head_size = 0
        self._received = 0  # bytes since the begin of the head, or since the last part of the body
        self._is_in_head = False
        self._arrival: float | None = None  # of a request that is not complete
        self._idle_since = self.loop.time()
        self._progress = self.loop.time()  # when the client last read a part of a response
        self._unsent = 0  # bytes of responses, at that time
        self._check: asyncio.TimerHandle | None = None

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection, after the TLS handshake if there is one."""
        super().connection_made(_Transport(transport))  # type: ignore[arg-type]
        # Empty for a certificate that the context does not verify.
        if peer := transport.get_extra_info("peercert"):
            self._extensions[SSLPEER_EXTENSION] = peer
        if self._is_stopping:  # accepted while the port was being closed
            self._idle_limit = _FRESH_SECONDS
        self._watch()

    def shutdown(self) -> None:
        """Close after the responses in flight; a new connection may still send one request."""
        if self._is_serving:
            super().shutdown()
        elif self._idle_limit > _FRESH_SECONDS or self.cycle is not None:
            self._close_idle()

    @property
    def waiting_since(self) -> float | None:
        """Since when there is no complete request; None if one is being served."""
        if (self._is_serving and not self.cycle.more_body) or (
            self.transport.get_write_buffer_size()  # a response is being read; see _watch()
        ):
            return None
        return self._idle_since if self._arrival is None else self._arrival

    def make_way(self) -> None:
        """Close the connection in favour of another one."""
        transport = self.transport
        self._close_idle()
        # A client that does not close its side of a TLS connection would keep it in memory.
        self.loop.call_later(_MAKE_WAY_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up a closed connection."""
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)
        # A reference cycle with the event loop's TLS, which only the collector would free.
        self.transport = self.flow = self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes | memoryview) -> None:
        """Parse received data."""
        self._received += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stop_parsing(None)  # ignore the upgrade, serve the request (RFC 9110, 7.8)
        except httptools.HttpParserError as error:
            refused = error.__context__
            if isinstance(refused, _RefusedError):
                self._stop_parsing(refused.args[0])
            elif isinstance(error, httptools.HttpParserCallbackError):
                self._stop_parsing(_MALFORMED_URL)
            else:
                reason = f"This is not a valid HTTP request: {error}."
                self._stop_parsing(build_refusal(400, reason))
        if self._arrival is not None and self._received > _MAX_HEAD:
            self._stop_parsing(_HEAD_TOO_LARGE)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._is_serving:
            raise _RefusedError(None)
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._head_size = self._received = 0
        self._is_in_head = True
        self._arrival = self.loop.time()

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL."""
        self._head_size += len(url)
        if self._head_size > _MAX_HEAD:
            raise _RefusedError(_HEAD_TOO_LARGE)
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; drop a trailer, as proxies do not check those."""
        self._head_size += len(name) + len(value) + _HEADER_OVERHEAD
        if self._head_size > _MAX_HEAD:
            raise _RefusedError(_HEAD_TOO_LARGE)
        if self._is_in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin to serve a request."""
        parser, scope, found = self.parser, self.scope, dict(self.headers)
        version = parser.get_http_version()
        hosts = int(b"host" in found)
        if len(found) < len(self.headers):  # some are repeated
            hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (version == "1.1" and not hosts):  # RFC 9112, 3.2
            reason = f"A request must have one Host header, got {hosts}."
            raise _RefusedError(build_refusal(400, reason))
        if version not in _VERSIONS:
            raise _RefusedError(build_refusal(505, f"HTTP/{version} is not supported."))
        if parser.should_upgrade() and not found.keys().isdisjoint(_BODY_HEADERS):
            raise _RefusedError(_NO_UPGRADE)  # the parser would drop the body
        path, query = _split_target(self.url)
        self._is_in_head = False
        scope["http_version"] = version
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = (self.root_path + path).encode("ascii")
        scope["query_string"] = query
        is_waited_for = found.get(b"expect", b"").lower() == b"100-continue"
        # A client that gets a refusal instead of "100 Continue" may send the next request.
        is_last = is_waited_for or version == "1.0" or self._is_stopping
        cycle = _Cycle(self, keep_alive=not is_last and parser.should_keep_alive())
        cycle.waiting_for_100_continue = is_waited_for
        limit = self.limit_concurrency
        if limit is not None and max(len(self.connections), len(self.tasks)) >= limit:
            text = "Refused a request: %d are in progress, which is --limit-concurrency."
            self.logger.warning(text, limit)
            cycle.app = service_unavailable
        self.cycle = cycle
        context = contextvars.Context() if self._can_reset else None
        self.tasks.add(self.loop.create_task(cycle.run(self), context=context))

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._received = 0
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > _READ_SIZE:
                self.flow.pause_reading()
            self.message_event.set()

    def on_message_complete(self) -> None:
        """End a request."""
        self._arrival = None
        self.cycle.more_body = False
        self.message_event.set()

    def on_response_complete(self) -> None:
        """Be ready for the next request."""
        self._idle_since = self.loop.time()
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()

    # Between transport and parser.

    @property
    def _is_stopping(self) -> bool:
        return getattr(self.server_state, "is_stopping", False)

    @property
    def _is_serving(self) -> bool:
        """Whether a request waits for its response."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _stop_parsing(self, refusal: Response | None) -> None:
        """Accept no more requests; respond to a complete one, then close.

        Args:
            refusal: the response to an incomplete request; None if the last one is complete.
        """
        has_begun = self._arrival is not None and not self._is_in_head
        self._arrival = None
        self._is_in_head = False
        self.parser = _NullParser(self.flow)  # type: ignore[assignment]
        if self._is_serving and not has_begun:
            self.cycle.keep_alive = False
            return
        is_silent = has_begun and self.cycle.response_started
        if refusal is not None and not is_silent:
            self.transport.write(_encode(refusal))
        self.transport.close()

    def _close_idle(self) -> None:
        """Close, with a response to a request that is on its way: its client then retries.

        Without it, the client could not know whether the request was processed, and API servers
        would fail it. Clients without a request ignore the response (RFC 9112, 9.2).
        """
        # A request whose body is not complete has got its response already.
        if (self._arrival is None or self._is_in_head) and not self.transport.is_closing():
            self.transport.write(_CLOSED)
        self.transport.close()

    def _watch(self) -> None:
        """Close the connection if the client does not send or read in time, or is idle."""
        limit, now = self._limits.read_timeout, self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        # While reading is paused, the end of a TLS connection is not noticed.
        if unsent < self._unsent or (unsent == 0 and not self.transport.is_closing()):
            self._progress = now
        self._unsent = unsent
        if now - self._progress > limit:
            self.transport.abort()
            return
        if self._arrival is not None:
            if now - self._arrival > limit and (self._is_in_head or not self._is_serving):
                self._stop_parsing(None)
        elif not self._is_serving and now - self._idle_since > self._idle_limit:
            self._close_idle()
        pause = min(limit, self._idle_limit) / 4
        self._check = self.loop.call_later(pause, self._watch)


class _Transport:
    """A transport that can be closed twice; asyncio's TLS transports cannot."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.write, self.is_closing = transport.write, transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close it, unless it is being closed."""
        if not self.is_closing():
            self._transport.close()


class _NullParser:
    """Drops the data that a client sends after the last request; beyond a limit, it must wait.

    Closing on unread data could lose the response, so some data are read.
    """

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow
        self._left = _MAX_DROPPED

    def feed_data(self, data: bytes) -> None:
        """Drop."""
        self._left -= len(data)
        if self._left < 0:
            self._flow.pause_reading()


class _Cycle(RequestResponseCycle):
    """A request, and the ``send`` of ASGI for its response, in one write if possible.

    The attributes are uvicorn's, whose methods handle all other cases.
    """

    disconnected = response_started = response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    more_body = True
    body = b""  # type: ignore[assignment]  # received and not yet read by the app
    _is_taken = False  # whether the app has read the end of the body
    _head: Any = None  # the message that begins the response

    def __init__(self, connection: _Connection, *, keep_alive: bool) -> None:
        self.app = connection.app
        self.scope = connection.scope
        self.transport = connection.transport
        self.flow = connection.flow
        self.logger = connection.logger
        self.access_logger = connection.access_logger
        self.access_log = connection.access_log
        self.default_headers = connection.server_state.default_headers
        self.message_event = connection.message_event
        self.on_response = connection.on_response_complete
        self.keep_alive = keep_alive

    async def run(self, connection: _Connection) -> None:
        """Run the app, then remove the task; a callback would cost another turn of the loop."""
        try:
            await self.run_asgi(self.app)
        finally:
            connection.tasks.discard(asyncio.current_task(connection.loop))

    async def receive(self) -> Any:
        """Receive a message (ASGI)."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        while not (self.disconnected or self.response_complete):
            if self.body or not (self.more_body or self._is_taken):
                body, self.body, self._is_taken = self.body, b"", not self.more_body
                return {"type": "http.request", "body": body, "more_body": self.more_body}
            self.flow.resume_reading()
            self.message_event.clear()
            await self.message_event.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Send a message (ASGI)."""
        if message["type"] == "http.response.start" and not self.response_started:
            self._head = message
            return
        head, self._head = self._head, None
        is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        if head is not None:
            headers, body = head.get("headers", ()), message.get("body", b"")
            if is_whole and self.send_at_once(head["status"], headers, body):
                return
            if not self.keep_alive:  # uvicorn does so only since 0.53
                headers = [pair for pair in headers if pair[0].lower() != b"connection"]
                head = {**head, "headers": [*headers, (b"connection", b"close")]}
            await super().send(head)
        await super().send(message)

    def send_at_once(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Send a complete response without ASGI messages; return False if that is not possible."""
        if self.response_started or self.disconnected or self.access_log:
            return False
        if self.flow.write_paused:  # the client does not read its responses: wait
            return False
        parts, size = [STATUS_LINE[status]], b""
        for name, value in (*self.default_headers, *headers):
            if name == b"content-length":
                size = value
            elif name == b"connection" and value == b"close":
                self.keep_alive = False
                continue
            parts.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        head, count = b"".join(parts), len(parts)
        if (
            size != b"%d" % len(body)
            or head.count(b"\n") != count
            or head.count(b"\r") != count
            or self.scope["method"] == "HEAD"
        ):
            return False
        self.transport.write(b"%b\r\n%b" % (head, body))
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True


def _find_hosting(config: Any, server_state: Any) -> Hosting:
    """Return the hosting of our listener, or of the app under another server."""
    hosting = getattr(server_state, "hosting", None)
    app = config.loaded_app
    while hosting is None and app is not None:
        hosting = getattr(app, "hosting", None)
        app = getattr(app, "app", None)  # inside a middleware
    return hosting or get_hosting()


_HEAD_TOO_LARGE = build_refusal(
    431, f"The head of the request is too large; the limit is {_MAX_HEAD} bytes.", closes=True
)


_NO_UPGRADE = build_refusal(
    400, "This server speaks HTTP only: send the request without the Upgrade header."
)
_MALFORMED_URL = build_refusal(400, "This is not a valid HTTP request: the URL is malformed.")


def _encode(response: Response) -> bytes:
    """Encode a response that closes its connection."""
    headers = [b"%b: %b\r\n" % header for header in response._replace(closes=True).list_headers()]
    return b"".join((STATUS_LINE[response.status], *headers, b"\r\n", response.body))


_CLOSED = _encode(
    build_refusal(
        503, "The connection was idle and is closed; send the request again.", headers=RETRY
    )
)


def _split_target(url: bytes) -> tuple[str, bytes]:
    """Return the path and the query of a URL, which may be absolute (RFC 9112, 3.2.2)."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise _RefusedError(_MALFORMED_URL) from None
    return (parsed.path or b"/").decode("ascii"), parsed.query or b""
