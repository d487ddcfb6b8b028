"""Streams of lines from an HTTP response, with limits on the idle time and on the whole time.

Place in the flow: between :meth:`webop.client.api.Client.stream` and the parsing of watch events.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Self

from webop.client.http.failed_requests import build_connection_error, build_status_error
from webop.client.http.transport import TransportError

if TYPE_CHECKING:
    from webop.client.http.requests import Call
    from webop.client.http.transport import Response
    from webop.errors import APIStatusError

_LINE_LIMIT = 64_000_000  # bytes; objects have at most 1.5 MB in etcd, and some more as JSON


class StreamLimits(NamedTuple):
    """The limits of one stream, in seconds; None means no limit.

    Attributes:
        connect: for the TCP handshake.
        silence: for the time until the next data of any kind.
        total: for the whole stream.
    """

    connect: float | None = None
    silence: float | None = None
    total: float | None = None


class Deadlines:
    """The deadlines of a stream that begins now: for the next data, and for the whole stream."""

    def __init__(self, limits: StreamLimits) -> None:
        self._now = asyncio.get_running_loop().time
        self._silence = limits.silence
        self._end = None if limits.total is None else self._now() + limits.total

    @property
    def is_over(self) -> bool:
        """Whether the total time is over, which is not an error."""
        return self._end is not None and self._now() >= self._end

    def limit(self) -> asyncio.Timeout:
        """Limit the wait for the next piece of data: a context that raises TimeoutError."""
        if self._silence is None:
            return asyncio.timeout_at(self._end)
        silence_end = self._now() + self._silence
        return asyncio.timeout_at(silence_end if self._end is None else min(silence_end, self._end))


class LineStream:
    """Iterates over batches of lines: all complete lines of each piece of data.

    The lines have no line ends; the text after the last line end is a line too. A line can be
    longer than a piece of data. The iteration stops when the server ends the stream, or when the
    total time is over. It raises TimeoutError when the server sends nothing for too long, and
    APIConnectionError when the stream is cut.
    """

    def __init__(self, call: Call, response: Response, deadlines: Deadlines) -> None:
        self._call = call
        self._read = response.receive
        self._deadlines = deadlines
        self._tail = bytearray()

    def limit(self, limits: StreamLimits) -> None:
        """Replace the limits; the total time starts again."""
        self._deadlines = Deadlines(limits)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            chunk = await self._receive()
            if not chunk:
                break
            lines = split_lines(self._tail, chunk)
            if lines:
                return lines
            if len(self._tail) > _LINE_LIMIT:
                exc = TransportError(f"a line is longer than {_LINE_LIMIT:,} bytes")
                raise build_connection_error(self._call.attempt, exc)
        if not self._tail:
            raise StopAsyncIteration
        rest = bytes(self._tail)
        self._tail.clear()
        return [rest]

    async def _receive(self) -> bytes:
        """Return the next piece of data; nothing at the end."""
        try:
            # Only the wait is limited, not the time in which the consumer is busy.
            async with self._deadlines.limit():
                return await self._read()
        except TimeoutError:
            if self._deadlines.is_over:
                self._tail.clear()  # the next stream brings the rest again
                return b""
            raise
        except OSError as exc:
            raise build_connection_error(self._call.attempt, exc) from exc


async def read_content(response: Response) -> bytes:
    """Read the whole content, release the connection."""
    chunks = []
    try:
        while chunk := await response.receive():
            chunks.append(chunk)
    finally:
        await response.aclose()
    return b"".join(chunks)


def build_refusal(call: Call, response: Response, content: bytes) -> APIStatusError:
    """Build the exception for a response with a status of 300 or above."""
    retry_after = response.headers.get(b"retry-after", b"").decode("latin-1")
    return build_status_error(call.attempt, response.status, {"retry-after": retry_after}, content)


def split_lines(tail: bytearray, chunk: bytes) -> list[bytes]:
    """Return the lines that the chunk completes; keep the unfinished rest in the tail.

    A long line costs linear time in all: only the new chunk is searched for line ends.
    """
    end = chunk.rfind(b"\n")
    if end < 0:
        tail += chunk
        return []
    lines = chunk[:end].split(b"\n")
    if tail:
        lines[0] = bytes(tail) + lines[0]
    tail[:] = chunk[end + 1 :]
    return lines
