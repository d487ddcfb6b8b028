"""A fake cluster behind real sockets: plain HTTP/1.1, keep-alive, chunked streams."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import cast

import httpx

from tests.kit.fake_cluster import FakeCluster, Networking
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault


class HalfChunkError(Exception):
    """Put into a feed: a part of a chunk is sent, and then the connection is closed."""


class FakeServer:
    def __init__(self, cluster: FakeCluster, context: ssl.SSLContext | None = None) -> None:
        self.cluster = cluster
        self.context = context
        self.port = 0
        self.connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; after a kill, on the same port again."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self.context
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Reset all connections, and refuse new ones."""
        assert self._server is not None
        self._server.close()
        for writer in list(self.connections):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self.cluster.feeds.clear()

    def connect(self, networking: Networking | None = None) -> Client:
        info = ConnectionInfo(server=f"http://127.0.0.1:{self.port}")
        return Client(Vault({"test": info}), networking or Networking())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections.add(writer)
        try:
            while True:
                request = await read_request(reader)
                await send_response(writer, await self.cluster.handle(request))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except httpx.ReadError:
            writer.transport.abort()
        finally:
            writer.close()
            self.connections.discard(writer)
            self._tasks.discard(task)


async def read_request(reader: asyncio.StreamReader) -> httpx.Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = dict(line.split(": ", 1) for line in lines)
    length = {key.lower(): value for key, value in headers.items()}.get("content-length", "0")
    content = await reader.readexactly(int(length))
    url = target if target.startswith("http") else "http://fake" + target
    return httpx.Request(method, url, headers=headers, content=content)


async def send_response(writer: asyncio.StreamWriter, response: httpx.Response) -> None:
    head = f"HTTP/1.1 {response.status_code} Whatever\r\n"
    if "retry-after" in response.headers:
        head += f"Retry-After: {response.headers['retry-after']}\r\n"
    length = response.headers.get("content-length")
    if length is not None:
        writer.write(f"{head}Content-Length: {length}\r\n\r\n".encode() + response.content)
        return
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    try:
        async for data in cast("AsyncIterator[bytes]", response.stream):
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
    except HalfChunkError:
        writer.write(b'fff\r\n{"type":"MODI')
        await writer.drain()
        raise ConnectionError from None
    writer.write(b"0\r\n\r\n")
