"""A TCP proxy between an operator and the API server that breaks connections on purpose.

It passes bytes on as they are: TLS is between the two ends, and the certificate of the API server
is good for the proxy's address too, which is 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit


class Proxy:
    """The connections through one port.

    Attributes:
        is_refusing: whether new connections are closed at once.
        accepted: how many connections there were.
        received: how many bytes the server has sent.
        url: where it listens.
    """

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._target = (parts.hostname, parts.port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_dead = asyncio.Event()
        self.is_refusing = False
        self.accepted = 0
        self.received = 0
        self.url = ""

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        """Pass nothing on through the present connections, and tell nobody; new ones are fine."""
        self._is_dead.set()
        self._is_dead = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, as ``asyncio.start_server`` calls it."""
        self.accepted += 1
        if self.is_refusing:
            writer.transport.abort()
            return
        other_reader, other_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, other_writer}
        is_dead = self._is_dead
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, other_writer, is_dead))
                group.create_task(_pass_on(other_reader, writer, is_dead, self._count))
        finally:
            self._writers -= {writer, other_writer}

    def _count(self, size: int) -> None:
        self.received += size


async def _pass_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    is_dead: asyncio.Event,
    count: Callable[[int], None] = lambda _: None,
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            count(len(data))
            if not is_dead.is_set():
                writer.write(data)
                await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def intercept(server: str) -> AsyncIterator[Proxy]:
    """Run a proxy to a server; its address is in ``url``."""
    proxy = Proxy(server)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    proxy.url = f"https://127.0.0.1:{port}"
    try:
        yield proxy
    finally:
        listener.close()
        proxy.cut()
