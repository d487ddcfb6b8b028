"""Listening: ports and addresses, client certificates, a stop that loses nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket

import pytest

from tests.kit.waiting import eventually
from tests.kit.webhook_servers import REQUEST, Recorder, build_context, connect, post, trust
from webop.errors import ConfigurationError
from webop.servers.certificates.certs import build_certificate_self_signed
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.listener import Listener


@pytest.fixture
def app(fn: Recorder) -> ReviewEndpoint:
    return ReviewEndpoint(fn)


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


async def test_a_client_that_does_not_read_does_not_block_the_exit(app: ReviewEndpoint) -> None:
    pair = build_certificate_self_signed(["localhost"])
    context = build_context(pair)
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


async def test_plain_http_to_a_secure_port_harms_no_one(app: ReviewEndpoint) -> None:
    pair = build_certificate_self_signed(["localhost"])
    context = build_context(pair)
    async with Listener(app, "localhost", 0, ssl_context=lambda: context) as listener:
        async with connect(listener.port) as (reader, writer):
            writer.write(REQUEST)
            assert b"200" not in await reader.read()
        url = f"https://localhost:{listener.port}"
        assert (await post(url, trust(pair.cert))).status_code == 200
