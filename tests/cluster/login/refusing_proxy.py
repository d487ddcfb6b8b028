"""A proxy before the API server that answers 401 to everything while it is told so."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

_REFUSAL = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class RefusingProxy:
    """Plain HTTP on this side unless it gets a context, TLS on the other one.

    Attributes:
        is_refusing: whether the requests of new connections get a 401.
        refused: how many did.
        url: where it listens.
    """

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_refusing = False
        self.refused = 0
        self.url = ""

    def refuse(self) -> None:
        """Answer 401 from now on; the connections of before are closed."""
        self.is_refusing = True
        self.cut()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, as ``asyncio.start_server`` calls it."""
        if self.is_refusing:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                self.refused += 1
                writer.write(_REFUSAL)
                await writer.drain()
            writer.close()
            return
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        other_reader, other_writer = await asyncio.open_connection(
            self._server.hostname, self._server.port, ssl=context
        )
        self._writers |= {writer, other_writer}
        try:
            await asyncio.gather(_pass_on(reader, other_writer), _pass_on(other_reader, writer))
        finally:
            self._writers -= {writer, other_writer}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def refusing_proxy(
    server: str, context: ssl.SSLContext | None = None
) -> AsyncIterator[RefusingProxy]:
    """Run a proxy to a server."""
    proxy = RefusingProxy(server)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=context)
    proxy.url = (
        f"{'https' if context else 'http'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    )
    try:
        yield proxy
    finally:
        listener.close()
        proxy.cut()
