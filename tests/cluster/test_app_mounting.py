"""The app inside of an app of the user's own: who runs its life, and what paths it is at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from asgi_lifespan import LifespanManager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import webop
from tests.kit.operators import build_settings
from tests.kit.reviews import Site, build_review, connect
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from webop.app import OperatorApp


@pytest.fixture
def operator() -> OperatorApp:
    @webop.on.validate("kopfexamples", id="check")
    def check(spec: webop.Spec, **_: Any) -> None:
        if spec.get("x") == "bad":
            raise webop.AdmissionError("No.", code=422)

    return webop.create_app(settings=build_settings())


async def say_hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def mount(operator: OperatorApp, **options: Any) -> Starlette:
    routes = [Route("/", say_hello), Mount("/webop", app=operator)]
    return Starlette(routes=routes, **options)


@contextlib.asynccontextmanager
async def run(app: Any) -> AsyncIterator[Site]:
    async with LifespanManager(app), connect(app) as http:
        yield Site(http)


async def test_a_mounted_operator_runs_by_the_lifespan_of_the_outer_app(
    operator: OperatorApp,
) -> None:
    async with run(mount(operator, lifespan=operator.lifespan)) as site:
        assert (await site.get("/")).text == "hello"
        assert (await site.review(path="/webop/check"))["allowed"]
        assert (await site.review(path="/webop/"))["allowed"]
        refused = await site.review({"spec": {"x": "bad"}}, path="/webop/check")
        assert refused["status"]["message"] == "No."
        assert (await site.post(build_review(), "/webop/other")).status_code == 404
        assert (await site.get("/webop/")).json()["webhooks"] == ["check"]
        assert (await site.get("/webop/livez")).json() == {"alive": True}
        assert (await site.get("/webop/readyz")).status_code == 200
        assert (await site.get("/webop/healthz")).json() == {}


async def test_without_a_lifespan_the_answers_say_what_is_to_be_done(operator: OperatorApp) -> None:
    async with run(mount(operator)) as site:
        refusal = await site.post(build_review(), "/webop/check")
        assert refusal.status_code == refusal.json()["code"] == 503
        assert "lifespan=operator.lifespan" in refusal.json()["message"]
        assert "lifespan=operator.lifespan" in (await site.get("/webop/readyz")).text
        assert "lifespan=operator.lifespan" in (await site.get("/webop/")).text
        assert (await site.get("/webop/livez")).status_code == 503


async def test_the_users_own_lifespan_goes_around_that_of_the_operator() -> None:
    calls: list[str] = []
    webop.on.startup()(lambda **_: calls.append("startup"))
    webop.on.cleanup()(lambda **_: calls.append("cleanup"))
    operator = webop.create_app(settings=build_settings())

    @contextlib.asynccontextmanager
    async def live(app: Starlette) -> AsyncIterator[dict[str, str]]:
        calls.append("opened")
        async with operator.lifespan(app):
            yield {"database": "open"}
        calls.append("closed")

    async with run(mount(operator, lifespan=live)):
        assert calls == ["opened", "startup"]
    assert calls == ["opened", "startup", "cleanup", "closed"]


async def test_what_fails_in_the_block_of_the_lifespan_is_not_covered_up(
    operator: OperatorApp,
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with operator.lifespan():
            raise ZeroDivisionError
    assert operator.operator is not None
    assert not operator.operator.is_started


async def test_one_operator_is_run_in_one_place_at_a_time(operator: OperatorApp) -> None:
    async with operator.lifespan():
        with pytest.raises(webop.ConfigurationError, match="already running"):
            async with operator.lifespan():
                pass
    async with operator.lifespan():
        pass


@pytest.mark.feature("EMB-09")
async def test_several_operators_are_parts_of_one_app_and_know_nothing_of_each_other() -> None:
    seen: list[tuple[str, str]] = []
    operators = {name: build_named(name, seen) for name in ("red", "blue")}

    @contextlib.asynccontextmanager
    async def live(_: Starlette) -> AsyncIterator[None]:
        async with operators["red"].lifespan(), operators["blue"].lifespan():
            yield

    routes = [Mount(f"/{name}", app=app) for name, app in operators.items()]
    async with run(Starlette(routes=routes, lifespan=live)) as site:
        for name in operators:
            assert (await site.get(f"/{name}/")).json()["webhooks"] == [name]
            assert (await site.review(path=f"/{name}/{name}"))["allowed"]
        assert (await site.post(build_review(), "/red/blue")).status_code == 404
    assert seen == [("red", "memo of red"), ("blue", "memo of blue")]


def build_named(name: str, seen: list[tuple[str, str]]) -> OperatorApp:
    registry = webop.OperatorRegistry()

    @webop.on.validate("kopfexamples", id=name, registry=registry)
    def check(memo: Any, **_: Any) -> None:
        seen.append((name, memo))

    return webop.create_app(
        registry=registry, settings=build_settings(), memo=f"memo of {name}", modules=()
    )


async def test_sigterm_comes_to_the_server_only_when_nobody_is_to_be_served_any_more() -> None:
    operators = [build_slow("red", 0.3), build_slow("blue", 0.4)]
    routes = [Mount("/red", app=operators[0]), Mount("/blue", app=operators[1])]

    @contextlib.asynccontextmanager
    async def live(_: Starlette) -> AsyncIterator[None]:
        async with operators[0].lifespan(), operators[1].lifespan():
            yield

    told = asyncio.Event()
    previous = signal.signal(signal.SIGTERM, mine := lambda *_: told.set())  # as uvicorn does
    try:
        async with run(Starlette(routes=routes, lifespan=live)) as site:
            begin = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
            await eventually(lambda: all(map(list_obstacles, operators)))
            for name in ("red", "blue"):
                readiness = await site.get(f"/{name}/readyz")
                assert readiness.json() == {"not ready": ["the operator is stopping"]}
                answer = await site.post(build_review(), f"/{name}/{name}")
                assert answer.status_code == 200
                assert answer.headers["connection"] == "close"
            assert not told.is_set()
            async with asyncio.timeout(10):
                await told.wait()
            assert time.monotonic() - begin >= 0.4
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, previous)


def build_slow(name: str, delay: float) -> OperatorApp:
    registry = webop.OperatorRegistry()
    webop.on.validate("kopfexamples", id=name, registry=registry)(lambda **_: None)
    settings = build_settings(admission={"shutdown_delay": delay})
    return webop.create_app(registry=registry, settings=settings, modules=())


def list_obstacles(app: OperatorApp) -> list[str]:
    assert app.operator is not None
    return app.operator.list_obstacles()
