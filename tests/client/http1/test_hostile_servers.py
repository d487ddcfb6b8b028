"""What a server or a proxy in between can do to the client, on both event loops."""

from __future__ import annotations

import pytest

from tests.client.http1.scripted_server import Connection, playing
from webop.client.credentials import ConnectionInfo
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
        with pytest.raises(APIConnectionError, match="trailers of the answer are too long"):
            await client.request("GET", "/x", timeout=60)
        await server.wait_for_closing()
    assert written < 20_000_000


async def test_a_stream_lasts_however_many_small_chunks_it_has() -> None:
    """The sizes of the chunks are no content either, but some comes in between."""

    async def script(connection: Connection) -> None:
        await connection.read()
        await connection.write(CHUNKED)
        for _ in range(300):
            await connection.write(b"2;x=" + b"x" * 300, b"\r\nx", b"\n\r\n")
        await connection.write(b"0\r\n\r\n")

    async with playing(script) as server, server.connect() as client, client.stream("/x") as lines:
        assert sum([len(batch) async for batch in lines]) == 300


async def test_a_trailer_is_no_header() -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.read()
            await connection.write(
                CHUNKED + b'8\r\n{"a": 1}\r\n0\r\nContent-Encoding: gzip\r\n\r\n'
            )

    async with playing(script) as server, server.connect() as client:
        for _ in range(2):
            assert await client.request("GET", "/x") == {"a": 1}
        assert server.accepted == 1


async def test_a_proxy_cannot_write_lines_into_the_log() -> None:
    async def script(connection: Connection) -> None:
        await connection.read()
        await connection.write(b"HTTP/1.1 407 No\nERROR all is lost \x1b[31m\r\n\r\n")

    async with playing(script) as proxy:
        info = ConnectionInfo("https://127.0.0.1:1", proxy_url=proxy.url)
        async with proxy.connect(info) as client:
            with pytest.raises(APIConnectionError, match=r"refused it: .* 407 No") as e:
                await client.request("GET", "/x")
    assert str(e.value).isprintable()
