"""A proxy between one replica and the API server that injects faults.

The replica speaks plain HTTP to the proxy, the proxy speaks TLS to the API server. It parses each
request: it can refuse it, or forward it and lose the response. It forwards responses as bytes.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from dataclasses import dataclass

from tests.kit.forwarder import Connection, Forwarder
from tests.kit.operators import build_tls

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


class Link(Forwarder):
    """All connections of one replica and its successors.

    Attributes:
        weather: the current faults; assign another value to change them.
        counts: the number of faults of each kind.
    """

    def __init__(self, server: str, ca_data: str, chance: random.Random) -> None:
        super().__init__(server, server_tls=build_tls(ca_data))
        self._chance = chance
        self._lost: set[Connection] = set()  # whose next response is not forwarded
        self.weather = Weather()
        self.counts: Counter[str] = Counter()

    def cut(self) -> None:
        self.counts["cut"] += len(self.connections)
        super().cut()

    def freeze(self) -> None:
        """Leave all connections half open."""
        self.counts["forgotten"] += len(self.connections)
        super().freeze()

    def find_server(self) -> tuple[str | None, int | None] | None:
        """Return the API server, unless the way is closed."""
        if not self.weather.is_closed:
            return super().find_server()
        self.counts["closed"] += 1
        return None

    async def pass_up(self, connection: Connection) -> None:
        """Pass requests on one by one; some get their response here."""
        reader = connection.reader
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            if found := _LENGTH.search(request):
                request += await reader.readexactly(int(found[1]))
            self.counts["requests"] += 1
            head = request[: request.index(b"\r\n")]
            if self._chance.random() < self.weather.failing:
                self.counts[f"answered {self.weather.status}"] += 1
                answer = _build_refusal(self.weather.status)
                await self.send(connection, connection.writer, answer)
                continue
            if b"watch=true" not in head and self._chance.random() < self.weather.losing:
                self._lost.add(connection)
            await self.send(connection, connection.server_writer, request)

    async def send(self, connection: Connection, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Pass a piece on, later maybe; a connection ends instead of a lost response."""
        if connection in self._lost and writer is connection.writer:
            self.counts["answers lost"] += 1
            self._lost.discard(connection)
            raise ConnectionResetError
        await asyncio.sleep(self.weather.delay)
        while self.weather.is_hung:
            await asyncio.sleep(0.05)
        if connection.writer.transport.is_closing():
            raise ConnectionResetError  # data in transit is lost with the connection
        await super().send(connection, writer, data)


def _build_refusal(status: int) -> bytes:
    body = _REFUSAL % status
    pause = "retry-after: 1\r\n" if status == 429 else ""
    head = f"HTTP/1.1 {status} Chaos\r\ncontent-type: application/json\r\n{pause}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
