"""A stop that loses no request: what clients of every kind see while the listener goes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop

from tests.kit.waiting import eventually
from tests.kit.webhook_servers import (
    REQUEST,
    RESPONSE,
    Recorder,
    build_context,
    connect,
    listen,
    open_connection,
    read_answer,
    trust,
)
from webop.servers.certificates.certs import build_certificate_self_signed
from webop.servers.limits import DefaultLimits, Hosting

PAIR = build_certificate_self_signed(["localhost"])


Contexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]


@pytest.fixture(params=["plain", "TLS"])
def contexts(request: pytest.FixtureRequest) -> Contexts:
    """That of the server, and that of its clients."""
    return (build_context(PAIR), trust(PAIR.cert)) if request.param == "TLS" else (None, None)


@pytest.fixture
def hosting() -> Hosting:
    return Hosting()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [(b"POST / ", 200), (b"GET / ", 405), (b"POST /?timeout=never ", 400), (b"BREW / ", 400)],
)
async def test_every_answer_of_a_stopping_operator_closes_its_connection(
    fn: Recorder,
    hosting: Hosting,
    contexts: Contexts,
    request_line: bytes,
    status: int,
) -> None:
    request = REQUEST.replace(b"POST / ", request_line)
    async with listen(fn, hosting, contexts[0]) as listener:
        async with connect(listener.port, contexts[1]) as (reader, writer):
            writer.write(REQUEST)
            assert "connection: close" not in (await read_answer(reader))[0]
            hosting.is_stopping = True
            writer.write(request)
            head, _ = await read_answer(reader)
            assert head.startswith(f"HTTP/1.1 {status} ")
            assert "connection: close" in head
            assert await reader.read() == b""
        async with connect(listener.port, contexts[1]) as (reader, writer):
            writer.write(REQUEST)  # new connections are served on
            assert "connection: close" in (await read_answer(reader))[0]
            assert await reader.read() == b""


async def test_what_waits_in_the_queue_of_the_kernel_is_answered(
    fn: Recorder, hosting: Hosting
) -> None:
    clients = []
    async with listen(fn, hosting) as listener:
        for _ in range(50):  # with no turn of the event loop between this and the exit
            client = socket.create_connection(("127.0.0.1", listener.port))
            client.sendall(REQUEST)
            clients.append(client)
    for client in clients:
        with client, client.makefile("rb") as file:
            answer = file.read()
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in answer
    assert len(fn.calls) == 50


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_that_comes_while_the_port_is_closed_is_answered_or_refused(
    fn: Recorder, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    errors: list[Any] = []
    clients: list[socket.socket] = []

    async def come_in_each_turn(port: int) -> None:
        with contextlib.suppress(ConnectionRefusedError):
            while True:
                client = socket.create_connection(("127.0.0.1", port), 3.0)
                client.sendall(REQUEST)
                clients.append(client)
                await asyncio.sleep(0)

    async def stop() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        async with listen(fn, Hosting(DefaultLimits(max_connections=9999))) as listener:
            task = asyncio.create_task(come_in_each_turn(listener.port))
        await task

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(stop())
    assert not errors
    for client in clients:
        with client:
            assert client.recv(10_000).startswith(b"HTTP/1.1 200 ")


async def test_a_request_that_has_come_but_is_not_read_yet_is_answered(
    fn: Recorder, hosting: Hosting
) -> None:
    async with listen(fn, hosting) as listener:
        client = await asyncio.to_thread(
            socket.create_connection, ("127.0.0.1", listener.port), 10.0
        )
        client.sendall(REQUEST)
        await eventually(lambda: len(fn.calls) == 1)
        await asyncio.to_thread(client.recv, 10_000)
        client.sendall(REQUEST)  # and there is no turn of the event loop any more
    with client:
        assert client.recv(10_000).startswith(b"HTTP/1.1 200 ")


async def test_a_request_that_is_half_sent_is_awaited_and_answered(
    fn: Recorder, hosting: Hosting, contexts: Contexts
) -> None:
    async with listen(fn, hosting, contexts[0]) as listener:
        reader, writer = await open_connection(listener.port, contexts[1])
        writer.write(REQUEST)
        await read_answer(reader)
        writer.write(REQUEST[:-20])

        async def send_rest() -> str:
            await asyncio.sleep(0.3)
            writer.write(REQUEST[-20:])
            return (await read_answer(reader))[0]

        task = asyncio.create_task(send_rest())
    head = await task
    assert head.startswith("HTTP/1.1 200 ")
    assert "connection: close" in head
    writer.close()


async def test_a_request_that_crosses_the_end_of_its_idle_connection_is_not_lost(
    fn: Recorder, hosting: Hosting, contexts: Contexts
) -> None:
    """It arrives when nobody reads any more: its client must read that it can try again."""
    async with listen(fn, hosting, contexts[0]) as listener:
        client = await asyncio.to_thread(open_slowly, listener.port, contexts[1])
        client.sendall(REQUEST)
        await eventually(lambda: len(fn.calls) == 1)
        assert (await asyncio.to_thread(client.recv, 10_000)).startswith(b"HTTP/1.1 200 ")
    with client:
        client.sendall(REQUEST)
        answer = client.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in answer
    assert b"connection: close\r\n" in answer
    assert len(fn.calls) == 1


def open_slowly(port: int, context: ssl.SSLContext | None) -> socket.socket:
    """Connect as a client that notices nothing until it reads."""
    client = socket.create_connection(("127.0.0.1", port), 10.0)
    return context.wrap_socket(client, server_hostname="localhost") if context else client


async def test_what_takes_too_long_is_answered_so_that_clients_try_elsewhere(
    fn: Recorder, contexts: Contexts
) -> None:
    fn.gate = asyncio.Event()
    hosting = Hosting(DefaultLimits(drain_timeout=0.05))
    async with listen(fn, hosting, contexts[0]) as listener:
        reader, writer = await open_connection(listener.port, contexts[1])
        writer.write(REQUEST)
        await fn.called.wait()
        hosting.is_stopping = True  # as the operator sets it before it closes its server

        async def read() -> str:
            head, _ = await read_answer(reader)
            assert await reader.read() == b""
            writer.close()
            return head

        task = asyncio.create_task(read())
    head = await task
    assert head.startswith("HTTP/1.1 503 ")
    assert "retry-after: 1" in head
    assert "connection: close" in head


class Crowd:
    """Many clients that keep their connections and send without a pause, or with short ones."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self.port = port
        self.context = context
        self.outcomes = collections.Counter[str]()
        self.is_ended = False

    async def run(self, pause: float) -> None:
        """Send until the end."""
        while not self.is_ended:
            try:
                async with connect(self.port, self.context) as (reader, writer):
                    while await self._ask(reader, writer) and not self.is_ended:
                        await asyncio.sleep(pause)
            except (ConnectionError, ssl.SSLError) as error:
                self.outcomes[f"lost: {error!r}"] += 1

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(REQUEST)
        try:
            head, _ = await read_answer(reader)
        except asyncio.IncompleteReadError as error:
            self.outcomes["cut" if error.partial else "lost"] += 1
            return False
        self.outcomes[head.split()[1]] += 1
        if "connection: close" not in head:
            return True
        assert await reader.read() == b""
        return False


async def test_a_crowd_of_clients_loses_nothing_in_a_stop(
    hosting: Hosting, contexts: Contexts
) -> None:
    async def fn(request: Mapping[str, Any], **_: object) -> dict[str, Any]:
        await asyncio.sleep(0.002)
        return RESPONSE

    async with listen(fn, hosting, contexts[0]) as listener, asyncio.TaskGroup() as group:
        crowd = Crowd(listener.port, contexts[1])
        for i in range(30):
            group.create_task(crowd.run(pause=i % 5 / 100))
        await eventually(lambda: crowd.outcomes["200"] > 200)
        hosting.is_stopping = True
        before = crowd.outcomes["200"]
        await eventually(lambda: crowd.outcomes["200"] > before + 100)
        crowd.is_ended = True
    assert set(crowd.outcomes) == {"200"}
