"""What apps get of requests, and what becomes of their responses."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import httpx
import pytest

from tests.kit.waiting import eventually
from tests.kit.webhook_servers import REQUEST, Recorder, connect, read_answer
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.listener import Listener


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Send back what has come, with a length if the client wants it so."""
    assert (scope["method"], scope["path"], scope["scheme"]) == ("PUT", "/echo", "http")
    assert scope["client"][0] == "127.0.0.1"
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    size = scope["query_string"].partition(b"=")[2]
    headers = [(b"content-length", size)] if size else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for body in [message.get("body", b"") for message in messages]:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body"})


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_any_app_gets_and_sends_bodies_of_any_size(size: int) -> None:
    async with (
        Listener(echo, "127.0.0.1", 0) as listener,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}", verify=False) as client,
    ):
        for query in ("", f"?size={size}") * 3:
            response = await client.put(f"/echo{query}", content=b"x" * size)
            assert response.content == b"x" * size
            assert query or response.headers["connection"] == "close"


@pytest.mark.parametrize("kind", ["nothing", "order", "header", "length", "no body"])
async def test_an_app_that_errs_is_logged_and_answered_for(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if kind == "order":
            await send({"type": "http.response.body", "body": b""})
        if kind == "header":
            headers = [(b"x", b"y\r\nz: 1")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        if kind == "length":  # the rest would be read as the next response
            headers = [(b"content-length", b"1")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"HTTP/1.1 200 OK"})
        if kind == "no body":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise ZeroDivisionError

    async with (
        Listener(app, "127.0.0.1", 0) as listener,
        connect(listener.port) as (reader, writer),
    ):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"z: 1" not in answer
    assert caplog.records


@pytest.mark.parametrize(
    ("method", "status", "head"),
    [
        ("GET", 200, "content-length: 0\r\n"),
        ("HEAD", 200, "content-length: 1\r\n"),
        ("GET", 204, ""),
        ("GET", 304, ""),
    ],
)
async def test_the_next_response_begins_where_a_response_without_a_body_ends(
    method: str, status: int, head: str
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_head = scope["method"] == "HEAD"
        headers = [(b"content-length", b"1")] if is_head else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" if is_head else b""})

    async with (
        Listener(app, "127.0.0.1", 0) as listener,
        connect(listener.port) as (reader, writer),
    ):
        for _ in range(2):
            writer.write(f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, _, rest = answer.partition("\r\n")
            assert line.startswith(f"HTTP/1.1 {status} ")
            assert rest == f"{head}\r\n"


async def test_an_app_waits_for_a_client_that_does_not_read() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})

    async with (
        Listener(app, "127.0.0.1", 0) as listener,
        connect(listener.port) as (_, writer),
    ):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: get_unsent(listener) > 0)
        assert get_unsent(listener) < 1_000_000


def get_unsent(listener: Listener) -> int:
    return sum(each.transport.get_write_buffer_size() for each in listener.connections)


async def test_a_client_of_http_1_0_gets_no_permission_to_go_on(fn: Recorder) -> None:
    request = REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0\r\nExpect: 100-continue")
    async with (
        Listener(ReviewEndpoint(fn), "127.0.0.1", 0) as listener,
        connect(listener.port) as (reader, writer),
    ):
        writer.write(request[:-1])
        writer.write(request[-1:])
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("is_reading", [True, False])
async def test_a_client_that_closes_its_side_is_dropped_while_a_handler_still_runs(
    fn: Recorder, is_reading: bool
) -> None:
    fn.gate = asyncio.Event()
    async with (
        Listener(ReviewEndpoint(fn), "127.0.0.1", 0) as listener,
        connect(listener.port) as (reader, writer),
    ):
        writer.write(REQUEST)
        await fn.called.wait()
        writer.write_eof()
        if is_reading:
            assert await reader.read() == b""
        await eventually(lambda: not listener.connections)
        fn.gate.set()  # else the exit waits for it


LARGE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" + b" " * 900_000


async def test_a_large_request_that_crosses_the_end_of_its_connection_is_answered(
    fn: Recorder,
) -> None:
    async with (
        Listener(ReviewEndpoint(fn), "127.0.0.1", 0) as listener,
        connect(listener.port) as (reader, writer),
    ):
        writer.write(REQUEST)
        await read_answer(reader)
        listener.close_connections()
        writer.write(LARGE)
        await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")


async def test_the_response_is_whole_though_the_client_has_sent_more() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 5_000_000})

    async with (
        Listener(app, "127.0.0.1", 0) as listener,
        connect(listener.port) as (reader, writer),
    ):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + LARGE)
        assert (await reader.read()).count(b"x") == 5_000_000


async def test_a_refused_request_leaves_nothing_to_the_garbage_collector(fn: Recorder) -> None:
    gc.collect()
    gc.disable()
    try:
        async with Listener(ReviewEndpoint(fn), "127.0.0.1", 0) as listener:
            async with connect(listener.port) as (reader, writer):
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            await eventually(lambda: not listener.connections)
            kinds = {f"{type(one).__module__}.{type(one).__name__}" for one in gc.get_objects()}
    finally:
        gc.enable()
    assert "webop.servers.http.protocol.Connection" not in kinds


async def test_headers_of_an_app_can_be_lists_of_any_case_and_two_tasks_can_receive() -> None:
    ends: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [[b"X-A", bytearray(b"y")], [b"Content-Length", b"2"]]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] == "/wait":
            ends.extend(await asyncio.gather(receive(), receive()))
        await send({"type": "http.response.body", "body": b"ok"})

    async with Listener(app, "127.0.0.1", 0) as listener:
        async with connect(listener.port) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head, body = await read_answer(reader)
            assert (head.lower().count("content-length: 2"), body) == (1, b"ok")
            assert "x-a: y\r\n" in head
            writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: ends == [{"type": "http.disconnect"}] * 2)
