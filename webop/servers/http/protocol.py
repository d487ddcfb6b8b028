"""uvicorn's HTTP protocol, made safe for a port that anybody in the cluster can reach.

``webop run`` serves webhooks by it; plain uvicorn can, too::

    uvicorn --http webop.servers.http.protocol:HTTPProtocol webop.app:app

Flow: uvicorn's ``HttpToolsProtocol`` parses requests and runs the app for each of them. Here are
the limits that it does not have, the verified client certificate in the scope, and the joining of
the head and the body of an answer. Up to a fifth of the CPU of a review is saved by that and by the
read buffer.

Guarantees:
    - Heads, trailers, pipelined requests and connections are limited in number and in bytes.
    - A request that is not received within ``read_timeout`` and an answer that is not taken
      within it end their connection. So does an idle time of ``idle_timeout``.
    - Requests that were received before a malformed one are answered.

It relies on names that uvicorn 0.39 to 0.54 have in common; see ``tests/servers/test_uvicorn.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from webop.pacing import Once
from webop.servers.hosting import Hosting, ServingLimits, get_hosting
from webop.servers.http.answers import SSLPEER_EXTENSION, Answer, build_refusal

logger = logging.getLogger(__name__)

_MAX_HEAD = 64 * 1024  # bytes of the URL, the headers and the trailers
_HEADER_OVERHEAD = 32  # bytes that count for each header beside its text
_VERSIONS = ("1.0", "1.1")
_FRESH_SECONDS = 1.0  # for the first request of a connection to a server that stops
_READ_SIZE = 64 * 1024  # bytes
_MAX_PIPELINED = 8  # requests that wait for the answers to earlier ones; API servers send none

_logged = Once()


class _RefusedError(Exception):
    """A request breaks a limit or a rule; the argument is the answer, if there is one."""

    @property
    def answer(self) -> Answer | None:
        answer: Answer | None = self.args[0]
        return answer


class HTTPProtocol(asyncio.BufferedProtocol):
    """One connection. The arguments are those that uvicorn gives to its protocols.

    It reads into a buffer that all connections of the server share, as each read is parsed at
    once: for other protocols, asyncio and uvloop allocate 256 KiB twice for each piece of a TLS
    connection.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._connection = connection = _Connection(*args, **kwargs)
        state: Any = connection.server_state
        if not hasattr(state, "read_buffer"):
            state.read_buffer = memoryview(bytearray(_READ_SIZE))
        self._buffer: memoryview = state.read_buffer
        self.connection_made = connection.connection_made  # type: ignore[assignment,method-assign]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

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
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._head_size = 0
        self._received = 0  # bytes since the begin of the head, or since the last of the body
        self._is_in_head = False
        self._hosts, self._has_body = 0, False
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
        if getattr(self.server_state, "is_stopping", False):  # it came while the port was closed
            self._idle_limit = _FRESH_SECONDS
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._check is not None:
            self._check.cancel()
        for cycle in self._unanswered:  # uvicorn tells the last one only
            cycle.disconnected = True
            cycle.message_event.set()
        self._unanswered.clear()
        super().connection_lost(exc)

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
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _RefusedError(None)  # the others are answered
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._head_size = self._received = 0
        self._hosts, self._has_body = 0, False
        self._is_in_head = True
        self._arrival = self.loop.time()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._head_size += len(url)
        if self._head_size > _MAX_HEAD:
            raise _RefusedError(_HEAD_TOO_LARGE)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; drop a trailer: those are not checked by proxies."""
        self._head_size += len(name) + len(value) + _HEADER_OVERHEAD
        if self._head_size > _MAX_HEAD:
            raise _RefusedError(_HEAD_TOO_LARGE)
        if self._is_in_head:
            name = name.lower()
            if name == b"host":
                self._hosts += 1
            elif name in (b"content-length", b"transfer-encoding"):
                self._has_body = True
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin to serve a request."""
        version = self.parser.get_http_version()
        if self._hosts > 1 or (version == "1.1" and not self._hosts):  # RFC 9112, 3.2
            reason = f"There must be one header Host, got {self._hosts}."
            raise _RefusedError(build_refusal(400, reason))
        if version not in _VERSIONS:
            raise _RefusedError(build_refusal(505, f"HTTP/{version} is not served here."))
        if self.parser.should_upgrade() and self._has_body:  # the parser would drop it
            raise _RefusedError(_NO_UPGRADE)
        if not self.url.startswith(b"/"):  # RFC 9112, 3.2.2
            self.url = _get_target(self.url)
        super().on_headers_complete()
        self._is_in_head = False
        self._unanswered.append(self.cycle)
        self.cycle.send = _JoinedSend(self.cycle)  # type: ignore[method-assign]
        is_stopping = getattr(self.server_state, "is_stopping", False)
        if is_stopping or not self.parser.should_keep_alive():  # uvicorn asks since 0.53 only
            self.cycle.keep_alive = False
        if self.expect_100_continue:  # a client that is refused may send the next request at once
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._received = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._arrival = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, if there is one."""
        self._idle_since = self.loop.time()
        if self._unanswered:
            self._unanswered.popleft()
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
        else:  # as uvicorn does, but without a timer for each answer
            self.server_state.total_requests += 1
            self.flow.resume_reading()

    def _should_upgrade(self) -> bool:
        return False

    # In between.

    def _stop_parsing(self, refusal: Answer | None) -> None:
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
            self._unanswered.remove(self.pipeline.popleft()[0])
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

    def should_upgrade(self) -> bool:
        return False


class _JoinedSend:
    """The ``send`` of ASGI, which sends the head of an answer with its body, in one write."""

    __slots__ = ("_cycle", "_start")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._start: Any = None

    async def __call__(self, message: Any) -> None:
        """Send, as ASGI has it."""
        if message["type"] == "http.response.start" and not self._cycle.response_started:
            self._start = message
            return
        start, self._start = self._start, None
        is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        if start is not None:
            headers, body = start.get("headers", ()), message.get("body", b"")
            if is_whole and self.send_at_once(start["status"], headers, body):
                return
            if not self._cycle.keep_alive:  # uvicorn says so since 0.53 only
                headers = [pair for pair in headers if pair[0].lower() != b"connection"]
                start = {**start, "headers": [*headers, (b"connection", b"close")]}
            await RequestResponseCycle.send(self._cycle, start)
        await RequestResponseCycle.send(self._cycle, message)

    def send_at_once(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Send a whole answer without the messages of ASGI; tell whether that is possible."""
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or cycle.access_log:
            return False
        if cycle.flow.write_paused:  # the client does not take its answers: wait for it
            return False
        parts, size = [STATUS_LINE[status]], b""
        for name, value in headers:
            if name == b"content-length":
                size = value
            elif name == b"connection" and value == b"close":
                cycle.keep_alive = False
                continue
            parts.append(b"%b: %b\r\n" % (name, value))
        if not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        head, count = b"".join(parts), len(parts)
        if (
            size != b"%d" % len(body)
            or head.count(b"\n") != count
            or head.count(b"\r") != count
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        cycle.transport.write(b"%b\r\n%b" % (head, body))
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        del cycle.send  # they refer to each other
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


def _encode(answer: Answer) -> bytes:
    """Return an answer that closes its connection as it is sent."""
    headers = [b"%b: %b\r\n" % header for header in answer._replace(closes=True).list_headers()]
    return b"".join((STATUS_LINE[answer.status], *headers, b"\r\n", answer.body))


def _get_target(url: bytes) -> bytes:
    """Return the path and the query of an absolute URL, as proxies are sent them."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise _RefusedError(_MALFORMED_URL) from None
    path = parsed.path or b"/"
    return path + b"?" + parsed.query if parsed.query else path
