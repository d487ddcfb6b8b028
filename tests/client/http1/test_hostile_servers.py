"""What a server or a proxy in between can do to the client, on both event loops."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import orjson
import pytest

from tests.client.http1.scripted_server import Connection, ScriptedServer, build_answer, playing
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


# Compressed content, which nobody has asked for.


def build_compressed(content: bytes) -> bytes:
    return build_answer(content, "Content-Encoding: gzip")


@pytest.mark.parametrize("content", [b"[]", b"[" + b"1," * 500_000 + b"1]"], ids=["small", "large"])
async def test_compressed_content_that_is_cut_off_is_no_content(content: bytes) -> None:
    whole = gzip.compress(content)

    async def script(connection: Connection) -> None:
        for answer in (whole, whole[:-9], whole[:-1], b""):
            await connection.read()
            await connection.write(build_compressed(answer))

    async with playing(script) as server, server.connect() as client:
        assert await client.request("GET", "/x") == orjson.loads(content)
        for _ in range(2):
            with pytest.raises(APIConnectionError, match="in gzip cannot be decoded: it is cut"):
                await client.request("GET", "/x")
        assert await client.request("GET", "/x") is None
        assert server.accepted == 1


async def test_a_few_bytes_that_become_gigabytes_stop_nobody() -> None:
    bomb = gzip.compress(b"\n" * 100_000_000)

    async def script(connection: Connection) -> None:
        await connection.read()
        await connection.write(build_compressed(bomb))

    async with playing(script) as server, server.connect() as client, client.stream("/x") as lines:
        total = 0
        async for batch in lines:
            assert len(batch) <= 1_000_000
            total += len(batch)
            if total > 20_000_000:
                break


async def test_lines_come_as_they_are_compressed() -> None:
    is_read = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read()
        await connection.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
        coder = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        for number in range(3):
            line = b"%d" % number * 300_000 + b"\n"
            await connection.write(coder.compress(line) + coder.flush(zlib.Z_SYNC_FLUSH))
            await is_read.wait()
            is_read.clear()
        await connection.write(coder.flush())

    async with playing(script) as server, server.connect() as client, client.stream("/x") as lines:
        batches = []
        async for batch in lines:
            batches.append(batch)
            is_read.set()
    assert batches == [[b"%d" % number * 300_000] for number in range(3)]


async def test_content_in_no_coding_is_read_as_it_is() -> None:
    async def script(connection: Connection) -> None:
        await connection.read()
        await connection.write(build_answer(b"{}", "Content-Encoding:"))

    async with playing(script) as server, server.connect() as client:
        assert await client.request("GET", "/x") == {}


# Proxies of the environment.


@pytest.mark.parametrize("names", ["::1", "[::1]", "elsewhere, ::1"])
async def test_an_address_of_ipv6_needs_no_proxy_if_the_environment_says_so(
    names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", names)

    async def script(connection: Connection) -> None:
        await connection.read()
        await connection.write(build_answer())

    scripted = ScriptedServer(script)
    async with await asyncio.start_server(scripted.serve, "::1", 0) as server:
        url = f"http://[::1]:{server.sockets[0].getsockname()[1]}"
        async with scripted.connect(ConnectionInfo(url, trust_env=True)) as client:
            assert await client.request("GET", "/x") == {}
        await scripted.wait_for_closing()
