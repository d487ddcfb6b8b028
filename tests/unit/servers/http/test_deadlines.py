"""Deadlines of reviews: what clients say, and that an answer is there in time in any server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest

from tests.kit.waiting import eventually
from tests.kit.webhook_servers import RESPONSE, REVIEW
from tests.unit.servers.http.foreign_servers import run_uvicorn
from webop.errors import ReviewError
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.listener import Listener
from webop.servers.http.review_head import compute_budget, parse_duration, read_timeout
from webop.servers.limits import DefaultLimits, Hosting


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("10s", 10), ("1m30s", 90), ("500ms", 0.5), ("1.5s", 1.5), (".5s", 0.5), ("1.s", 1)),
        *((f"100{unit}s", 0.0001) for unit in ("µ", "μ", "u")),
        *(("1h0m0.5s", 3600.5), ("1000000ns", 0.001)),
    ],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0s", "-1s", "10", "s", "1 s", "1s ", "1S", "1d", "1e3s", "inf", "1s1", "\u0661s"],
)
def test_what_is_no_positive_duration_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        *((b"", None), (b"a=b", None), (b"timeout=10s", 10), (b"a=b&timeout=20s&c", 20)),
        *((b"timeout=1m0s", 30), (b"timeout=100%C2%B5s", 0.0001), (b"timeout=1s&timeout=2s", 1)),
    ],
)
def test_the_timeout_is_in_the_query(query: bytes, seconds: float | None) -> None:
    assert read_timeout(query) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("query", [b"timeout=", b"timeout", b"timeout=soon", b"timeout=%ff"])
def test_a_timeout_that_is_none_is_refused_by_its_name(query: bytes) -> None:
    with pytest.raises(ReviewError, match=r"timeout= in the URL") as caught:
        read_timeout(query)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("timeout", "budget"), [(30, 29), (10, 9), (5, 4.5), (1, 0.9), (0.2, 0.15), (0.06, 0.03)]
)
def test_a_part_of_the_time_is_left_for_the_way_back(timeout: float, budget: float) -> None:
    assert compute_budget(timeout) == pytest.approx(budget)


@contextlib.asynccontextmanager
async def listen(endpoint: ReviewEndpoint, hosting: Hosting) -> AsyncIterator[int]:
    async with Listener(endpoint, "127.0.0.1", 0, hosting=hosting) as listener:
        yield listener.port


Serve = Callable[[ReviewEndpoint, Hosting], contextlib.AbstractAsyncContextManager[int]]


@pytest.fixture(params=[listen, run_uvicorn])
def serve(request: pytest.FixtureRequest) -> Serve:
    server: Serve = request.param
    return server


class Sleeper:
    """A ``WebhookFn`` that takes its time, and may not want to be cancelled."""

    def __init__(self, action: Callable[[], Awaitable[None]]) -> None:
        self.action = action
        self.is_done = False

    async def __call__(self, request: Mapping[str, Any], **_: object) -> dict[str, Any]:
        try:
            await self.action()
        finally:
            self.is_done = True
        return RESPONSE


async def sleep_on() -> None:
    await asyncio.sleep(60)


async def swallow() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)


async def linger() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.5)


async def fail() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("action", "path", "limit"),
    [
        (sleep_on, "/fn?timeout=300ms", 30.0),
        (swallow, "/?timeout=0.3s", 30.0),
        (linger, "/fn", 0.3),
        (fail, "/fn?timeout=300ms", 30.0),
    ],
)
async def test_an_answer_is_there_before_the_deadline_whatever_the_handler_does(
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    action: Callable[[], Awaitable[None]],
    path: str,
    limit: float,
) -> None:
    caplog.set_level(logging.WARNING)
    sleeper = Sleeper(action)
    hosting = Hosting(DefaultLimits(review_timeout=limit))
    loop = asyncio.get_running_loop()
    async with (
        serve(ReviewEndpoint(sleeper, hosting=hosting), hosting) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as client,
    ):
        await client.get("/")  # for the connection
        start = loop.time()
        response = await client.post(path, json=REVIEW)
        assert 0.25 <= loop.time() - start < 1  # some time for a busy machine
        assert response.status_code == 504
        assert response.json()["kind"] == "Status"
        named = "webhook fn " if "fn" in path else "The webhooks "
        assert re.search(rf"{named}.* 0\.25 s of the 0\.3 s", response.json()["message"])
        await eventually(lambda: sleeper.is_done)
        sleeper.action = lambda: asyncio.sleep(0)
        assert (await client.post(path, json=REVIEW)).json() == RESPONSE
    assert "Its handlers are cancelled" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


async def test_a_cancellation_by_the_server_is_not_taken_for_the_deadline() -> None:
    hosting = Hosting(DefaultLimits(drain_timeout=0.01))
    sleeper = Sleeper(sleep_on)
    endpoint = ReviewEndpoint(sleeper, hosting=hosting)
    async with listen(endpoint, hosting) as port:
        client = httpx.AsyncClient(verify=False)
        task = asyncio.create_task(
            client.post(f"http://127.0.0.1:{port}/?timeout=20s", json=REVIEW)
        )
        await asyncio.sleep(0.3)
        hosting.is_stopping = True
    assert (await task).status_code == 503
    assert sleeper.is_done
    await client.aclose()


async def test_each_review_has_its_own_deadline_whatever_those_before_it_have() -> None:
    released = asyncio.Event()

    async def wait() -> None:
        await released.wait()

    transport = httpx.ASGITransport(ReviewEndpoint(Sleeper(wait)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def ask(timeout: str) -> int:
            return (await client.post(f"/fn?timeout={timeout}", json=REVIEW)).status_code

        patient = asyncio.create_task(ask("30s"))
        hasty = [asyncio.create_task(ask(timeout)) for timeout in ("300ms", "200ms", "100ms")]
        async with asyncio.timeout(5):
            assert [await task for task in hasty] == [504, 504, 504]
            assert await ask("100ms") == 504
        assert not patient.done()
        released.set()
        assert await patient == 200
