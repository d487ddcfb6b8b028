"""The deadlines of the client in two loops, and in nested requests of one task."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import webop
from tests.kit.scripted_server import answer_with, build_answer, playing
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.errors import APIConnectionError
from webop.settings.groups import NetworkingSettings

_ANSWER = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def silent_at_the_second_request() -> Iterator[str]:
    """The URL of a server that answers one request, and nothing to the next ones."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.recv(65536)
                if not kept:
                    connection.sendall(_ANSWER)
                    connection.close()
                kept.append(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()  # it can just have accepted one more
        for connection in kept:
            connection.close()


def test_a_hung_request_ends_in_time_also_in_the_second_loop_of_a_client(
    silent_at_the_second_request: str,
) -> None:
    vault = Vault({"test": ConnectionInfo(server=silent_at_the_second_request)})
    client = Client(vault, NetworkingSettings(request_timeout=0.5, error_backoffs=[]))

    async def ask() -> None:
        async with asyncio.timeout(5):
            await client.request("GET", "/x")

    asyncio.run(ask())
    with pytest.raises(APIConnectionError):
        asyncio.run(ask())


async def test_a_hook_of_a_session_of_aiohttp_can_use_the_client_itself() -> None:
    aiohttp = pytest.importorskip("aiohttp")
    async with playing(answer_with(build_answer(b'{"ok":1}'))) as server:
        asked: list[str] = []

        async def look_up(*_: Any) -> None:
            if not asked:
                asked.append("token")
                await client.request("GET", "/token")

        hooks = aiohttp.TraceConfig()
        hooks.on_request_start.append(look_up)
        session = aiohttp.ClientSession(trace_configs=[hooks])
        info = webop.AiohttpSession(aiohttp_session=session, server=server.url)
        client = Client(Vault({"test": info}), NetworkingSettings(error_backoffs=[]))
        async with client:
            assert await client.request("GET", "/x") == {"ok": 1}
