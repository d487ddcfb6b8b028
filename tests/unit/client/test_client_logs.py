"""Logs over a connection on which things happen that a real API server does rarely."""

from __future__ import annotations

import asyncio
import datetime as dt
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import webop
from tests.kit.client_options import Networking
from tests.kit.httpx_client import connect
from tests.kit.scripted_server import Connection, Script, build_answer, playing
from tests.kit.waiting import eventually
from webop import ConnectionInfo, Vault
from webop.client.api import Client
from webop.client.objects import AsyncClient

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

REFUSED = build_answer(b'{"kind":"Status"}', status=503)


@asynccontextmanager
async def reading(script: Script, **networking: Any) -> AsyncIterator[AsyncClient]:
    async with playing(script) as server:
        vault = Vault({"x": ConnectionInfo(server.url)})
        async with Client(vault, Networking(**networking)) as requests:
            yield AsyncClient(requests)


async def answer_log(connection: Connection, *pieces: bytes) -> None:
    await connection.read()
    await connection.write(*pieces)


async def test_a_log_that_is_cut_is_an_error_after_its_lines() -> None:
    lines: list[str] = []

    async def cut(connection: Connection) -> None:
        await answer_log(connection, CHUNKED, b"4\r\none\n\r\n")
        await eventually(lambda: bool(lines))

    async with reading(cut, error_backoffs=(0.01,)) as client:

        async def read() -> None:
            async for line in client.logs("web-0", namespace="default", follow=True):
                lines.append(line)  # noqa: PERF401  while it goes on

        with pytest.raises(webop.APIConnectionError, match=r"get pods/log 'web-0'.*closed"):
            await read()
    assert lines == ["one"]


async def test_a_log_is_asked_for_again_while_nothing_of_it_has_come() -> None:
    attempts = 0

    async def answer(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            await answer_log(connection, REFUSED if attempts == 2 else build_answer(b"one\ntwo"))

    async with reading(answer, error_backoffs=(0.01, 0.01)) as client:
        assert await client.logs("web-0", namespace="default") == ["one", "two"]
        attempts = 0
    async with reading(answer, error_backoffs=(0.01,)) as client:
        with pytest.raises(webop.APIStatusError, match="503"):
            await client.logs("web-0", namespace="default")


async def test_a_log_that_is_followed_may_be_silent_and_another_one_must_not() -> None:
    async def hang(connection: Connection) -> None:
        await answer_log(connection, CHUNKED, b"4\r\none\n\r\n")
        await connection.reader.read()

    async with reading(hang, request_timeout=0.3) as client:
        with pytest.raises(webop.APIConnectionError, match="no response in time"):
            await client.logs("web-0", namespace="default")
        following = asyncio.create_task(client.logs("web-0", namespace="default", follow=True))
        await asyncio.wait({following}, timeout=0.6)
        assert not following.done()
        following.cancel()


async def test_what_no_log_has_is_refused_before_a_request() -> None:
    client = AsyncClient(connect(lambda _: pytest.fail("There was a request.")))
    with pytest.raises(TypeError, match=r"logs\(\) has no option tali"):
        client.logs("web-0", namespace="default", tali=5)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="needs a time zone"):
        await client.logs("web-0", namespace="default", since=dt.datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="pass it as namespace="):
        await client.logs("web-0")


async def test_a_log_that_a_proxy_has_compressed_is_an_error_and_no_garbage() -> None:
    answer = build_answer(gzip.compress(b"one\n"), "Content-Encoding: gzip")
    async with reading(lambda connection: answer_log(connection, answer)) as client:
        with pytest.raises(webop.APIConnectionError, match=r"a proxy has compressed .* \(gzip\)"):
            await client.logs("web-0", namespace="default")
