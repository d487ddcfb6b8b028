"""A connection that the webhook server has closed is freed at once, whatever has become of it.

If reference cycles held it, the memory would grow until the garbage collector comes: by 64 KiB for
each connection with TLS.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.kit.webhook_servers import REQUEST, Recorder, build_context, listen, trust
from webop.servers.certificates.certs import build_certificate_self_signed

COUNT = 3
PAIR = build_certificate_self_signed(["localhost"])
OWN = {"webop", "httptools"}  # the transports of some versions of asyncio are in cycles


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, set[str]]], set[str]]:
    if request.param == "uvloop":
        return uvloop.run
    return asyncio.run


async def find_garbage(visit: Callable[[], Coroutine[Any, Any, None]]) -> set[str]:
    """Return what only the garbage collector would free after some visits."""
    await visit()
    await asyncio.sleep(0.05)
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(COUNT):
            await visit()
        await asyncio.sleep(0.05)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return {
            type(item).__qualname__
            for item in gc.garbage
            if type(item).__module__.partition(".")[0] in OWN
        }
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()


# What a client sends, how much of the answer it reads, and whether it resets the connection.
VISITS = [
    (REQUEST, "once", False),
    (REQUEST.replace(b"Host: x", b"Host: x\r\nConnection: close"), "to the end", False),
    (REQUEST, "once", True),
    (REQUEST, "not at all", False),
    (b"nonsense\r\n\r\n", "to the end", False),
]


def visit(sock: socket.socket, sent: bytes, reads: str, is_reset: bool) -> None:
    sock.sendall(sent)
    if reads == "once":
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
    while reads == "to the end" and sock.recv(65536):
        pass
    if is_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("is_secure", [True, False], ids=["TLS", "plain"])
def test_the_webhook_server_frees_what_it_has_served(run: Any, *, is_secure: bool) -> None:
    client = trust(PAIR.cert) if is_secure else None
    assert run(serve(*VISITS, is_secure=is_secure, client=client)) == set()


def test_the_webhook_server_frees_what_does_not_shake_hands(run: Any) -> None:
    assert run(serve(VISITS[-1], (b"", "not at all", False), is_secure=True)) == set()


async def serve(
    *visits: tuple[bytes, str, bool], is_secure: bool, client: ssl.SSLContext | None = None
) -> set[str]:
    """Serve connections, in each of which a client does something; return the garbage."""

    def come(port: int) -> None:
        for each in visits:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                if client is None:
                    visit(sock, *each)
                else:
                    with client.wrap_socket(sock, server_hostname="localhost") as secured:
                        visit(secured, *each)

    tls = build_context(PAIR) if is_secure else None
    async with listen(Recorder(), tls=tls) as listener:
        return await find_garbage(lambda: asyncio.to_thread(come, listener.port))
