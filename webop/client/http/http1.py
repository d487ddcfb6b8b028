"""HTTP/1.1 for clients, with TLS: one request at a time on a connection.

TLS works on buffers in memory here, which takes half the CPU time of asyncio's TLS. A request is
encrypted and written at once. httptools parses the response as it arrives.
"""

from __future__ import annotations

import asyncio
import os
import select
import ssl
from collections.abc import Callable
from typing import cast

import httptools

from webop.client.http.transport import TransportError

# Bytes of the content that can wait for a slow consumer; then the server must wait.
_MAX_WAITING = 256 * 1024
_MAX_HEAD = 64 * 1024  # bytes, without the content: headers, trailers, and heads of chunks
_MAX_RECORD = 16 * 1024  # bytes, of TLS
_CUT = "the server closed the connection in the middle of the response"
_NO_RESPONSE = "the server closed the connection before it responded"


class HTTPResponse:
    """The response to a request (see :class:`webop.client.http.transport.Response`).

    It releases its connection as soon as it is complete, even if the content is not read yet.

    Attributes:
        chunks: what waits of the content.
        has_begun: whether a part of it has arrived.
        is_complete: whether all of it has arrived.
        size: of the chunks, in bytes.
        waiter: what the consumer waits for.
        written_headers: the headers by names as the server writes them.
    """

    __slots__ = (
        "_connection",
        "_problem",
        "chunks",
        "has_begun",
        "is_complete",
        "size",
        "status",
        "waiter",
        "written_headers",
    )

    def __init__(self, connection: Connection) -> None:
        self.status = 0  # until the head is complete
        self.written_headers: dict[bytes, bytes] = {}
        self.has_begun = False
        self.is_complete = False
        self.size = 0
        self._connection: Connection | None = connection
        self.chunks: list[bytes] = []
        # Only the text: a stored exception and its frames would form a reference cycle.
        self._problem = ""
        self.waiter: asyncio.Future[None] | None = None

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers by names in lower case; rarely needed, so only then built."""
        return {name.lower(): value for name, value in self.written_headers.items()}

    async def receive(self) -> bytes:
        """Wait for the next piece of the content; nothing at the end."""
        while not self.chunks:
            if self.is_complete:
                return b""
            await self.wait()
        content = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        self.chunks.clear()
        if self.size > _MAX_WAITING and self._connection is not None:
            self._connection.resume_reading()
        self.size = 0
        return content

    async def aclose(self) -> None:
        """Close the connection if the content was not received to the end."""
        if self._connection is not None:
            self._connection.abort()

    def leave(self, problem: str = "") -> None:
        """Release the connection: the response is complete, or there is a problem."""
        self.is_complete = not problem
        self._problem = problem
        self._connection = None
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for a part of it; close the connection if the wait is cancelled."""
        if self._problem:
            raise TransportError(self._problem)
        self.waiter = asyncio.get_running_loop().create_future()
        try:
            await self.waiter
        except BaseException:
            if self._connection is not None:
                self._connection.abort()
            raise


class Connection(asyncio.BufferedProtocol):
    """A connection to a server, or to a proxy.

    Flow: connect; :meth:`tunnel` if there is a proxy; :meth:`secure` for https; then :meth:`send`
    one request after the other, each after the previous response is complete.

    Args:
        buffer: the buffer to read into. Nothing stays there, so connections can share it.
        on_idle: called when a response is complete and another request can be sent.
        on_lost: called at the end.

    Attributes:
        idle_since: in the event loop's time; set and used by the pool.
    """

    def __init__(
        self,
        buffer: memoryview,
        on_idle: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self.idle_since = 0.0
        self._buffer = buffer
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._parser: httptools.HttpResponseParser  # refers back to this until connection_lost()
        self._response: HTTPResponse | None = None
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._is_used_up = False  # no other request can be sent
        self._problem = ""  # why it is lost
        # During the setup, data go into _incoming, and a task waits for them.
        self._is_set_up = False
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self._readable = select.poll()

    def is_usable(self) -> bool:
        """Return whether a request can be sent, as far as this side knows."""
        # If it is readable now, the server has closed it, and the event loop has not noticed yet.
        return not self._transport.is_closing() and not self._readable.poll(0)

    async def tunnel(self, request: bytes) -> str:
        """Request a connection to the server from a proxy; return its first line if it refuses."""
        self._transport.write(request)
        head = b""
        while b"\r\n\r\n" not in head:
            await self._wait()
            head += self._incoming.read()
            if len(head) > _MAX_HEAD:
                return "its response is too long"
        first_line = head.partition(b"\r\n")[0].decode("latin-1")
        return "" if first_line.partition(" ")[2].startswith("2") else first_line

    async def secure(self, context: ssl.SSLContext, hostname: str) -> None:
        """Do the TLS handshake.

        Raises:
            ssl.SSLError: the certificate is not trusted, or the server does not speak TLS.
            TransportError: the server has closed the connection.
        """
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                await self._wait()
            except ssl.SSLError:
                self._flush()  # sends the TLS alert to the server
                raise
            else:
                return self._flush()

    def send(self, request: bytes) -> HTTPResponse:
        """Send an encoded request, not of HEAD; return its response, which has not arrived yet."""
        self._is_set_up = True
        response = self._response = HTTPResponse(self)
        self._head_size = 0
        if self._tls is None:
            self._transport.write(request)
            return response
        try:
            done = self._tls.write(request)
            while done < len(request):
                done += self._tls.write(memoryview(request)[done:])
        except ssl.SSLError as exc:
            self._fail(f"TLS has failed: {exc}")
        self._transport.write(self._outgoing.read())
        return response

    def resume_reading(self) -> None:
        """Resume reading after a slow consumer."""
        self._transport.resume_reading()

    def abort(self) -> None:
        """Close it at once, without the closing alert of TLS: the server can be too slow."""
        self._problem = self._problem or "the connection was closed"
        self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        # A cast, not an assertion: the transports of uvloop have no class of asyncio.
        self._transport = cast("asyncio.Transport", transport)
        # Called for each header, so this is no method. The names are as the server writes them.
        self.on_header = self._headers.__setitem__
        self._parser = httptools.HttpResponseParser(self)
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - of asyncio
        """Return the buffer for the next data."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the data that have arrived."""
        data = self._buffer[:nbytes]
        if self._is_set_up and self._tls is None:
            self._feed(data)
            return
        self._incoming.write(data)
        if self._is_set_up and self._tls is not None:
            self._decrypt(self._tls)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def eof_received(self) -> None:
        """Handle the end of the data; the event loop then closes our side."""
        self._end(is_clean=self._tls is None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Finish."""
        if isinstance(exc, OSError) and exc.errno:
            self._problem = self._problem or os.strerror(exc.errno)
        self._end(is_clean=False)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._on_lost(self)
        del self._parser

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Note that a response begins, maybe one without a request."""
        self._headers.clear()  # they can have the trailers of the previous one
        self._is_used_up |= self._response is None or self._response.is_complete

    def on_headers_complete(self) -> None:
        """Note that the head is complete; later headers are trailers, and ignored."""
        response, status = self._response, self._parser.get_status_code()
        if response is None or self._is_used_up or status < 200:  # then the final response follows
            return
        response.written_headers = self._headers.copy()
        response.status = status

    def on_body(self, chunk: bytes) -> None:
        """Add a piece of the content."""
        if self._response is not None and not self._is_used_up:
            self._response.chunks.append(chunk)
            self._response.size += len(chunk)

    def on_message_complete(self) -> None:
        """Note that the response is complete, unless it is an interim one."""
        if self._response is not None and self._response.status:
            self._response.is_complete = True
            self._is_used_up |= not self._parser.should_keep_alive()

    # Internal.

    def _decrypt(self, tls: ssl.SSLObject) -> None:
        # Its content was copied to _incoming, so it is free.
        buffer = self._buffer
        try:
            while not self._transport.is_closing():
                count: int = tls.read(_MAX_RECORD, buffer)  # type: ignore[assignment]
                if not count:
                    self._end(is_clean=True)
                    break
                self._feed(buffer[:count])
                if not self._incoming.pending and not tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._end(is_clean=True)
        except ssl.SSLError as exc:
            self._fail(f"TLS has failed: {exc}")
        if self._outgoing.pending:  # TLS can have data to send, such as new keys
            self._flush()

    def _feed(self, data: memoryview) -> None:
        """Parse data; release the connection if the response is complete."""
        response = self._response
        if response is None:
            self.abort()  # there was no request
            return
        response.has_begun = True
        size = response.size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._is_used_up = True
            if not response.is_complete:
                self._fail(f"the response is not HTTP/1.1: {exc}")
                return
        if response.is_complete:
            self._release(response)
            return
        self._head_size = self._head_size + len(data) if response.size == size else 0
        if self._head_size > _MAX_HEAD:
            self._fail("the headers or trailers of the response are too long")
            return
        if response.size > _MAX_WAITING:
            self._transport.pause_reading()
        if response.status and response.waiter is not None and not response.waiter.done():
            response.waiter.set_result(None)

    def _release(self, response: HTTPResponse) -> None:
        """Offer the connection for the next request, if it can be used again."""
        self._response = None
        response.leave()
        if self._is_used_up or self._transport.get_write_buffer_size():
            self.abort()
            return
        if response.size > _MAX_WAITING:
            self._transport.resume_reading()
        self._on_idle(self)

    def _end(self, *, is_clean: bool) -> None:
        """Finish the response: the server will send nothing more."""
        response, self._response = self._response, None
        if response is not None:
            is_until_end = not response.headers.keys() & {b"content-length", b"transfer-encoding"}
            if is_clean and response.status and is_until_end:
                response.leave()
            else:
                response.leave(self._problem or (_CUT if response.has_begun else _NO_RESPONSE))
        self._problem = self._problem or "the server closed the connection"
        self.abort()

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._end(is_clean=False)

    def _flush(self) -> None:
        self._transport.write(self._outgoing.read())

    async def _wait(self) -> None:
        """Wait for data during the setup."""
        if not self._transport.is_closing():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._transport.is_closing():
            raise TransportError(self._problem or "the server closed the connection")
