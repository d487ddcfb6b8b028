"""A server that does exactly what a test says, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from tests.kit.fake_cluster import Networking
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault


def build_answer(content: bytes = b"{}", *lines: str, status: int = 200) -> bytes:
    head = "\r\n".join(
        [f"HTTP/1.1 {status} Any", f"Content-Length: {len(content)}", *lines, "", ""]
    )
    return head.encode() + content


class Connection:
    """What a script has: one accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self) -> tuple[str, bytes]:
        """Read a request: its head and its body. EOFError if there is none."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = 0
        for line in head.lower().split("\r\n"):
            if line.startswith("content-length: "):
                length = int(line.removeprefix("content-length: "))
        return head, await self.reader.readexactly(length)

    async def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)


Script = Callable[[Connection], Awaitable[None]]


class ScriptedServer:
    """Plays its script on each connection, which is closed after it.

    Attributes:
        accepted: how many connections have come.
        open: how many of them are open.
    """

    def __init__(self, script: Script) -> None:
        self.accepted = 0
        self.open = 0
        self.port = 0
        self.url = ""
        self._script = script
        self._tasks: set[asyncio.Task[None] | None] = set()

    async def wait_for_closing(self) -> None:
        async with asyncio.timeout(10):
            while self.open:
                await asyncio.sleep(0.005)

    def connect(self, info: ConnectionInfo | None = None, **networking: float) -> Client:
        info = info or ConnectionInfo(self.url, insecure=True)
        return Client(Vault({"x": info}), Networking(**networking))  # type: ignore[arg-type]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        self._tasks.add(asyncio.current_task())
        try:
            await self._script(Connection(reader, writer))
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self.open -= 1
            self._tasks.discard(asyncio.current_task())

    async def stop(self) -> None:
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def playing(
    script: Script, context: ssl.SSLContext | None = None, *, receive_buffer: int = 0
) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(script)
    sock = socket.create_server(("127.0.0.1", 0))
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    server = await asyncio.start_server(
        scripted.serve, sock=sock, ssl=context, limit=2**24, backlog=500
    )
    scripted.port = server.sockets[0].getsockname()[1]
    scripted.url = f"{'http' if context is None else 'https'}://127.0.0.1:{scripted.port}"
    try:
        yield scripted
    finally:
        server.close()
        await scripted.stop()
        await server.wait_closed()
