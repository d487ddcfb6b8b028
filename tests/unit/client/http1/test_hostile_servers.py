"""What a server or a proxy in between can do to the client, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.scripted_server import Connection, ScriptedServer, build_answer, playing
from tests.unit.client.http1.test_http1 import AdvancingLoop, echo
from webop.client.auth.vault import ConnectionInfo
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
            with pytest.raises(APIConnectionError, match=r"refused the connection: .* 407 No") as e:
                await client.request("GET", "/x")
    assert str(e.value).isprintable()


async def test_compressed_content_that_nobody_asked_for_is_refused() -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.read()
            await connection.write(build_answer(gzip.compress(b"[]"), "Content-Encoding: gzip"))

    async with playing(script) as server, server.connect() as client:
        with pytest.raises(APIConnectionError, match=r"compressed \(gzip\), which was not req"):
            await client.request("GET", "/x")
        with pytest.raises(APIConnectionError, match=r"compressed \(gzip\), which was not req"):
            async with client.stream("/x"):
                pass


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


# The limits of connecting.


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


async def test_what_is_being_connected_fails_when_the_client_is_closed() -> None:
    with refusing_to_listen() as url:
        client = ScriptedServer(echo).connect(ConnectionInfo(url))
        task = asyncio.create_task(client.request("GET", "/x"))
        await asyncio.sleep(0.05)
        await client.aclose()
        async with asyncio.timeout(5):
            with pytest.raises(APIConnectionError, match="the connection was closed"):
                await task


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


async def test_the_limit_of_connecting_includes_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()
    look_up = socket.getaddrinfo

    def hang(*args: Any) -> Any:
        if args[0] == "slow.invalid" and not args[5] & socket.AI_NUMERICHOST:
            is_over.wait(30)
        return look_up(*args)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    info = ConnectionInfo("http://slow.invalid")
    async with ScriptedServer(echo).connect(info, connect_timeout=0.1) as client:
        try:
            async with asyncio.timeout(5):
                with pytest.raises(APIConnectionError, match=r"slow\.invalid:80: no response"):
                    await client.request("GET", "/x")
        finally:
            is_over.set()


async def test_a_limit_of_zero_is_none() -> None:
    async with playing(echo) as server:
        client = server.connect(connect_timeout=0, request_timeout=0)
        assert await client.request("GET", "/x") == {}
        await client.aclose()


def test_a_proxy_that_does_not_answer_is_given_up() -> None:
    async def script(connection: Connection) -> None:
        await connection.read()
        await connection.reader.read()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdvancingLoop)
        async with playing(script) as proxy:
            info = ConnectionInfo("https://127.0.0.1:1", proxy_url=proxy.url)
            async with proxy.connect(info, request_timeout=0) as client:
                task = asyncio.create_task(client.request("GET", "/x"))
                while not proxy.open:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.05)
                loop.advance += 61
                async with asyncio.timeout(5):
                    with pytest.raises(APIConnectionError, match="no response in time"):
                        await task

    with asyncio.Runner(loop_factory=AdvancingLoop) as runner:
        runner.run(run())


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
