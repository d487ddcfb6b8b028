"""A server that does exactly what a test says, byte by byte or answer by answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import httpx

from tests.kit.client_options import Networking
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault


def build_answer(content: bytes = b"{}", *lines: str, status: int = 200) -> bytes:
    head = "\r\n".join(
        [f"HTTP/1.1 {status} Any", f"Content-Length: {len(content)}", *lines, "", ""]
    )
    return head.encode() + content


class HalfChunkError(Exception):
    """Raised by the content of an answer: a part of a chunk is sent; the connection is closed."""


class Connection:
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

    async def read_request(self) -> httpx.Request:
        head, content = await self.read()
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = dict(line.split(": ", 1) for line in lines)
        url = target if target.startswith("http") else "http://fake" + target
        return httpx.Request(method, url, headers=headers, content=content)

    async def send(self, response: httpx.Response) -> None:
        """Write a response of httpx; without a length, in chunks."""
        kept = ("retry-after", "content-length")
        lines = [f"{key}: {response.headers[key]}\r\n" for key in kept if key in response.headers]
        head = f"HTTP/1.1 {response.status_code} Whatever\r\n{''.join(lines)}"
        if "content-length" in response.headers:
            self.writer.write(f"{head}\r\n".encode() + response.content)
            return
        self.writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        try:
            async for data in cast("AsyncIterator[bytes]", response.stream):
                self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                await self.writer.drain()
        except HalfChunkError:
            await self.write(b'fff\r\n{"type":"MODI')
            raise ConnectionError from None
        self.writer.write(b"0\r\n\r\n")


Script = Callable[[Connection], Awaitable[None]]


def answer_by(handle: Callable[[httpx.Request], Awaitable[httpx.Response]]) -> Script:
    """Answer all requests by a function; errors of httpx reset the connection."""

    async def answer(connection: Connection) -> None:
        try:
            while True:
                await connection.send(await handle(await connection.read_request()))
        except httpx.HTTPError:
            connection.writer.transport.abort()

    return answer


def answer_with(*pieces: bytes, stays_open: bool = False) -> Script:
    """Read one request, write the pieces, and close the connection, or leave it to the client."""

    async def answer(connection: Connection) -> None:
        await connection.read()
        await connection.write(*pieces)
        if stays_open:
            await connection.reader.read()

    return answer


class ScriptedServer:
    """Plays its script on each connection, which is closed after it.

    Attributes:
        accepted: how many connections have come.
    """

    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self.accepted = 0
        self.port = 0
        self._script, self._context = script, context
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    @property
    def open(self) -> int:
        return len(self._writers)

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self.port}"

    async def start(self, *, receive_buffer: int = 0) -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._server = await asyncio.start_server(
            self._serve, sock=sock, ssl=self._context, limit=2**24, backlog=500
        )
        self.port = sock.getsockname()[1]

    def cut(self) -> None:
        for writer in self._writers.values():
            writer.transport.abort()

    async def stop(self) -> None:
        """Reset all connections, and refuse new ones."""
        assert self._server is not None
        self._server.close()
        self.cut()
        tasks = [task for task in self._writers if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await self._server.wait_closed()

    async def wait_for_closing(self) -> None:
        await eventually(lambda: not self.open, "the end of all connections", 10)

    def connect(self, info: ConnectionInfo | None = None, **networking: float) -> Client:
        info = info or ConnectionInfo(self.url, insecure=True)
        return Client(Vault({"x": info}), Networking(**networking))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        self._writers[task] = writer
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await self._script(Connection(reader, writer))
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            del self._writers[task]


@contextlib.asynccontextmanager
async def playing(
    script: Script, context: ssl.SSLContext | None = None, *, receive_buffer: int = 0
) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(script, context)
    await server.start(receive_buffer=receive_buffer)
    try:
        yield server
    finally:
        await server.stop()
