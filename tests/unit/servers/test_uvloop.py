"""The webhook server on the event loop of uvloop, which uvicorn takes where it is installed."""

from __future__ import annotations

import asyncio

import httpx
import uvloop

import webop
from tests.kit.webhook_servers import REVIEW, Recorder, get_bundle, get_url, post, serve, trust
from tests.unit.servers.foreign_servers import run_uvicorn
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.protocol import HTTPProtocol

_COUNT = 40


def test_reviews_are_served_on_connections_that_are_kept() -> None:
    async def run() -> None:
        fn = Recorder()
        async with serve(webop.WebhookServer(port=0), fn) as config:
            url, context = get_url(config), trust(get_bundle(config))
            async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                for _ in range(2):
                    posts = (client.post(url, json=REVIEW) for _ in range(_COUNT))
                    answers = await asyncio.gather(*posts)
                    assert {answer.status_code for answer in answers} == {200}
                large = await client.post(url, json={"padding": "x" * 6_000_000})
                assert large.status_code == 200
        assert len(fn.calls) == 2 * _COUNT + 1

    uvloop.run(run())


def test_what_is_in_flight_at_the_end_is_answered() -> None:
    async def run() -> None:
        fn = Recorder(gate=asyncio.Event())
        async with serve(webop.WebhookServer(port=0), fn) as config:
            waiting = asyncio.create_task(post(get_url(config), trust(get_bundle(config))))
            await fn.called.wait()
            assert fn.gate is not None
            asyncio.get_running_loop().call_later(0.2, fn.gate.set)
        assert (await waiting).status_code == 200

    uvloop.run(run())


async def test_our_protocol_works_in_uvicorn() -> None:
    fn = Recorder()
    async with run_uvicorn(ReviewEndpoint(fn), http=HTTPProtocol, loop="uvloop") as port:
        assert (await post(f"http://localhost:{port}")).status_code == 200
    assert len(fn.calls) == 1
