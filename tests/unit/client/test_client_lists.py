"""Lists of the client: awaited as a whole, or read page by page."""

from __future__ import annotations

import asyncio
import gc
import warnings

import httpx
import pytest

from tests.kit.faulty_cluster import RESOURCE
from tests.kit.httpx_client import answer_json, connect
from webop.client.objects import AsyncClient

PAGE = 500


class Library:
    """A server with so many objects, and what it was asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.requests: list[httpx.URL] = []

    async def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request.url)
        query = request.url.params
        begin = int(query.get("continue", 0))
        end = min(begin + int(query["limit"]), self.count)
        items = [{"metadata": {"name": f"{n}", "uid": f"u{n}"}} for n in range(begin, end)]
        metadata = {"resourceVersion": "9"} | ({"continue": str(end)} if end < self.count else {})
        kind = {"kind": "KopfExampleList", "apiVersion": RESOURCE.api_version}
        return answer_json({**kind, "metadata": metadata, "items": items})()

    def connect(self) -> AsyncClient:
        return AsyncClient(connect(self.handle))


async def test_a_list_is_awaited_or_read_in_the_same_order() -> None:
    library = Library(2 * PAGE + 1)
    client = library.connect()
    names = [str(number) for number in range(library.count)]
    assert [one["metadata"]["name"] for one in await client.list(RESOURCE)] == names
    assert [one["metadata"]["name"] async for one in client.list(RESOURCE)] == names
    assert len(library.requests) == 6


async def test_pages_are_read_when_their_objects_are_wanted() -> None:
    library = Library(3 * PAGE)
    count = 0
    async for _ in library.connect().list(RESOURCE, labels={"app": "web"}):
        count += 1
        if count == PAGE:
            assert len(library.requests) == 1
        if count > PAGE:
            break
    assert [url.params.get("continue") for url in library.requests] == [None, "500"]
    assert {url.params["labelSelector"] for url in library.requests} == {"app=web"}


async def test_lists_can_be_tasks() -> None:
    client = Library(3).connect()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.list(RESOURCE)) for _ in range(2)]
    assert [len(task.result()) for task in tasks] == [3, 3]
    gathered = await asyncio.gather(client.list(RESOURCE), client.list(RESOURCE))
    assert [len(found) for found in gathered] == [3, 3]


async def test_a_list_that_is_not_used_is_warned_of_and_one_that_is_read_is_not() -> None:
    client = Library(1).connect()
    with pytest.warns(RuntimeWarning, match="never awaited"):
        client.list(RESOURCE)
    with pytest.raises(TypeError, match="Use 'await' before the call, or 'async for'"):
        list(client.list(RESOURCE))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async for _ in client.list(RESOURCE):
            pass
        gc.collect()
