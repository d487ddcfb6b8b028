"""Listening: ports and addresses, client certificates, a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import ssl
from typing import Any

import pytest

from tests.kit.waiting import eventually
from tests.kit.webhook_servers import REVIEW, Recorder, connect, post, read_head, trust
from webop.errors import ConfigurationError
from webop.keymaterial import load_key_material
from webop.servers.certificates.certs import build_certificate_self_signed
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.listener import ASGIApp, Listener

BODY = json.dumps(REVIEW).encode()
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture
def app(fn: Recorder) -> ReviewEndpoint:
    return ReviewEndpoint(fn)


async def test_a_free_port_is_taken_and_told(app: ReviewEndpoint) -> None:
    async with Listener(app, "127.0.0.1", 0) as listener:
        assert listener.port != 0
        assert (await post(f"http://127.0.0.1:{listener.port}")).status_code == 200


async def test_all_addresses_of_a_name_have_the_same_port(app: ReviewEndpoint) -> None:
    addresses = {str(info[4][0]) for info in socket.getaddrinfo("localhost", 0)}
    async with Listener(app, "localhost", 0) as listener:
        for address in addresses:
            try:
                _, writer = await asyncio.open_connection(address, listener.port)
            except OSError as error:
                assert error.errno == errno.EADDRNOTAVAIL  # noqa: PT017 - there is no IPv6 here
            else:
                writer.close()
                await writer.wait_closed()


async def test_an_empty_host_is_all_interfaces(app: ReviewEndpoint) -> None:
    async with Listener(app, "", 0) as listener:
        assert (await post(f"http://127.0.0.1:{listener.port}")).status_code == 200


async def test_a_port_in_use_is_an_error_with_the_address_and_the_remedy(
    app: ReviewEndpoint,
) -> None:
    async with Listener(app, "127.0.0.1", 0) as listener:
        with pytest.raises(ConfigurationError) as caught:
            async with Listener(app, "127.0.0.1", listener.port):
                pass
        assert f"127.0.0.1:{listener.port}" in str(caught.value)
        assert "in use" in str(caught.value)
        assert "another port" in str(caught.value)
        assert (await post(f"http://127.0.0.1:{listener.port}")).status_code == 200


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("no-such-host.invalid", 0, r"no-such-host\.invalid:0: the host name cannot be resolved"),
        ("a" * 70, 0, "the host name cannot be resolved"),
        ("203.0.113.1", 0, "this host has no such address"),
        ("127.0.0.1", 65536, "a port must be from 0 to 65535"),
        ("127.0.0.1", -1, "a port must be from 0 to 65535"),
    ],
)
async def test_an_impossible_address_is_an_error_with_the_reason(
    app: ReviewEndpoint, host: str, port: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        async with Listener(app, host, port):
            pass


async def test_a_port_is_free_again_at_once(app: ReviewEndpoint) -> None:
    port = 0
    for _ in range(3):
        async with Listener(app, "127.0.0.1", port) as listener:
            port = listener.port
            assert (await post(f"http://127.0.0.1:{port}")).status_code == 200
    with pytest.raises(ConnectionRefusedError):
        async with connect(port):
            pass


async def test_clients_are_served_again_after_a_shortage_of_open_files(
    app: ReviewEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with Listener(app, "127.0.0.1", 0) as listener:
        with socket.socket() as client:
            client.setblocking(False)
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                await loop.sock_connect(client, ("127.0.0.1", listener.port))
                await eventually(lambda: "Cannot accept a connection: Too many" in caplog.text)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await loop.sock_sendall(client, REQUEST)
            assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 200 ")


async def until_refused(port: int) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            async with connect(port):
                await asyncio.sleep(0.01)


async def test_what_is_in_flight_is_answered_on_exit(app: ReviewEndpoint, fn: Recorder) -> None:
    fn.gate = asyncio.Event()
    listener = Listener(app, "127.0.0.1", 0)
    await listener.__aenter__()
    async with connect(listener.port) as (reader, writer):
        writer.write(REQUEST)
        await fn.called.wait()
        exiting = asyncio.create_task(listener.__aexit__(None, None, None))
        await until_refused(listener.port)
        assert not exiting.done()
        fn.gate.set()
        head = await read_head(reader)
        assert head.startswith("HTTP/1.1 200 ")
        assert "connection: close" in head
        await reader.read()  # until the end
    await exiting


async def test_a_client_that_does_not_read_does_not_block_the_exit(app: ReviewEndpoint) -> None:
    pair = build_certificate_self_signed(["localhost"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_key_material(context, pair.cert, pair.key)
    with socket.socket() as raw:
        async with Listener(app, "127.0.0.1", 0, ssl_context=lambda: context) as listener:
            await asyncio.to_thread(raw.connect, ("127.0.0.1", listener.port))
            client = await asyncio.to_thread(
                trust(pair.cert).wrap_socket, raw, server_hostname="localhost"
            )
            with client:
                await asyncio.to_thread(client.sendall, REQUEST)
                await asyncio.to_thread(client.recv, 12)
    # Neither does one that never completes its handshake.
    async with Listener(app, "127.0.0.1", 0, ssl_context=lambda: context) as listener:
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.close()
    await writer.wait_closed()


def build_app(*parts: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> ASGIApp:
    """Make an app that sends these parts of a body; with no parts, it fails before the body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for i, part in enumerate(parts):
            more = i < len(parts) - 1
            await send({"type": "http.response.body", "body": part, "more_body": more})
        if not parts:
            raise ZeroDivisionError

    return app


async def test_a_response_that_fails_before_its_body_becomes_a_500(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        Listener(build_app(), "127.0.0.1", 0) as listener,
        connect(listener.port) as (reader, writer),
    ):
        writer.write(REQUEST)
        assert (await reader.read()).startswith(b"HTTP/1.1 500 ")
    assert "ZeroDivisionError" in caplog.text


async def test_plain_http_to_a_secure_port_harms_no_one(app: ReviewEndpoint) -> None:
    pair = build_certificate_self_signed(["localhost"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_key_material(context, pair.cert, pair.key)
    async with Listener(app, "localhost", 0, ssl_context=lambda: context) as listener:
        async with connect(listener.port) as (reader, writer):
            writer.write(REQUEST)
            assert b"200" not in await reader.read()
        url = f"https://localhost:{listener.port}"
        assert (await post(url, trust(pair.cert))).status_code == 200
