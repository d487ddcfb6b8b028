"""Logs, through the real API server, from a node whose kubelet is a script of the tests.

What the kubelet itself decides cannot be tested here: which lines ``since=`` and ``tail=`` select,
and what it answers for a container that has not started.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import webop
from tests.kit.client_options import Networking
from tests.kit.kubelet import build_pod, running_node
from tests.kit.operators import get_connection
from tests.kit.scripted_server import Connection
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.objects import AsyncClient
from webop.client.pod_logs import LogOptions
from webop.testing import LocalCluster

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def encode_chunk(text: str) -> bytes:
    content = text.encode()
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


class Container:
    """What a container says, when the test says so."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()

    def say(self, text: str) -> None:
        self._said.put_nowait(encode_chunk(text))

    def end(self) -> None:
        self._said.put_nowait(END)

    async def answer(self, connection: Connection) -> None:
        while True:
            head, _ = await connection.read()
            self.requests.append(head.split(" ")[1])
            await connection.write(HEAD)
            while (piece := await self._said.get()) is not None:
                await connection.write(piece)
                if piece == END:
                    break
            else:
                connection.writer.transport.abort()


@pytest.fixture
async def asking(webop_cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    """A client that asks once."""
    vault = webop.Vault({"x": get_connection(webop_cluster)})
    async with Client(vault, Networking()) as requests:
        yield AsyncClient(requests)


@pytest.fixture
async def container(
    asking: AsyncClient, webop_namespace: str, tmp_path: Path
) -> AsyncIterator[Container]:
    """The only container of the pod "web-0", which runs on a node of the test."""
    container = Container()
    async with running_node(asking, webop_namespace, container.answer, tmp_path):
        await asking.create(build_pod("web-0", webop_namespace), namespace=webop_namespace)
        yield container


async def test_a_log_that_is_followed_ends_with_the_container(
    asking: AsyncClient, container: Container, webop_namespace: str
) -> None:
    lines: list[str] = []

    async def read() -> None:
        async for line in asking.logs("web-0", namespace=webop_namespace, follow=True):
            lines.append(line)  # noqa: PERF401

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        for count, text in enumerate(("one\n", "two\n"), 1):
            container.say(text)
            await eventually(lambda count=count: len(lines) == count, text)  # type: ignore[misc]
        assert not reading.done()
        container.end()
    assert lines == ["one", "two"]
    assert container.requests == [
        f"/containerLogs/{webop_namespace}/web-0/main?follow=true",
    ]


async def test_lines_come_without_their_ends_and_options_are_those_of_the_kubelet(
    asking: AsyncClient, container: Container, webop_namespace: str
) -> None:
    container.say("one\ntw")
    container.say("o\n\nthr\xe9\u20ac")
    container.end()
    lines = await asking.logs("web-0", namespace=webop_namespace)
    assert lines == ["one", "two", "", "thr\xe9\u20ac"]
    since = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    options: list[LogOptions] = [
        {"tail": 5, "previous": True},
        {"since": dt.timedelta(seconds=0.5), "container": "main"},
        {"since": since},
    ]
    for one in options:
        container.end()
        assert await asking.logs("web-0", namespace=webop_namespace, **one) == []
    path = f"/containerLogs/{webop_namespace}/web-0/main"
    assert container.requests[1:] == [
        f"{path}?previous=true&tailLines=5",
        f"{path}?sinceSeconds=1",
        f"{path}?sinceTime=2026-01-01T11%3A00%3A00Z",
    ]


async def test_a_reader_that_stops_early_closes_its_connection(
    asking: AsyncClient, webop_namespace: str, tmp_path: Path
) -> None:
    closed = asyncio.Event()

    async def answer(connection: Connection) -> None:
        await connection.read()
        await connection.write(HEAD, encode_chunk("one\n"))
        assert await connection.reader.read() == b""
        closed.set()

    async with running_node(asking, webop_namespace, answer, tmp_path):
        await asking.create(build_pod("web-0", webop_namespace), namespace=webop_namespace)
        async for line in asking.logs("web-0", namespace=webop_namespace, follow=True):
            assert line == "one"
            break
        async with asyncio.timeout(20):
            await closed.wait()


async def test_what_prevents_a_log_is_said(
    asking: AsyncClient, webop_namespace: str, tmp_path: Path
) -> None:
    here = webop_namespace

    async def refuse(name: str, **options: Any) -> str:
        with pytest.raises(webop.APIStatusError) as caught:
            await asking.logs(name, namespace=here, **options)
        attempt, _, text = str(caught.value).partition(": HTTP ")
        assert attempt == f"Cannot get pods/log {name!r} in namespace {here!r}"
        return text

    async def answer(connection: Connection) -> None:
        await connection.read()

    await asking.create(build_pod("pair", here, "a", "b"), namespace=here)
    choice = "400: a container name must be specified for pod pair, choose one of: [a b]"
    assert await refuse("pair") == choice
    assert await refuse("pair", container="c") == "400: container c is not valid for pod pair"
    assert await refuse("absent") == '404: pods "absent" not found'
    assert await refuse("pair", container="a") == (
        f'404: pods "{here}" not found. This is the node of the pod.'
    )
    async with running_node(asking, here, answer, tmp_path) as kubelet:
        await kubelet.stop()
        text = await refuse("pair", container="a")
    assert text.startswith(f'500: Get "https://127.0.0.1:{kubelet.port}/containerLogs/{here}/pair/')
    assert text.endswith(
        "connect: connection refused. The API server cannot reach the kubelet on the node of the "
        "pod."
    )
