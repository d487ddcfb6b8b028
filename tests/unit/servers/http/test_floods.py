"""Floods of connections that take all slots of a port: a client in need is served all the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import uvloop

from tests.kit import webhook_servers
from tests.kit.scrapes import operate, wait_listening
from tests.kit.waiting import eventually
from tests.kit.webhook_servers import (
    HEAD,
    REQUEST,
    RESPONSE,
    Recorder,
    build_context,
    connect,
    post,
    read_answer,
    read_head,
    trust,
)
from webop.controlplane.cluster_client import find_free_port
from webop.servers.certificates.certs import (
    KeyPair,
    build_ca,
    build_certificate_self_signed,
    build_certificate_signed,
)
from webop.servers.http.connection_slots import Slots
from webop.servers.limits import DefaultLimits, Hosting

LIMIT = 16
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(scope="module")
def pair() -> KeyPair:
    return build_certificate_self_signed(["localhost"])


@contextlib.asynccontextmanager
async def listen(fn: Any, tls: ssl.SSLContext | None = None, **limits: Any) -> AsyncIterator[int]:
    hosting = Hosting(DefaultLimits(**{"max_connections": LIMIT, **limits}))
    async with webhook_servers.listen(fn, hosting, tls) as listener:
        yield listener.port


@contextlib.contextmanager
def flood(port: int, sent: bytes, addresses: int = 1, count: int = 5 * LIMIT) -> Iterator[None]:
    """Open connections, each of which sends the same and nothing more."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            source = (f"127.0.0.{2 + number % addresses}", 0)
            client = socket.create_connection(("127.0.0.1", port), source_address=source)
            stack.enter_context(client)
            client.sendall(sent)
        yield


def say_hello(server_name: str = "localhost") -> bytes:
    """Return the first message of a TLS handshake."""
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=server_name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("addresses", [1, 50])
@pytest.mark.parametrize("sent", [b"", b"POST / HT", HEAD, REQUEST[:-1], REQUEST])
async def test_idle_and_half_sent_requests_do_not_keep_a_client_out(
    fn: Recorder, sent: bytes, addresses: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with listen(fn) as port:
        with flood(port, sent, addresses):
            for _ in range(10):
                assert (await post(f"http://127.0.0.1:{port}")).status_code == 200
    found = [message for message in caplog.messages if "max_connections" in message]
    assert len(found) == 1
    assert "Closed an idle one of 127.0.0." in found[0]


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("is_required", [False, True])
@pytest.mark.parametrize(
    "sent", [b"", say_hello()[:20], say_hello()], ids=["silent", "half", "hello"]
)
def test_unfinished_handshakes_do_not_keep_a_client_out(
    pair: KeyPair, sent: bytes, is_required: bool, new_loop: Callable[[], Any]
) -> None:
    ca = build_ca("clients")
    client = build_certificate_signed(ca, common_name="client", client=True)

    async def run() -> None:
        tls = build_context(pair)
        if is_required:
            tls.load_verify_locations(cadata=ca.cert.decode())
            tls.verify_mode = ssl.CERT_REQUIRED
        async with listen(Recorder(), tls) as port:
            with flood(port, sent):
                for _ in range(10):
                    context = trust(pair.cert, client=client)
                    assert (await post(f"https://localhost:{port}", context)).status_code == 200

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


async def test_silent_connections_cost_no_client_its_half_sent_requests(fn: Recorder) -> None:
    async with listen(fn) as port, contextlib.AsyncExitStack() as stack:
        with flood(port, b"", addresses=2, count=LIMIT):
            streams = []
            for _ in range(LIMIT // 4):  # a new connection does not displace the one before
                streams.append(await stack.enter_async_context(connect(port)))
                streams[-1][1].write(REQUEST[:-1])
            for reader, writer in streams:
                writer.write(REQUEST[-1:])
                head, _ = await read_answer(reader)
                assert head.startswith("HTTP/1.1 200 ")


async def test_a_flood_does_not_cost_others_their_idle_connections(fn: Recorder) -> None:
    async with listen(fn) as port, connect(port) as (reader, writer):
        for _ in range(2):
            writer.write(REQUEST)
            head, _ = await read_answer(reader)
            assert head.startswith("HTTP/1.1 200 ")
            with flood(port, b""):
                assert (await post(f"http://127.0.0.1:{port}")).status_code == 200


async def test_requests_that_are_served_never_make_way(
    fn: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    fn.gate = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(listen(fn, max_connections=3))
        served = [await stack.enter_async_context(connect(port)) for _ in range(3)]
        for _, writer in served:
            writer.write(REQUEST)
        await eventually(lambda: len(fn.calls) == 3)
        for _ in range(5):
            async with connect(port) as (reader, _):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        fn.gate.set()
        for reader, _ in served:
            assert (await read_head(reader)).startswith("HTTP/1.1 200 ")
        assert (await post(f"http://127.0.0.1:{port}")).status_code == 200
    refusals = [message for message in caplog.messages if "All serve requests" in message]
    assert len(refusals) == 1


async def test_one_address_with_requests_in_progress_does_not_get_all_slots(fn: Recorder) -> None:
    fn.gate = asyncio.Event()
    async with listen(fn) as port:
        with flood(port, REQUEST):
            await eventually(lambda: len(fn.calls) == LIMIT - LIMIT // 8)
            async with connect(port) as (reader, writer):
                writer.write(REQUEST)
                await eventually(lambda: len(fn.calls) == LIMIT - LIMIT // 8 + 1)
                fn.gate.set()
                assert (await read_head(reader)).startswith("HTTP/1.1 200 ")


async def test_a_client_that_still_reads_its_response_keeps_its_connection(fn: Recorder) -> None:
    fn.response = {**RESPONSE, "padding": "x" * 30_000_000}
    async with listen(fn, max_connections=1) as port, connect(port) as (reader, writer):
        writer.write(REQUEST)
        head = await read_head(reader)
        await asyncio.sleep(0.1)  # it is served, and the rest of it does not fit into any buffer
        async with connect(port) as (other, _):
            with contextlib.suppress(ConnectionError):
                assert await other.read() == b""
        await reader.readexactly(int(head.split("content-length: ")[1].split()[0]))


@pytest.mark.parametrize("new_loop", LOOPS)
def test_connections_that_made_way_are_not_kept(pair: KeyPair, new_loop: Callable[[], Any]) -> None:
    async def run(tls: ssl.SSLContext | None) -> None:
        hosting = Hosting(DefaultLimits(max_connections=LIMIT))
        async with webhook_servers.listen(Recorder(), hosting, tls) as listener:
            with flood(listener.port, b"", count=20 * LIMIT):
                for _ in range(100):
                    await asyncio.sleep(0)
            await eventually(lambda: not listener.connections, timeout=5)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run(None))
        runner.run(run(build_context(pair)))


async def test_a_client_with_tls_that_does_not_close_its_side_is_cut(
    fn: Recorder, pair: KeyPair
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(listen(fn, build_context(pair), max_connections=2))
        plain = socket.create_connection(("127.0.0.1", port))
        silent = stack.enter_context(
            await asyncio.to_thread(
                trust(pair.cert).wrap_socket, plain, server_hostname="localhost"
            )
        )
        for _ in range(3):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        silent.settimeout(1.0)  # it would be 1.5 s

        def read_raw() -> None:
            with socket.socket(fileno=silent.detach()) as raw:
                raw.settimeout(1.0)
                while raw.recv(4096):
                    pass

        await asyncio.to_thread(read_raw)


@pytest.mark.feature("PRB-01")
async def test_a_flood_of_the_probe_port_does_not_get_the_pod_killed() -> None:
    port = find_free_port()
    root = f"http://127.0.0.1:{port}"
    endpoints = {"liveness_endpoint": f"{root}/healthz", "metrics_endpoint": f"{root}/metrics"}
    async with operate(**endpoints) as http:
        await wait_listening(http, f"{root}/livez")
        with flood(port, b"", count=280):
            for path in ("/healthz", "/livez", "/readyz", "/metrics") * 3:
                async with httpx.AsyncClient(trust_env=False) as client:
                    assert (await client.get(f"{root}{path}")).status_code == 200


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_server_name_that_is_not_ascii_prints_no_traceback(
    pair: KeyPair,
    new_loop: Callable[[], Any],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    hello = say_hello("placeholder").replace(b"placeholder", b"\xff" * len("placeholder"))

    async def run() -> None:
        async with listen(Recorder(), build_context(pair)) as port, connect(port) as (reader, out):
            out.write(hello)
            await asyncio.wait_for(reader.read(1), 5)  # the handshake goes on
            assert (await post(f"https://localhost:{port}", trust(pair.cert))).status_code == 200

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
    assert "Traceback" not in capfd.readouterr().err
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_flood_at_a_high_limit_is_not_compared_with_all_connections() -> None:
    looked_at: list[object] = []

    class Waiting:
        def __init__(self, since: float) -> None:
            self.since = since

        @property
        def waiting_since(self) -> float:
            looked_at.append(self)
            return self.since

        def make_way(self) -> None:
            closed.append(self.since)

    slots, closed = Slots(Hosting(DefaultLimits(max_connections=4000))), list[float]()
    for number in range(3600):
        assert slots.take(Waiting(number + 1), "192.0.2.1")  # type: ignore[arg-type]
    assert closed == [*range(1, 101)]
    assert len(looked_at) < 3 * 3600
