"""A proxy between one replica and the API server that injects faults.

The replica speaks plain HTTP to the proxy, the proxy speaks TLS to the API server. It parses each
request: it can refuse it, or forward it and lose the response. It forwards responses as bytes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

_CHUNK = 65536
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_REFUSAL = b'{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": %d}'


@dataclass
class Weather:
    """The current faults of a link; shares of requests are from 0 to 1.

    Attributes:
        is_closed: new connections are reset.
        is_hung: nothing passes in either direction; it is delivered later, unless the replica
            resets the connection.
        delay: seconds before each request and each piece of a response.
        status: the status of responses by the proxy itself.
        failing: the share of requests with such responses.
        losing: the share of requests that are forwarded, but lose their responses.
    """

    is_closed: bool = False
    is_hung: bool = False
    delay: float = 0.0
    status: int = 503
    failing: float = 0.0
    losing: float = 0.0


class Connection:
    """One connection of the replica, with its connection to the API server."""

    def __init__(self, writer: asyncio.StreamWriter, upstream: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.upstream = upstream
        self.is_dead = False  # half open: nothing passes, both sides stay open
        self.is_lost = False  # the next response is not forwarded

    def abort(self) -> None:
        """Reset both."""
        self.writer.transport.abort()
        self.upstream.transport.abort()


class Link:
    """All connections of one replica and its successors.

    Attributes:
        weather: the current faults; assign another value to change them.
        counts: the number of faults of each kind.
        url: the URL of the proxy.
    """

    def __init__(self, server: str, ca_data: str, chance: random.Random) -> None:
        parts = urlsplit(server)
        self._target = (parts.hostname, parts.port)
        self._context = ssl.create_default_context(cadata=base64.b64decode(ca_data).decode())
        self._chance = chance
        self._connections: set[Connection] = set()
        self.weather = Weather()
        self.counts: Counter[str] = Counter()
        self.url = ""

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Listen during a block."""
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            listener.close()
            self.cut()

    def cut(self) -> None:
        """Reset all connections."""
        self.counts["cut"] += len(self._connections)
        for connection in list(self._connections):
            connection.abort()

    def forget(self) -> None:
        """Forward nothing more on the current connections, without a reset: they are half open."""
        self.counts["forgotten"] += len(self._connections)
        for connection in self._connections:
            connection.is_dead = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.weather.is_closed:
            self.counts["closed"] += 1
            writer.transport.abort()
            return
        try:
            back, upstream = await asyncio.open_connection(*self._target, ssl=self._context)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(writer, upstream)
        self._connections.add(connection)
        with contextlib.suppress(asyncio.CancelledError):  # else streams log a traceback
            await self._pass_on(reader, back, connection)

    async def _pass_on(
        self, reader: asyncio.StreamReader, back: asyncio.StreamReader, connection: Connection
    ) -> None:
        tasks = [
            asyncio.create_task(self._pass_requests(reader, connection)),
            asyncio.create_task(self._pass_answers(back, connection)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            connection.abort()
            self._connections.discard(connection)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_requests(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                if found := _LENGTH.search(request):
                    request += await reader.readexactly(int(found[1]))
                await self._hold(connection)
                self.counts["requests"] += 1
                if self._chance.random() < self.weather.failing:
                    self.counts[f"answered {self.weather.status}"] += 1
                    connection.writer.write(_build_refusal(self.weather.status))
                    continue
                is_watch = b"watch=true" in request[: request.index(b"\r\n")]
                if not is_watch and self._chance.random() < self.weather.losing:
                    connection.is_lost = True
                connection.upstream.write(request)
                await connection.upstream.drain()

    async def _pass_answers(self, reader: asyncio.StreamReader, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if connection.is_lost:
                    self.counts["answers lost"] += 1
                    return
                await self._hold(connection)
                connection.writer.write(data)
                await connection.writer.drain()

    async def _hold(self, connection: Connection) -> None:
        if self.weather.delay:
            await asyncio.sleep(self.weather.delay)
        while self.weather.is_hung or connection.is_dead:
            # A hung link delivers its data later; a dead connection never does.
            await asyncio.sleep(0.05)
        if connection.writer.transport.is_closing():
            raise ConnectionResetError  # data in transit is lost with the connection


def _build_refusal(status: int) -> bytes:
    body = _REFUSAL % status
    pause = "retry-after: 1\r\n" if status == 429 else ""
    head = f"HTTP/1.1 {status} Chaos\r\ncontent-type: application/json\r\n{pause}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
