"""Clients that send slowly, too much, or nonsense: bounded in time and in memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import tracemalloc
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.kit import webhook_servers
from tests.kit.waiting import eventually
from tests.kit.webhook_servers import (
    BODY,
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
from tests.unit.servers.http.foreign_servers import run_uvicorn
from webop.errors import ReviewError
from webop.servers.certificates.certs import build_certificate_self_signed
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.listener import Listener
from webop.servers.limits import DefaultLimits, Hosting

CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def listen(fn: Any, **limits: Any) -> AsyncIterator[int]:
    async with webhook_servers.listen(fn, Hosting(DefaultLimits(**limits))) as listener:
        yield listener.port


# Slow ones.


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"P", b""),
        (b"POST / HTTP/1.1\r\nHost: x\r\nA: b", b""),
        (HEAD, b"HTTP/1.1 408 "),
        (REQUEST[:-1], b"HTTP/1.1 408 "),
        (HEAD.replace(b"%d" % len(BODY), b"1000000"), b"HTTP/1.1 408 "),
        (CHUNKED, b"HTTP/1.1 408 "),
        (CHUNKED + b"1\r\n{\r\n", b"HTTP/1.1 408 "),
    ],
)
async def test_a_request_that_does_not_come_in_time_is_cut(
    fn: Recorder, sent: bytes, answer: bytes
) -> None:
    async with listen(fn, read_timeout=0.2) as port:
        for before in (b"", REQUEST):
            async with connect(port) as (reader, writer):
                writer.write(before)
                if before:
                    await read_answer(reader)
                writer.write(sent)
                received = await asyncio.wait_for(reader.read(), 5)
                assert received.startswith(answer)
                assert bool(received) == bool(answer)
                assert (b"connection: close" in received) == bool(answer)
    assert len(fn.calls) == 1


@pytest.mark.parametrize("head", [HEAD, b"", CHUNKED + b"f000\r\n"])
async def test_a_trickle_is_cut_like_silence(fn: Recorder, head: bytes) -> None:
    async with listen(fn, read_timeout=0.3) as port, connect(port) as (reader, writer):
        writer.write(head or b"POST / HTTP/1.1\r\nX: ")
        task = asyncio.create_task(reader.read())
        for _ in range(100):
            await asyncio.sleep(0.02)
            if task.done():
                break
            with contextlib.suppress(ConnectionError):
                writer.write(b" ")
        assert task.done()
    assert fn.calls == []


async def test_a_slow_review_is_cut_under_a_foreign_server_too(fn: Recorder) -> None:
    hosting = Hosting(DefaultLimits(read_timeout=0.2))
    endpoint = ReviewEndpoint(fn, hosting=hosting)
    async with run_uvicorn(endpoint, hosting) as port, connect(port) as (reader, writer):
        writer.write(REQUEST[:-1])
        head = await read_head(reader)
        assert head.startswith("HTTP/1.1 408 ")
        assert "connection: close" in head


@pytest.mark.parametrize("has_served", [False, True])
async def test_an_idle_connection_is_closed(fn: Recorder, has_served: bool) -> None:
    limits = {"idle_timeout": 0.3, "read_timeout": 5.0}
    async with listen(fn, **limits) as port, connect(port) as (reader, writer):
        if has_served:
            writer.write(REQUEST)
            await read_head(reader)
        rest = await asyncio.wait_for(reader.read(), 3)
    assert b"HTTP/1.1 503 " in rest  # for a request that is on its way


async def test_a_client_that_does_not_read_its_answer_is_cut(fn: Recorder) -> None:
    size = 8_000_000  # more than the buffers of the kernel
    fn.response = {"padding": "x" * size}
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with listen(fn, read_timeout=0.1) as port:
            await asyncio.to_thread(client.connect, ("127.0.0.1", port))
            await asyncio.to_thread(client.sendall, REQUEST)
            await asyncio.sleep(0.8)  # it has long been cut then
            received = 0
            with contextlib.suppress(ConnectionError):
                while data := await asyncio.to_thread(client.recv, 1_000_000):
                    received += len(data)
    assert 0 < received < size


async def test_answers_that_a_client_does_not_take_do_not_pile_up(fn: Recorder) -> None:
    fn.response = {"padding": "x" * 8_000_000}  # more than the buffers of the kernel
    async with listen(fn, read_timeout=0.5) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(REQUEST * 8)
            await eventually(lambda: len(fn.calls) >= 1)
    assert len(fn.calls) <= 3


async def test_a_review_that_takes_long_is_not_idle(fn: Recorder) -> None:
    fn.gate = asyncio.Event()
    limits = {"idle_timeout": 0.1, "read_timeout": 0.1}
    async with listen(fn, **limits) as port, connect(port) as (reader, writer):
        writer.write(REQUEST)
        await asyncio.sleep(0.4)
        fn.gate.set()
        assert (await read_head(reader)).startswith("HTTP/1.1 200 ")


# Large ones.


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"POST /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"POST / HTTP/1.1\r\n" + b"X: y\r\n" * 200_000,
        b"POST / HTTP/1.1\r\nX: " + b"x" * 3_000_000,
        CHUNKED + b"0\r\n" + b"X: y\r\n" * 200_000,
    ],
)
async def test_a_huge_head_is_refused(fn: Recorder, head: bytes) -> None:
    async with listen(fn) as port, connect(port) as (reader, writer):
        writer.write(head)
        assert (await read_head(reader)).startswith("HTTP/1.1 431 ")
        await post(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("size", [1000, 1001])
async def test_the_limit_of_the_body_is_a_setting_that_counts_at_once(
    fn: Recorder, is_chunked: bool, size: int
) -> None:
    async def generate() -> AsyncIterator[bytes]:
        yield BODY.ljust(size - 1)
        yield b" "

    async with listen(fn, max_body=1000) as port, httpx.AsyncClient(verify=False) as client:
        content = generate() if is_chunked else BODY.ljust(size)
        response = await client.post(f"http://127.0.0.1:{port}", content=content)
    assert response.status_code == 200
    assert len(fn.calls) == (size == 1000)
    assert (response.json()["response"].get("status", {}).get("code") == 413) == (size > 1000)


async def test_too_many_large_reviews_at_once_are_refused_for_a_moment(fn: Recorder) -> None:
    fn.gate = asyncio.Event()
    body = BODY.ljust(1000)
    async with (
        listen(fn, max_body=1000, max_held_bytes=2 * 32 * 6_310) as port,
        httpx.AsyncClient(verify=False, limits=httpx.Limits()) as client,
    ):
        url = f"http://127.0.0.1:{port}"
        tasks = [asyncio.create_task(client.post(url, content=body)) for _ in range(32)]
        await eventually(lambda: len(fn.calls) == 32)
        refused = await client.post(url, content=body)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "max_held_bytes" in refused.json()["message"]
        fn.gate.set()
        assert {(await task).status_code for task in tasks} == {200}
        assert (await client.post(url, content=body)).status_code == 200


async def test_half_sent_reviews_of_one_address_do_not_keep_out_another(fn: Recorder) -> None:
    async def send(client: str, *, more: bool) -> int:
        statuses: list[int] = []
        messages = iter([{"type": "http.request", "body": BODY.ljust(1000), "more_body": more}])

        async def receive() -> Any:
            return next(messages, None) or await asyncio.Event().wait()

        async def respond(message: Any) -> None:
            statuses.append(message.get("status", 0))

        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
        await endpoint({**scope, "client": (client, 1)}, receive, respond)
        return statuses[0]

    hosting = Hosting(DefaultLimits(max_body=1000, max_held_bytes=50_000))
    endpoint = ReviewEndpoint(fn, hosting=hosting)
    half_sent = [asyncio.create_task(send("10.0.0.1", more=True)) for _ in range(60)]
    await asyncio.sleep(0)
    assert await send("10.0.0.1", more=False) == 429
    assert await send("10.0.0.2", more=False) == 200
    for task in half_sent:
        task.cancel()
    await asyncio.gather(*half_sent, return_exceptions=True)
    assert await send("10.0.0.1", more=False) == 200


async def test_a_body_in_tiny_parts_takes_little_memory(fn: Recorder) -> None:
    async with listen(fn, read_timeout=60.0) as port, connect(port) as (reader, writer):
        tracemalloc.start()
        writer.write(CHUNKED + b"1\r\n \r\n" * 300_000 + b"%x\r\n" % len(BODY) + BODY + b"\r\n")
        writer.write(b"0\r\n\r\n")
        head = await read_head(reader)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert head.startswith("HTTP/1.1 200 ")
    assert peak < 40_000_000


# Nonsense.


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"SSH-2.0-x\r\n",
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nA\r\n\r\n",
        b"POST /\xff\xfe HTTP/1.1\r\n\r\n",
        b"POST http://[/ HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"ffffffffffffffffffff\r\n",
    ],
)
async def test_what_is_not_http_is_refused_and_harms_no_one(
    fn: Recorder, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async with listen(fn) as port:
        async with connect(port) as (reader, writer):
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer.startswith(b"HTTP/1.1 4")
            assert b"connection: close" in answer
        async with connect(port) as (reader, writer):
            writer.write(REQUEST + sent)
            answer = await asyncio.wait_for(reader.read(), 5)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in answer
        assert (await post(f"http://127.0.0.1:{port}")).status_code == 200
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


@pytest.mark.parametrize("opener", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [500, 900, 2000])
async def test_deep_json_is_never_a_failure_of_the_operator(opener: bytes, depth: int) -> None:
    async def recurse(request: Any, **_: object) -> dict[str, Any]:
        def walk(value: Any) -> None:
            for item in value.values() if isinstance(value, dict) else value:
                walk(item) if isinstance(item, (dict, list)) else None

        walk(request)
        walk(request)
        return RESPONSE

    closer = b"]" if opener == b"[" else b"}"
    body = b'{"x":' + opener * (depth - 1) + closer.join([b"[]", *[b""] * (depth - 1)]) + b"}"
    async with listen(recurse) as port, httpx.AsyncClient(verify=False) as client:
        response = await client.post(f"http://127.0.0.1:{port}", content=body)
        assert response.status_code in (200, 400, 413)


@pytest.mark.parametrize(("status", "connection"), [(429, None), (503, "close")])
async def test_a_refusal_may_say_when_to_try_again_and_that_it_is_to_be_elsewhere(
    fn: Recorder, status: int, connection: str | None
) -> None:
    fn.error = ReviewError("Later.", status=status, retry_after=7)
    async with listen(fn) as port:
        response = await post(f"http://127.0.0.1:{port}")
    assert response.status_code == status
    assert response.headers["retry-after"] == "7"
    assert response.headers.get("connection") == connection


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
@pytest.mark.parametrize(("method", "status"), [(b"GET", 405), (b"POST", 400)])
async def test_an_offer_of_another_protocol_is_not_taken(
    fn: Recorder, upgrade: bytes, method: bytes, status: int
) -> None:
    request = REQUEST if method == b"POST" else b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    offer = b"\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n"
    request = request.replace(b"\r\n\r\n", offer)
    async with listen(fn) as port, connect(port) as (reader, writer):
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (b"without the Upgrade header" in answer) == (method == b"POST")


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        (b"POST /\r\n", 505, "HTTP/0.9 is not supported"),
        (b"POST / HTTP/0.9\r\n", 505, "HTTP/0.9 is not supported"),
        (b"POST / HTTP/2.0\r\nHost: x\r\n", 505, "HTTP/2.0 is not supported"),
        (b"POST / HTTP/1.1\r\n", 400, "one Host header, got 0"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nhost: y\r\n", 400, "one Host header, got 2"),
        (b"POST / HTTP/1.0\r\nHost: x\r\nHost: x\r\n", 400, "one Host header, got 2"),
        (b"POST http:///x HTTP/1.1\r\nHost: x\r\n", 400, "not a valid HTTP request"),
        (b"POST http://host HTTP/1.1\r\nHost: x\r\n", 200, ""),
        (b"POST http://host/?timeout=10s HTTP/1.1\r\nHost: x\r\n", 200, ""),
        (b"POST / HTTP/1.0\r\n", 200, ""),
    ],
)
async def test_only_requests_as_of_the_rfc_are_served(
    fn: Recorder, line: bytes, status: int, reason: str
) -> None:
    async with listen(fn) as port, connect(port) as (reader, writer):
        writer.write(line + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        answer = (await asyncio.wait_for(reader.read(), 5)).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert reason in answer
    assert "callback" not in answer
    assert "Error" not in answer
    assert len(fn.calls) == (status == 200)


@pytest.mark.parametrize(
    "header",
    [
        *(b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked, identity"),
        *(b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding : chunked", b"Content-Length : 5"),
        *(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Content-Length: +5"),
        *(b"Content-Length: 5\r\nContent-Length: 5", b"Content-Length: 5, 5"),
        *(b"X: a\r\n b", b"X: a\rb", b"X: a\nb: c", b"X: a\x00b", b"X: a\x7fb", b"X y: a", b": a"),
    ],
)
async def test_a_request_that_a_proxy_could_read_in_another_way_is_refused(
    fn: Recorder, header: bytes
) -> None:
    async with listen(fn) as port, connect(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n0\r\n\r\n" + REQUEST)
        answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert fn.calls == []


async def test_trailers_are_not_taken_for_headers(fn: Recorder) -> None:
    async with listen(fn) as port, connect(port) as (reader, writer):
        writer.write(CHUNKED + b"%x\r\n%b\r\n0\r\nX-User: admin\r\n\r\n" % (len(BODY), BODY))
        assert (await read_head(reader)).startswith("HTTP/1.1 200 ")
    assert "X-User" not in fn.calls[0].headers


async def test_the_request_after_a_refused_expectation_is_not_taken_for_its_body(
    fn: Recorder,
) -> None:
    head = HEAD.replace(b"Host", b"Content-Type: text/plain\r\nExpect: 100-continue\r\nHost")
    async with listen(fn) as port, connect(port) as (reader, writer):
        writer.write(head)
        assert "connection: close" in await read_head(reader)
        with contextlib.suppress(ConnectionError):
            writer.write(REQUEST)
            assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), 3)


@pytest.mark.parametrize("sent", [b"2\r\n{}\r\n0\r\nX: ", b"1;x=", b"2\r\n{}\r\n0;x="])
async def test_an_endless_trailer_or_extension_of_a_chunk_is_refused(
    fn: Recorder, sent: bytes
) -> None:
    async with listen(fn) as port, connect(port) as (reader, writer):
        writer.write(CHUNKED + sent)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"a" * 65536)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            assert (await asyncio.wait_for(reader.read(), 3)).startswith(b"HTTP/1.1 431 ")
    assert fn.calls == []


async def test_requests_in_one_packet_are_served_a_few_at_a_time(fn: Recorder) -> None:
    fn.gate = asyncio.Event()
    tracemalloc.start()
    async with listen(fn) as port, connect(port) as (reader, writer):
        writer.write(REQUEST + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100_000)
        await fn.called.wait()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        fn.gate.set()
        answers = b""
        with contextlib.suppress(ConnectionError):  # the rest is not read
            while chunk := await asyncio.wait_for(reader.read(10_000), 10):
                answers += chunk
    assert answers.count(b"HTTP/1.1 200 ") == 1
    assert answers.count(b"HTTP/1.1 405 ") <= 8
    assert peak < 10_000_000


async def test_the_body_of_a_request_that_waits_for_its_turn_does_not_fill_the_memory() -> None:
    async def wait_for_the_end(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    loop, large = asyncio.get_running_loop(), bytes(16_000_000)
    hosting = Hosting(DefaultLimits(drain_timeout=0.1))
    async with Listener(wait_for_the_end, "127.0.0.1", 0, hosting=hosting) as listener:
        with socket.create_connection(("127.0.0.1", listener.port)) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await eventually(lambda: len(listener.connections) == 1)
            head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 16000000\r\n\r\n"
            request = head + large
            tracemalloc.start()
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(loop.sock_sendall(client, request), 0.5)
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert held < 1_000_000


async def test_idle_connections_with_tls_do_not_fill_the_memory(fn: Recorder) -> None:
    pair = build_certificate_self_signed(["localhost"])
    client = trust(pair.cert)
    async with contextlib.AsyncExitStack() as stack:
        listener = webhook_servers.listen(fn, tls=build_context(pair))
        port = (await stack.enter_async_context(listener)).port
        await stack.enter_async_context(connect(port, client))
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(20):  # not by asyncio, whose buffers are large
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            wrap = partial(client.wrap_socket, plain, server_hostname="localhost")
            stack.enter_context(await asyncio.to_thread(wrap))
        assert tracemalloc.get_traced_memory()[0] < 20 * 20 * 1024


@pytest.mark.parametrize(
    "query",
    [
        b"timeout=" + b"1" * 30_000,
        b"timeout=" + b"1" * 30_000 + b"s",
        b"timeout=" + b"1h" * 15_000,
        b"&".join(b"a%d=b" % i for i in range(8_000)),
        b"timeout=" + b"%31" * 10_000,
    ],
)
async def test_a_huge_query_costs_nothing_and_is_not_echoed(fn: Recorder, query: bytes) -> None:
    loop = asyncio.get_running_loop()
    async with listen(fn) as port, connect(port) as (reader, writer):
        start = loop.time()
        for i in range(20):  # different ones, so that no cache helps
            writer.write(HEAD.replace(b"POST / ", b"POST /?%b%d " % (query, i)) + BODY)
            head, answer = await read_answer(reader)
            assert head.startswith("HTTP/1.1 414 ")
            assert len(answer) < 500
        assert loop.time() - start < 2
    assert fn.calls == []
