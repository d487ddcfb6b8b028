"""What apps get of requests, and what becomes of their responses."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from tests.kit.waiting import eventually
from tests.kit.webhook_servers import REQUEST, Recorder, connect
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.listener import Listener


async def echo(request: Request) -> JSONResponse:
    body = await request.body()
    return JSONResponse(
        {
            "method": request.method,
            "path": request.url.path,
            "query": dict(request.query_params),
            "size": len(body),
            "scheme": request.url.scheme,
            "client": request.client.host if request.client else None,
        }
    )


async def stream(request: Request) -> StreamingResponse:
    chunks = [chunk async for chunk in request.stream()]

    async def generate() -> Any:
        for chunk in chunks:
            yield chunk

    return StreamingResponse(generate())


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_any_app_gets_and_sends_bodies_of_any_size(size: int) -> None:
    routes = [Route("/echo", echo, methods=["PUT"]), Route("/stream", stream, methods=["PUT"])]
    async with (
        Listener(Starlette(routes=routes), "127.0.0.1", 0) as listener,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}", verify=False) as client,
    ):
        for _ in range(3):
            content = b"x" * size
            response = await client.put("/echo?a=b", content=content)
            assert response.json() == {
                "method": "PUT",
                "path": "/echo",
                "query": {"a": "b"},
                "size": size,
                "scheme": "http",
                "client": "127.0.0.1",
            }
            response = await client.put("/stream", content=content)
            assert response.headers["connection"] == "close"
            assert response.content == content


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
