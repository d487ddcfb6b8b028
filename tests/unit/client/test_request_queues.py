"""Queues of requests: which requests wait for others, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.kit.client_options import Networking
from tests.kit.httpx_client import connect
from tests.kit.rows import rows
from tests.kit.virtual_time import in_virtual_time
from webop import Resource
from webop.client.api import Client
from webop.client.objects import AsyncClient
from webop.errors import APIConnectionError

NAMESPACES = Resource("", "v1", "namespaces")
LEASES = Resource("coordination.k8s.io", "v1", "leases", namespaced=True)


def build_kind(number: int) -> Resource:
    return Resource("kopf.dev", "v1", f"kind{number}", namespaced=True)


ONE, OTHER = build_kind(1), build_kind(2)


class SlowServer:
    """Answers after so many seconds, by kind; knows what is in flight."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.active: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.most_in_all = 0
        self.order: list[str] = []

    async def handle(self, request: httpx.Request) -> httpx.Response:
        *_, kind, name = request.url.path.split("/")
        self.order.append(name)
        self.active[kind] += 1
        self.most[kind] = max(self.most[kind], self.active[kind])
        self.most_in_all = max(self.most_in_all, self.active.total())
        try:
            await asyncio.sleep(self.seconds.get(kind, 0))
        finally:
            self.active[kind] -= 1
        return httpx.Response(200, json={"metadata": {}})

    def connect(self, networking: Networking | None = None) -> Client:
        return connect(self.handle, networking)


class Burst:
    """Requests about objects that are sent all at once."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.tasks: list[asyncio.Task[Any]] = []

    def patch(self, kind: Resource, count: int) -> list[asyncio.Task[Any]]:
        tasks = [
            asyncio.create_task(self.client.patch(kind, "ns", f"{number}", {}, is_queued=True))
            for number in range(count)
        ]
        self.tasks += tasks
        return tasks


def cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()


@contextlib.asynccontextmanager
async def bursting(server: SlowServer) -> AsyncIterator[Burst]:
    """Give a burst; end what is left of it."""
    async with server.connect() as client:
        burst = Burst(client)
        try:
            yield burst
        finally:
            cancel(burst.tasks)
            await asyncio.gather(*burst.tasks, return_exceptions=True)


@in_virtual_time
async def test_a_lease_is_renewed_at_once_in_the_middle_of_a_burst() -> None:
    server = SlowServer(kind1=0.2)
    async with bursting(server) as burst:
        burst.patch(ONE, 2000)
        await asyncio.sleep(0.1)
        begin = asyncio.get_running_loop().time()
        await burst.client.patch(LEASES, "ns", "lease", {})
        assert asyncio.get_running_loop().time() - begin < 1


@in_virtual_time
async def test_a_kind_that_hangs_does_not_hold_up_another_kind() -> None:
    server = SlowServer(kind1=10_000)
    async with bursting(server) as burst:
        burst.patch(ONE, 100)
        await asyncio.sleep(1)
        begin = asyncio.get_running_loop().time()
        await asyncio.gather(*burst.patch(OTHER, 100))
        assert asyncio.get_running_loop().time() - begin < 100, "the other one takes 10 000 s"
        assert server.most == {"kind1": 16, "kind2": 16}


@in_virtual_time
async def test_the_time_in_the_queue_does_not_count_against_the_timeout() -> None:
    server = SlowServer(kind1=1.0)
    async with server.connect(Networking(request_timeout=1.5)) as client:
        burst = Burst(client)
        await asyncio.gather(*burst.patch(ONE, 16 * 20))
        server.seconds["kind1"] = 2
        with pytest.raises(APIConnectionError, match="no response in time"):
            await burst.patch(ONE, 1)[0]


@rows("when", ["waiting", "chosen", "in flight"])
@in_virtual_time
async def test_a_request_that_is_cancelled_gives_its_place_to_the_next_one(when: str) -> None:
    server = SlowServer(kind1=1.0)
    async with bursting(server) as burst:
        first, second = burst.patch(ONE, 16), burst.patch(ONE, 16)
        third = burst.patch(ONE, 100)
        await asyncio.sleep(0.5)
        if when == "chosen":
            # Those in flight are cancelled, so that those that wait get their places; and in the
            # same moment they are cancelled, too.
            first[-1].add_done_callback(lambda _: cancel(second))
        cancel(second if when == "waiting" else first)
        done = await asyncio.wait_for(asyncio.gather(*third), 100)
        assert len(done) == 100
        assert server.most["kind1"] == 16
        assert sum(task.cancelled() for task in burst.tasks) == (32 if when == "chosen" else 16)
        assert not server.active.total()
        again = burst.patch(ONE, 17)
        await asyncio.sleep(0.5)
        assert server.active["kind1"] == 16
        await asyncio.gather(*again)


@in_virtual_time
async def test_a_request_of_a_handler_that_hangs_ends_after_a_minute() -> None:
    server = SlowServer(namespaces=10_000)
    async with server.connect(Networking(request_timeout=300)) as client:
        begin = asyncio.get_running_loop().time()
        with pytest.raises(APIConnectionError, match="no response in time"):
            await AsyncClient(client).get(NAMESPACES, "default")
        assert asyncio.get_running_loop().time() - begin == pytest.approx(60, abs=1)
