"""HTTP/1.1 from the client's side, with TLS: one connection, one request at a time.

Place in the flow: :mod:`webop.client.connections` opens the connections and keeps idle ones.

TLS is done here, on buffers in memory: that takes half the CPU time of asyncio's own TLS. A request
is encrypted and written at once. A response is parsed by httptools as it comes.
"""

from __future__ import annotations

import asyncio
import os
import select
import ssl
from collections.abc import Callable
from typing import cast

import httptools

from webop.client.transport import TransportError

# Bytes of the content that wait for a slow consumer; the server has to wait then.
_MAX_WAITING = 256 * 1024
_MAX_HEAD = 64 * 1024  # bytes, of all that is no content: trailers and the heads of chunks as well
_MAX_RECORD = 16 * 1024  # bytes, of TLS
_CUT = "the server closed the connection in the middle of the response"
_NO_RESPONSE = "the server closed the connection before it responded"


class HTTPResponse:
    """The response to a request (see :class:`webop.client.transport.Response`).

    It leaves its connection as soon as all of it has come, whether it is read or not.

    Attributes:
        has_begun: whether anything of it has come.
        is_complete: whether all of it has come.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_problem",
        "_waiter",
        "has_begun",
        "headers",
        "is_complete",
        "size",
        "status",
    )

    def __init__(self, connection: Connection) -> None:
        self.status = 0  # until the head is complete
        self.headers: dict[bytes, bytes] = {}
        self.has_begun = False
        self.is_complete = False
        self.size = 0  # bytes that wait
        self._connection: Connection | None = connection
        self._chunks: list[bytes] = []
        # Only the text: a kept exception and the frames that it has passed would form a cycle.
        self._problem = ""
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_head(self) -> None:
        """Wait for the status and the headers.

        Raises:
            TransportError: they do not come.
        """
        while not self.status:
            await self._wait()

    async def receive(self) -> bytes:
        """Wait for a piece of the content, as large as has come; nothing at the end."""
        while not self._chunks:
            if self.is_complete:
                return b""
            await self._wait()
        content = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        if self.size > _MAX_WAITING and self._connection is not None:
            self._connection.resume_reading()
        self.size = 0
        return content

    async def aclose(self) -> None:
        """Close the connection if the content was not received to the end."""
        if self._connection is not None:
            self._connection.abort()

    def add(self, chunk: bytes) -> None:
        """Take a piece of the content."""
        self._chunks.append(chunk)
        self.size += len(chunk)

    def leave(self, problem: str = "") -> None:
        """Leave the connection: the response is complete, or there is a problem."""
        self.is_complete = not problem
        self._problem = problem
        self._connection = None
        self.wake()

    def wake(self) -> None:
        """Let the consumer have another look."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        if self._problem:
            raise TransportError(self._problem)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except BaseException:
            if self._connection is not None:
                self._connection.abort()
            raise


class Connection(asyncio.BufferedProtocol):
    """A connection to a server, or to a proxy.

    Flow: it is connected; then :meth:`tunnel` if there is a proxy, :meth:`secure` for https; from
    then on :meth:`send` for one request after the other, each when the response before is complete.

    Args:
        buffer: what is read into. Nothing stays there: connections may share it.
        on_idle: called when a response is complete and another request can be sent.
        on_lost: called in the end.

    Attributes:
        idle_since: in the loop's time; for the one who keeps it.
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
        self._parser: httptools.HttpResponseParser  # it and this refer to each other while it lives
        self._response: HTTPResponse | None = None
        self._is_for_head = False
        self._head_size = 0
        self._is_used_up = False  # no other request can be sent
        self._problem = ""  # why it is lost
        # While it is being set up, what comes goes into _incoming, and somebody waits for it.
        self._is_set_up = False
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self._readable = select.poll()

    @property
    def is_usable(self) -> bool:
        """Whether a request can be sent, as far as this side can know."""
        # What is readable now is the end, of which the event loop has not told yet.
        return not self._transport.is_closing() and not self._readable.poll(0)

    async def tunnel(self, request: bytes) -> str:
        """Ask a proxy for a connection to the server; return the first line if it refuses."""
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
        """Shake hands.

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
                self._flush()  # the server is told what is wrong
                raise
            else:
                return self._flush()

    def send(self, request: bytes, *, is_for_head: bool = False) -> HTTPResponse:
        """Send a request; its response is to come.

        Args:
            request: as HTTP/1.1 has it.
            is_for_head: whether the method is HEAD, so that no content comes whatever is promised.
        """
        self._is_set_up = True
        self._response = HTTPResponse(self)
        self._is_for_head = is_for_head
        self._head_size = 0
        if self._tls is None:
            self._transport.write(request)
            return self._response
        try:
            done = self._tls.write(request)
            while done < len(request):
                done += self._tls.write(memoryview(request)[done:])
        except ssl.SSLError as exc:
            self._fail(f"TLS has failed: {exc}")
        self._flush()
        return self._response

    def resume_reading(self) -> None:
        """Go on after a slow consumer."""
        self._transport.resume_reading()

    def abort(self) -> None:
        """Close it at once, without the farewell of TLS: the server may be too slow for it."""
        self._problem = self._problem or "the connection was closed"
        self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # Not asserted: the transports of uvloop are of no class of asyncio.
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - it is asyncio's
        """Return where to put what comes next."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has come."""
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
        """Hear that the server has closed its side; the event loop closes ours then."""
        self._end(is_clean=self._tls is None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if isinstance(exc, OSError) and exc.errno:
            self._problem = self._problem or os.strerror(exc.errno)
        self._end(is_clean=False)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._on_lost(self)
        del self._parser

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A response begins, maybe one that nobody has asked for."""
        self._is_used_up |= self._response is None or self._response.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; but no trailer, which must not pass for one (RFC 9110, 6.5.1)."""
        if self._response is not None and not self._response.status and not self._is_used_up:
            self._response.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        if self._response is None or self._is_used_up:
            return
        if status < 200:  # the response is still to come
            self._response.headers.clear()
            return
        self._response.status = status
        self._response.is_complete = self._is_used_up = self._is_for_head

    def on_body(self, chunk: bytes) -> None:
        """Take a piece of the content."""
        if self._response is not None and not self._is_used_up:
            self._response.add(chunk)

    def on_message_complete(self) -> None:
        """The response is complete, unless it is an interim one."""
        if self._response is not None and self._response.status:
            self._response.is_complete = True
            self._is_used_up |= not self._parser.should_keep_alive()

    # In between.

    def _decrypt(self, tls: ssl.SSLObject) -> None:
        """Parse what can be decrypted."""
        # It is free again: what was in it is in _incoming.
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
        if self._outgoing.pending:  # TLS may have something to say of its own, as new keys
            self._flush()

    def _feed(self, data: memoryview) -> None:
        """Parse what has come; give the connection back if the response is complete."""
        response = self._response
        if response is None:
            self.abort()  # nobody has asked
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
        if response.status:
            response.wake()

    def _release(self, response: HTTPResponse) -> None:
        """Be free for the next request, if there can be one."""
        self._response = None
        response.leave()
        if self._is_used_up or self._transport.get_write_buffer_size():
            self.abort()
            return
        if response.size > _MAX_WAITING:
            self._transport.resume_reading()
        self._on_idle(self)

    def _end(self, *, is_clean: bool) -> None:
        """The server will send nothing more."""
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
        """Wait for more while the connection is set up."""
        if not self._transport.is_closing():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._transport.is_closing():
            raise TransportError(self._problem or "the server closed the connection")
