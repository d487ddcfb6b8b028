"""What a server or a proxy in between can do to the client, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.scripted_server import Connection, answer_with, build_answer, playing
from tests.unit.client.http.test_http1 import echo
from webop import ConnectionInfo
from webop.errors import APIConnectionError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (CHUNKED + b"2\r\n{}\r\n0\r\nX: ", b"x"),
        (CHUNKED + b"2\r\n{}\r\n0\r\n", b"X: x\r\n"),
        (CHUNKED + b"2;x=", b"x"),
    ],
    ids=["a trailer", "trailers", "the head of a chunk"],
)
async def test_what_is_no_content_does_not_fill_the_memory(start: bytes, part: bytes) -> None:
    written = 0

    async def script(connection: Connection) -> None:
        nonlocal written
        await connection.read()
        await connection.write(start)
        while written < 20_000_000:
            await connection.write(part * 10_000)
            written += 10_000 * len(part)
        await connection.reader.read()

    async with playing(script) as server, server.connect() as client:
        with pytest.raises(APIConnectionError, match="trailers of the response are too long"):
            await client.request("GET", "/x", timeout=60)
        await server.wait_for_closing()
    assert written < 20_000_000


async def test_a_proxy_cannot_write_lines_into_the_log() -> None:
    answer = b"HTTP/1.1 407 No\nERROR all is lost \x1b[31m\r\n\r\n"
    async with playing(answer_with(answer)) as proxy:
        info = ConnectionInfo("https://127.0.0.1:1", proxy_url=proxy.url)
        async with proxy.connect(info) as client:
            with pytest.raises(APIConnectionError, match=r"refused the connection: .* 407 No") as e:
                await client.request("GET", "/x")
    assert str(e.value).isprintable()


async def test_compressed_content_that_nobody_asked_for_is_refused() -> None:
    answer = build_answer(gzip.compress(b"[]"), "Content-Encoding: gzip")
    async with playing(answer_with(answer)) as server, server.connect() as client:
        with pytest.raises(APIConnectionError, match=r"compressed \(gzip\), which was not req"):
            await client.request("GET", "/x")
        with pytest.raises(APIConnectionError, match=r"compressed \(gzip\), which was not req"):
            async with client.stream("/x"):
                pass


@contextlib.contextmanager
def refusing_to_listen() -> Iterator[str]:
    """Have the URL of a port at which connections get no answer: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            queued = stack.enter_context(socket.socket())
            queued.setblocking(False)
            queued.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_an_address_that_does_not_respond_does_not_hold_up_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_up = socket.getaddrinfo
    with refusing_to_listen() as url:
        silent = int(url.rpartition(":")[2])

        def find_both(*args: Any) -> Any:
            if args[0] != "both.invalid":
                return look_up(*args)
            if args[5] & socket.AI_NUMERICHOST:
                raise socket.gaierror
            return [*look_up("127.0.0.1", silent, *args[2:5]), *look_up("127.0.0.1", *args[1:5])]

        monkeypatch.setattr(socket, "getaddrinfo", find_both)
        async with playing(echo) as server:
            info = ConnectionInfo(f"http://both.invalid:{server.port}")
            async with server.connect(info) as client, asyncio.timeout(5):
                assert await client.request("GET", "/x") == {}


async def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    async def script(connection: Connection) -> None:
        await connection.read()
        await connection.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                await connection.write(b"x" * 1_000_000)

    async with playing(script) as server, server.connect() as client, client.stream("/x") as lines:
        with pytest.raises(APIConnectionError, match="a line is longer than 64,000,000 bytes"):
            await anext(lines)
