"""Streams of lines out of an HTTP response, with limits on silence and on the whole time.

Place in the flow: between :meth:`webop.client.api.Client.stream` and the parsing of watch events.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple, Self, cast

from webop.client.failures import CONNECTION_ERRORS, build_connection_error, build_status_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from webop.client.calls import Call
    from webop.client.sessions import Session
    from webop.errors import APIStatusError


class StreamLimits(NamedTuple):
    """The limits of one stream, in seconds; None means no limit.

    Attributes:
        connect: for the TCP handshake.
        silence: for the time until the next piece of data comes, whatever it is.
        total: for all of it.
    """

    connect: float | None = None
    silence: float | None = None
    total: float | None = None


class Deadlines:
    """The moments until which something has to come on a stream that begins now."""

    def __init__(self, limits: StreamLimits) -> None:
        self._now = asyncio.get_running_loop().time
        self._silence = limits.silence
        self._end = None if limits.total is None else self._now() + limits.total

    @property
    def is_over(self) -> bool:
        """Whether the total time is over, which is no error."""
        return self._end is not None and self._now() >= self._end

    def limit(self) -> asyncio.Timeout:
        """Limit the wait for the next piece of data: a context that raises TimeoutError."""
        if self._silence is None:
            return asyncio.timeout_at(self._end)
        silence_end = self._now() + self._silence
        return asyncio.timeout_at(silence_end if self._end is None else min(silence_end, self._end))


class LineStream:
    """Iterates over batches of lines: all complete lines of each piece of data.

    The lines are without their ends; what comes after the last end is a line too. A line can be
    longer than any piece of data. It stops when the server ends the stream, or when its total time
    is over; it raises TimeoutError when the server is silent for too long, APIConnectionError when
    the stream is cut.
    """

    def __init__(self, call: Call, response: httpx.Response, deadlines: Deadlines) -> None:
        self._call = call
        self._chunks = iterate_content(response)
        self._deadlines = deadlines
        self._tail = bytearray()

    def limit(self, limits: StreamLimits) -> None:
        """Put other limits in place of those until now; the total time begins anew."""
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
        if not self._tail:
            raise StopAsyncIteration
        rest = bytes(self._tail)
        self._tail.clear()
        return [rest]

    async def _receive(self) -> bytes:
        """Return the next piece of data; nothing at the end."""
        try:
            # Only the wait is limited: while the consumer is busy, nobody is silent.
            async with self._deadlines.limit():
                return await anext(self._chunks, b"")
        except TimeoutError:
            if self._deadlines.is_over:
                self._tail.clear()  # the rest comes again with the next stream
                return b""
            raise
        except CONNECTION_ERRORS as exc:
            raise build_connection_error(self._call.attempt, exc) from exc


@contextlib.asynccontextmanager
async def open_response(
    session: Session, call: Call, connect_timeout: float | None, deadlines: Deadlines
) -> AsyncIterator[httpx.Response]:
    """Send a request, give its response to be streamed.

    Raises:
        APIConnectionError: no connection, or no answer until the deadline.
        APIStatusError: a status of 300 or above.
    """
    response: httpx.Response | None = None
    try:
        async with deadlines.limit():
            response = await session.send(call, connect_timeout)
            content = await read_content(response) if response.status_code >= 300 else b""
    except CONNECTION_ERRORS as exc:
        raise build_connection_error(call.attempt, exc) from exc
    if response.status_code >= 300:
        raise build_refusal(call, response, content)
    try:
        yield response
    finally:
        with contextlib.suppress(*CONNECTION_ERRORS):
            await close_response(response)


async def read_content(response: httpx.Response) -> bytes:
    """Read the whole content, give the connection back."""
    try:
        return b"".join([chunk async for chunk in iterate_content(response)])
    finally:
        await close_response(response)


def build_refusal(call: Call, response: httpx.Response, content: bytes) -> APIStatusError:
    """Build the exception for an answer with a status of 300 or above."""
    return build_status_error(call.attempt, response.status_code, response.headers, content)


def iterate_content(response: httpx.Response) -> AsyncIterator[bytes]:
    """Iterate over the content, the shortest way unless it is compressed against our wish."""
    for key, _ in response.headers.raw:
        if key.lower() == b"content-encoding":
            return response.aiter_bytes()
    return aiter(cast("httpx.AsyncByteStream", response.stream))


async def close_response(response: httpx.Response) -> None:
    """Give the connection back, or close it if the content is not read to the end."""
    await cast("httpx.AsyncByteStream", response.stream).aclose()


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
