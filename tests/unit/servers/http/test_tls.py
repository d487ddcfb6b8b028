"""TLS of our own: what clients of every kind see, in both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import uvloop

from tests.kit import webhook_servers
from tests.kit.waiting import eventually
from tests.kit.webhook_servers import (
    BODY,
    REQUEST,
    RESPONSE,
    Recorder,
    build_context,
    connect,
    read_answer,
    trust,
)
from webop.servers.certificates.certs import build_certificate_self_signed
from webop.servers.http.listener import Listener
from webop.servers.limits import DefaultLimits, Hosting

PAIR = build_certificate_self_signed(["localhost"])
CLOSING = REQUEST.replace(b"Host: x", b"Host: x\r\nConnection: close")

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(coroutine)

    return run


@contextlib.asynccontextmanager
async def listen(fn: Any, **limits: Any) -> AsyncIterator[Listener]:
    hosting = Hosting(DefaultLimits(**limits))
    async with webhook_servers.listen(fn, hosting, build_context(PAIR)) as listener:
        yield listener


def open_client(port: int, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    """Connect as a client that blocks, and that misses a closing alert."""
    plain = socket.create_connection(("127.0.0.1", port), 10.0)
    context = context or trust(PAIR.cert)
    return context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_connection_ends_with_the_closing_alert_of_tls(run: Run, version: ssl.TLSVersion) -> None:
    def ask(port: int) -> bytes:
        context = trust(PAIR.cert)
        context.minimum_version = context.maximum_version = version
        with open_client(port, context) as client:
            client.sendall(CLOSING)
            answer = b""
            while chunk := client.recv(65536):
                answer += chunk
            return answer

    async def talk() -> None:
        async with listen(Recorder()) as listener:
            assert (await asyncio.to_thread(ask, listener.port)).startswith(b"HTTP/1.1 200 ")

    run(talk())


def test_a_request_in_records_and_packets_of_one_byte_is_served(run: Run) -> None:
    def ask(port: int) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trust(PAIR.cert).wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", port), 10.0) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def flush() -> None:
                for byte in outgoing.read():
                    plain.send(bytes([byte]))

            def repeat(step: Callable[[], Any]) -> Any:
                while True:
                    try:
                        return step()
                    except ssl.SSLWantReadError:
                        flush()
                        incoming.write(plain.recv(65536))

            repeat(client.do_handshake)
            for byte in CLOSING:
                client.write(bytes([byte]))
                flush()
            return bytes(repeat(partial(client.read, 65536)))

    async def talk() -> None:
        async with listen(Recorder()) as listener:
            assert (await asyncio.to_thread(ask, listener.port)).startswith(b"HTTP/1.1 200 ")

    run(talk())


def test_large_reviews_and_responses_arrive_whole(run: Run) -> None:
    async def talk() -> None:
        fn = Recorder(response={**RESPONSE, "padding": "y" * 5_000_000})
        async with (
            listen(fn) as listener,
            connect(listener.port, trust(PAIR.cert)) as (reader, writer),
        ):
            for _ in range(2):
                body = BODY.ljust(3_000_000)
                writer.write(
                    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" + body
                )
                head, answer = await read_answer(reader)
                assert head.startswith("HTTP/1.1 200 ")
                assert answer.count(b"y") == 5_000_000

    run(talk())


def test_what_is_not_tls_in_the_middle_of_a_connection_ends_it_alone(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(port: int, sent: bytes) -> bytes:
        with open_client(port) as client:
            client.sendall(sent)
            with socket.socket(fileno=client.detach()) as plain:
                plain.settimeout(10.0)
                plain.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)  # a record of another key
                answer = b""
                while chunk := plain.recv(65536):
                    answer += chunk
                return answer

    async def talk() -> None:
        fn = Recorder()
        async with listen(fn) as listener:
            for sent in (b"", REQUEST[:-1]):
                with contextlib.suppress(ConnectionError):
                    await asyncio.to_thread(spoil, listener.port, sent)
            await eventually(lambda: not listener.connections)
            async with connect(listener.port, trust(PAIR.cert)) as (reader, writer):
                writer.write(REQUEST)
                assert (await read_answer(reader))[0].startswith("HTTP/1.1 200 ")
        assert len(fn.calls) == 1

    run(talk())
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_handshake_that_does_not_end_is_cut_like_a_slow_request(run: Run) -> None:
    def trickle(port: int) -> float:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), 10.0) as client:
            client.sendall(b"\x16\x03\x01\x02\x00\x01")  # a part of a first message
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
        return time.monotonic() - began

    async def talk() -> None:
        async with listen(Recorder(), read_timeout=0.3, idle_timeout=60.0) as listener:
            assert await asyncio.to_thread(trickle, listener.port) < 5

    run(talk())


def test_a_client_that_does_not_read_its_response_is_cut(run: Run) -> None:
    size = 8_000_000  # more than the buffers of the kernel

    def ask(port: int) -> int:
        received = 0
        with open_client(port) as client:
            client.sendall(REQUEST)
            time.sleep(0.8)  # it has long been cut then
            with contextlib.suppress(OSError):
                while data := client.recv(1_000_000):
                    received += len(data)
        return received

    async def talk() -> None:
        fn = Recorder(response={"padding": "x" * size})
        async with listen(fn, read_timeout=0.1) as listener:
            assert 0 < await asyncio.to_thread(ask, listener.port) < size

    run(talk())
