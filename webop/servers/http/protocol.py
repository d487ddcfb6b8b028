"""uvicorn's HTTP protocol, made safe for a port that anybody in the cluster can reach.

``webop run`` serves webhooks by it; plain uvicorn can, too::

    uvicorn --http webop.servers.http.protocol:HTTPProtocol webop.app:app

Flow: uvicorn's ``HttpToolsProtocol`` parses requests, :class:`_Connection` runs the app for each
of them, and :class:`_Cycle` takes its answer. Here are the limits that uvicorn does not have, and
the verified client certificate in the scope. A review costs less CPU than under uvicorn: the head
and the body of an answer are one write, and there are fewer objects and callbacks per request.

Guarantees:
    - Heads, trailers, pipelined requests and connections are limited in number and in bytes.
    - A request that is not received within ``read_timeout`` and an answer that is not taken
      within it end their connection. So does an idle time of ``idle_timeout``.
    - Requests that were received before a malformed one are answered.

It relies on names that uvicorn 0.39 to 0.54 have in common; see ``tests/servers/test_uvicorn.py``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, service_unavailable
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from webop.backoff import Once
from webop.servers.hosting import Hosting, ServingLimits, get_hosting
from webop.servers.http.responses import SSLPEER_EXTENSION, Response, build_refusal

logger = logging.getLogger(__name__)

_MAX_HEAD = 64 * 1024  # bytes of the URL, the headers and the trailers
_HEADER_OVERHEAD = 32  # bytes that count for each header beside its text
_VERSIONS = ("1.0", "1.1")
_BODY_HEADERS = (b"content-length", b"transfer-encoding")
_FRESH_SECONDS = 1.0  # for the first request of a connection to a server that stops
_READ_SIZE = 64 * 1024  # bytes
_MAX_PIPELINED = 8  # requests that wait for the answers to earlier ones; API servers send none

_logged = Once()


class _RefusedError(Exception):
    """A request breaks a limit or a rule; the argument is the answer, if there is one."""

    @property
    def answer(self) -> Response | None:
        answer: Response | None = self.args[0]
        return answer


class HTTPProtocol(asyncio.BufferedProtocol):
    """One connection. The arguments are those that uvicorn gives to its protocols.

    It reads into a buffer that all connections of the server share, as each read is parsed at
    once: for other protocols, asyncio and uvloop allocate 256 KiB twice for each piece of a TLS
    connection.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Not before the TLS handshake: what fails there is never told that it has lost anything.
        self._build = partial(_Connection, *args, **kwargs)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection, after the TLS handshake if there is one."""
        self._connection = connection = self._build()
        state: Any = connection.server_state
        if not hasattr(state, "read_buffer"):
            state.read_buffer = memoryview(bytearray(_READ_SIZE))
        self._buffer: memoryview = state.read_buffer
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]
        connection.connection_made(transport)  # type: ignore[arg-type]

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature of asyncio
        """Return where to put what comes next."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has come."""
        self._connection.data_received(self._buffer[:nbytes])


class _Connection(HttpToolsProtocol):
    def __init__(self, config: Any, server_state: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, server_state, *args, **kwargs)
        self._limits = _find_hosting(config, server_state).limits
        self._idle_limit = max(self.timeout_keep_alive, self._limits.idle_timeout)
        self._extensions: dict[str, Any] = {}
        self._unanswered: deque[_Cycle] = deque()  # the app runs for the first one
        self.message_event = asyncio.Event()  # something has come for the first one
        self._can_reset = getattr(config, "reset_contextvars", False)
        self._head_size = 0
        self._received = 0  # bytes since the begin of the head, or since the last of the body
        self._is_in_head = False
        self._arrival: float | None = None  # of a request that is not complete
        self._idle_since = self.loop.time()
        self._progress = self.loop.time()  # when the client took something of an answer
        self._unsent = 0  # bytes of answers, at that time
        self._check: asyncio.TimerHandle | None = None

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a connection, after the TLS handshake if there is one."""
        if len(self.connections) >= self._limits.max_connections:
            report_full(self._limits)
            self.transport = transport
            transport.abort()
            return
        super().connection_made(_Transport(transport))  # type: ignore[arg-type]
        # Empty for a certificate that the context was not told to verify.
        if peer := transport.get_extra_info("peercert"):
            self._extensions[SSLPEER_EXTENSION] = peer
        if self._is_stopping:  # it came while the port was closed
            self._idle_limit = _FRESH_SECONDS
        self._watch()

    def shutdown(self) -> None:
        """Close after the answers in flight; what came last has a moment for its first request."""
        if self._idle_limit > _FRESH_SECONDS or self.cycle is not None:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._check is not None:
            self._check.cancel()
        for cycle in self._unanswered:  # uvicorn tells the last one only
            cycle.disconnected = True
        self.message_event.set()
        self._unanswered.clear()
        super().connection_lost(exc)
        # The event loop's TLS keeps its protocol: only the garbage collector would free them all.
        self.transport = self.flow = self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes | memoryview) -> None:
        """Parse what has come."""
        self._received += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stop_parsing(None)  # the offer is ignored, the request served (RFC 9110, 7.8)
        except httptools.HttpParserError as error:
            refused = error.__context__
            if isinstance(refused, _RefusedError):
                self._stop_parsing(refused.answer)
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
        if len(self._unanswered) > _MAX_PIPELINED:
            raise _RefusedError(None)  # the others are answered
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._head_size = self._received = 0
        self._is_in_head = True
        self._arrival = self.loop.time()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._head_size += len(url)
        if self._head_size > _MAX_HEAD:
            raise _RefusedError(_HEAD_TOO_LARGE)
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; drop a trailer: those are not checked by proxies."""
        self._head_size += len(name) + len(value) + _HEADER_OVERHEAD
        if self._head_size > _MAX_HEAD:
            raise _RefusedError(_HEAD_TOO_LARGE)
        if self._is_in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin to serve a request, or let it wait for the answers to those before it."""
        parser, scope, found = self.parser, self.scope, dict(self.headers)
        version = parser.get_http_version()
        hosts = int(b"host" in found)
        if len(found) < len(self.headers):  # some come several times
            hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (version == "1.1" and not hosts):  # RFC 9112, 3.2
            reason = f"There must be one header Host, got {hosts}."
            raise _RefusedError(build_refusal(400, reason))
        if version not in _VERSIONS:
            raise _RefusedError(build_refusal(505, f"HTTP/{version} is not served here."))
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
        # A client that is refused instead of "100 Continue" may send the next request at once.
        is_last = is_waited_for or version == "1.0" or self._is_stopping
        cycle = _Cycle(self, keep_alive=not is_last and parser.should_keep_alive())
        cycle.waiting_for_100_continue = is_waited_for
        limit = self.limit_concurrency
        if limit is not None and max(len(self.connections), len(self.tasks)) >= limit:
            self.logger.warning("Exceeded concurrency limit.")
            cycle.app = service_unavailable
        self.cycle = cycle
        self._unanswered.append(cycle)
        if len(self._unanswered) > 1:
            self.flow.pause_reading()
        else:
            self._start(cycle)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._received = 0
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            # The app of an earlier request would read on, and the body would grow without end.
            if len(self._unanswered) == 1:
                self.message_event.set()

    def on_message_complete(self) -> None:
        """End a request."""
        self._arrival = None
        self.cycle.more_body = False
        self.message_event.set()

    def on_response_complete(self) -> None:
        """Go on with the next request, if there is one."""
        self._idle_since = self.loop.time()
        self.server_state.total_requests += 1
        if self._unanswered:
            self._unanswered.popleft()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self._unanswered:
                self._start(self._unanswered[0])

    # In between.

    @property
    def _is_stopping(self) -> bool:
        return getattr(self.server_state, "is_stopping", False)

    def _start(self, cycle: _Cycle) -> None:
        context = contextvars.Context() if self._can_reset else None
        self.tasks.add(self.loop.create_task(cycle.run(self), context=context))

    def _stop_parsing(self, refusal: Response | None) -> None:
        """Take no more requests; answer those that are complete, and then close.

        Args:
            refusal: what is answered instead to a request that cannot be completed; None if the
                last one is complete.
        """
        has_begun = self._arrival is not None and not self._is_in_head
        self._arrival = None
        self._is_in_head = False
        self.parser = _DeafParser()  # type: ignore[assignment]
        if has_begun and len(self._unanswered) > 1:  # its app has not been started
            self._unanswered.pop()
            has_begun = False
        if self._unanswered and not has_begun:
            self._unanswered[-1].keep_alive = False
            return
        is_silent = has_begun and (not self._unanswered or self._unanswered[0].response_started)
        if refusal is not None and not is_silent:
            self.transport.write(_encode(refusal))
        self.transport.close()

    def _watch(self) -> None:
        """End the connection of a client that neither sends nor reads in time, or is idle."""
        limit, now = self._limits.read_timeout, self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        # TLS does not end with a client's last byte, as long as reading is paused.
        if unsent < self._unsent or (unsent == 0 and not self.transport.is_closing()):
            self._progress = now
        self._unsent = unsent
        if now - self._progress > limit:
            self.transport.abort()
            return
        if self._arrival is not None:
            if now - self._arrival > limit and (self._is_in_head or not self._unanswered):
                self._stop_parsing(None)
        elif not self._unanswered and now - self._idle_since > self._idle_limit:
            self.transport.close()
        pause = min(limit, self._idle_limit) / 4
        self._check = self.loop.call_later(pause, self._watch)


class _Transport:
    """A transport that may be closed twice: those for TLS lose their connection then."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.write, self.is_closing = transport.write, transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close it, unless that has begun."""
        if not self.is_closing():
            self._transport.close()


class _DeafParser:
    """Drops what a client sends after the last request that is served."""

    def feed_data(self, data: bytes) -> None:
        """Drop."""


class _Cycle(RequestResponseCycle):
    """A request, and the ``send`` of ASGI for its answer: head and body are sent in one write.

    Its attributes are those of uvicorn, whose methods do what is unusual.
    """

    disconnected = response_started = response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    more_body = True
    body = b""  # type: ignore[assignment]  # what has come, and was not taken
    _is_taken = False  # whether the app has got the end of the body
    _head: Any = None  # the message that begins the answer

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
        """Run the app, and forget the task: a callback would cost one more turn of the loop."""
        try:
            await self.run_asgi(self._call_app)
        finally:
            connection.tasks.discard(asyncio.current_task(connection.loop))

    def _call_app(self, scope: Any, receive: Any, _: Any) -> Any:
        return self.app(scope, receive, self)

    async def receive(self) -> Any:
        """Receive, as ASGI has it."""
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

    async def __call__(self, message: Any) -> None:
        """Send, as ASGI has it."""
        if message["type"] == "http.response.start" and not self.response_started:
            self._head = message
            return
        head, self._head = self._head, None
        is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        if head is not None:
            headers, body = head.get("headers", ()), message.get("body", b"")
            if is_whole and self.send_at_once(head["status"], headers, body):
                return
            if not self.keep_alive:  # uvicorn says so since 0.53 only
                headers = [pair for pair in headers if pair[0].lower() != b"connection"]
                head = {**head, "headers": [*headers, (b"connection", b"close")]}
            await self.send(head)
        await self.send(message)

    def send_at_once(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Send a whole answer without the messages of ASGI; tell whether that is possible."""
        if self.response_started or self.disconnected or self.access_log:
            return False
        if self.flow.write_paused:  # the client does not take its answers: wait for it
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


def report_full(limits: ServingLimits) -> None:
    """Log that a connection is refused."""
    level, limit = _logged.choose_level("connections"), limits.max_connections
    logger.log(level, "Refused a connection: there are %d (max_connections).", limit)


def _find_hosting(config: Any, server_state: Any) -> Hosting:
    """Return the hosting of our listener, or of the app that another server runs."""
    hosting = getattr(server_state, "hosting", None)
    app = config.loaded_app
    while hosting is None and app is not None:
        hosting = getattr(app, "hosting", None)
        app = getattr(app, "app", None)  # what a middleware wraps
    return hosting or get_hosting()


_HEAD_TOO_LARGE = build_refusal(
    431, f"The head of the request is too large: {_MAX_HEAD} bytes at most.", closes=True
)


_NO_UPGRADE = build_refusal(
    400, "No other protocol is served here: send the request without the header Upgrade."
)
_MALFORMED_URL = build_refusal(400, "This is not a valid HTTP request: the URL is malformed.")


def _encode(answer: Response) -> bytes:
    """Return an answer that closes its connection as it is sent."""
    headers = [b"%b: %b\r\n" % header for header in answer._replace(closes=True).list_headers()]
    return b"".join((STATUS_LINE[answer.status], *headers, b"\r\n", answer.body))


def _split_target(url: bytes) -> tuple[str, bytes]:
    """Return the path and the query of a URL; of an absolute one, too (RFC 9112, 3.2.2)."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise _RefusedError(_MALFORMED_URL) from None
    return (parsed.path or b"/").decode("ascii"), parsed.query or b""
