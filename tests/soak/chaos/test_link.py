"""The way to the API server that chaos runs disturb does what a network would do."""

from __future__ import annotations

import asyncio
import base64
import random
import socket
import ssl
import struct
from dataclasses import replace

import pytest

from tests.soak.chaos.link import Link
from webop.keymaterial import load_key_material
from webop.servers.certificates.certs import build_certificate_self_signed

REQUEST = b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_hung_way_passes_on_later_what_was_not_reset_meanwhile(*, is_reset: bool) -> None:
    pair = build_certificate_self_signed(["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_key_material(context, pair.cert, pair.key)
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(receive, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    link = Link(url, base64.b64encode(pair.cert).decode(), random.Random(1))
    async with server, link.listen(), asyncio.timeout(10):
        link.weather = replace(link.weather, is_hung=True)
        _, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(REQUEST)
        if is_reset:
            await asyncio.sleep(0.2)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await asyncio.sleep(0.1)
        link.weather = replace(link.weather, is_hung=False)
        assert await received.get() == (b"" if is_reset else REQUEST)
        writer.close()
