"""Streams of lines from an HTTP response, with limits on the idle time and on the whole time."""

from __future__ import annotations

import asyncio
import math
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


class LineStream:
    """Iterates over batches of lines: all complete lines of each piece of data.

    The lines have no line ends; the text after the last line end is a line too. A line can be
    longer than a piece of data. The iteration stops when the server ends the stream, or when the
    total time is over. It raises TimeoutError when the server sends nothing for too long, and
    APIConnectionError when the stream is cut.

    Attributes:
        response: what the lines are read from.
    """

    response: Response

    def __init__(self, call: Call, limits: StreamLimits) -> None:
        self._call = call
        self._now = asyncio.get_running_loop().time
        self._tail = bytearray()
        self.limit(limits)

    def limit(self, limits: StreamLimits) -> None:
        """Replace the limits; the total time starts again."""
        self._silence = limits.silence
        self._end = math.inf if limits.total is None else self._now() + limits.total

    def waiting(self) -> asyncio.Timeout:
        """Limit the wait for the next data, but not the time in which the consumer is busy."""
        end = self._end if self._silence is None else min(self._now() + self._silence, self._end)
        return asyncio.timeout_at(None if end == math.inf else end)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            try:
                async with self.waiting():
                    chunk = await self.response.receive()
            except TimeoutError:
                if self._now() < self._end:
                    raise
                raise StopAsyncIteration from None  # the next stream brings the unfinished line
            except OSError as exc:
                raise build_connection_error(self._call.attempt, exc) from exc
            if not chunk:
                break
            # Only the new chunk is searched for line ends: a long line costs linear time in all.
            end = chunk.rfind(b"\n")
            if end >= 0:
                lines = chunk[:end].split(b"\n")
                lines[0] = bytes(self._tail) + lines[0]
                self._tail[:] = chunk[end + 1 :]
                return lines
            self._tail += chunk
            if len(self._tail) > _LINE_LIMIT:
                problem = TransportError(f"a line is longer than {_LINE_LIMIT:,} bytes")
                raise build_connection_error(self._call.attempt, problem)
        if not self._tail:
            raise StopAsyncIteration
        rest = bytes(self._tail)
        self._tail.clear()
        return [rest]


async def read_content(response: Response) -> bytes:
    """Read the whole content; close the connection if that is interrupted."""
    chunks = []
    try:
        while chunk := await response.receive():
            chunks.append(chunk)
            if response.is_complete:
                break
    except BaseException:
        await response.aclose()
        raise
    return b"".join(chunks)


def build_refusal(call: Call, response: Response, content: bytes) -> APIStatusError:
    """Build the exception for a response with a status of 300 or above."""
    retry_after = response.headers.get(b"retry-after", b"").decode("latin-1")
    return build_status_error(call.attempt, response.status, retry_after, content)
