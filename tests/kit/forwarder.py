"""A forwarder of TCP connections: the network between two ends, which a test can disturb.

It passes bytes on as they are. TLS is between the two ends, unless one side gets a context here:
the certificate of the API server is valid for the forwarder too, whose address is 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit


@dataclass(eq=False)
class Connection:
    """A connection of a client, and the one to the server.

    Attributes:
        is_frozen: whether it passes nothing on, and tells nobody.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server_reader: asyncio.StreamReader
    server_writer: asyncio.StreamWriter
    is_frozen: bool = False

    def abort(self) -> None:
        self.writer.transport.abort()
        self.server_writer.transport.abort()


class Forwarder:
    """The connections through one port.

    Args:
        server: the URL of the server.
        tls: with it, clients speak TLS to the forwarder.
        server_tls: with it, the forwarder speaks TLS to the server.

    Attributes:
        server: the URL of the server for new connections.
        is_refusing: whether new connections are reset at once.
        refusal: what they get instead, as the answer to their first request.
        accepted: the number of connections.
        refused: how many of them were refused, or found no server.
        received: the number of bytes from the server.
        connections: those that are open.
    """

    def __init__(
        self,
        server: str = "",
        *,
        tls: ssl.SSLContext | None = None,
        server_tls: ssl.SSLContext | None = None,
    ) -> None:
        self.server, self._tls, self._server_tls = server, tls, server_tls
        self._tasks: set[asyncio.Task[None] | None] = set()
        self.connections: set[Connection] = set()
        self.is_refusing, self.refusal = False, b""
        self.accepted = self.refused = self.received = 0
        self.port = 0

    @property
    def url(self) -> str:
        is_plain = self._tls is None and self._server_tls is not None
        return f"{'http' if is_plain else 'https'}://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def listen(self, host: str = "127.0.0.1") -> AsyncIterator[Self]:
        """Accept connections during a block."""
        listener = await asyncio.start_server(self._serve, host, 0, ssl=self._tls, backlog=1000)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listener.close()
            tasks = [task for task in self._tasks if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks)

    def cut(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def freeze(self) -> None:
        """Pass nothing on through the present connections, and tell nobody; new ones are fine."""
        for connection in self.connections:
            connection.is_frozen = True

    def find_server(self) -> tuple[str | None, int | None] | None:
        """Return the host and the port for a new connection, if there is a server for it."""
        parts = urlsplit(self.server)
        return parts.hostname, parts.port

    async def pass_up(self, connection: Connection) -> None:
        """Pass on what a client sends, until it ends."""
        while data := await connection.reader.read(65536):
            await self.send(connection, connection.server_writer, data)

    async def pass_down(self, connection: Connection) -> None:
        """Pass on what the server sends, until it ends."""
        while data := await connection.server_reader.read(65536):
            self.received += len(data)
            await self.send(connection, connection.writer, data)

    async def send(self, connection: Connection, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not connection.is_frozen:
            writer.write(data)
            await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            # Streams log a traceback when a task is cancelled.
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                if self.is_refusing or (server := self.find_server()) is None:
                    await self._refuse(reader, writer)
                else:
                    await self._forward(reader, writer, server)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusal:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.refusal)
            writer.close()
            await writer.wait_closed()
        self.refused += 1

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: tuple[str | None, int | None],
    ) -> None:
        try:
            other = await asyncio.open_connection(*server, ssl=self._server_tls)
        except OSError:
            self.refused += 1
            return
        connection = Connection(reader, writer, *other)
        self.connections.add(connection)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(connection, is_up=True))
                group.create_task(self._pass(connection, is_up=False))
        finally:
            connection.abort()
            self.connections.discard(connection)

    async def _pass(self, connection: Connection, *, is_up: bool) -> None:
        try:
            await (self.pass_up if is_up else self.pass_down)(connection)
            writer = connection.server_writer if is_up else connection.writer
            # In TLS, there is no end of one direction.
            writer.write_eof() if writer.can_write_eof() else writer.close()
        except (OSError, EOFError):
            connection.abort()
