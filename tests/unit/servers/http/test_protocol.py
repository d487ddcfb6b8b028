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


@pytest.mark.parametrize("kind", ["nothing", "order", "header", "no body"])
async def test_an_app_that_errs_is_logged_and_answered_for(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if kind == "order":
            await send({"type": "http.response.body", "body": b""})
        if kind == "header":
            headers = [(b"x", b"y\r\nz: 1")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
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
