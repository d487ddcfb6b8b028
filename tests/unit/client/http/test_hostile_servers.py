"""What a server or a proxy in between can do to the client, on both event loops."""

from __future__ import annotations

import contextlib

import pytest

from tests.kit.scripted_server import Connection, answer_with, playing
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
