"""The pages of the app, and its probes."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import webop
from tests.kit.operators import build_settings
from tests.kit.reviews import build_review, serve
from tests.kit.scrapes import operate, wait_listening
from tests.kit.virtual_time import AdvancingLoop
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port


async def test_the_root_says_what_to_set_when_nothing_is_configured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve() as site:
        page = (await site.get("/")).json()
    assert "WEBOP_MODULES=handlers.py,package.module" in page["advice"]
    assert "WEBOP_MODULES=handlers.py,package.module" in caplog.text
    assert page["webop"] == webop.__version__
    assert page["handlers"] == 0


async def test_the_root_says_what_is_served() -> None:
    webop.on.validate("kopfexamples", id="check")(lambda **_: None)
    webop.on.mutate("pods", id="check")(lambda **_: None)
    webop.on.probe(id="now")(lambda **_: None)
    async with serve() as site:
        page = (await site.get("/")).json()
    nothing = {"not ready": [], "advice": "", "role": ""}
    assert page == {**page, "webhooks": ["check"], "handlers": 3, **nothing}


async def test_the_root_says_whether_it_acts_and_why_not() -> None:
    webop.on.create("kopfexamples")(lambda **_: None)
    settings = build_settings(leadership={"lease_name": "one-of-many"})
    async with serve(settings=settings) as site:
        role = (await site.get("/")).json()["role"]
    assert role.startswith("standing by; the lease one-of-many is not held: ")
    assert "not elected yet" in role


async def test_there_is_nothing_else() -> None:
    async with serve() as site:
        for method, path, status in (
            *(("GET", "/nowhere", 404), ("PUT", "/", 405)),
            *(("HEAD", "/livez", 200), ("DELETE", "/x", 404)),
        ):
            assert (await site.http.request(method, path)).status_code == status


async def test_a_query_that_is_not_utf_8_is_no_error_of_the_operator() -> None:
    sent: asyncio.Queue[Any] = asyncio.Queue()
    head = {"type": "http", "method": "GET", "path": "/livez/", "headers": [(b"host", b"x")]}
    query = {"query_string": b"timeout=\xff"}
    await webop.create_app()({**head, **query}, asyncio.Queue().get, sent.put)
    assert sent.get_nowait()["status"] == 404


@pytest.mark.feature("PRB-03", "PRB-04", "PRB-10", "KWA-05")
async def test_the_health_is_what_the_probe_handlers_return() -> None:
    @webop.on.probe(id="now")
    async def tell(memo: webop.Memo, settings: webop.OperatorSettings, **_: Any) -> Any:
        return {"count": memo.count, "level": settings.posting.level}

    webop.on.probe(id="sync")(lambda **_: [1, None])
    webop.on.probe(id="zero")(lambda **_: 0)
    webop.on.probe(id="silent")(lambda **_: None)
    async with serve(memo=webop.Memo(count=3)) as site:
        answer = await site.get("/healthz")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    now = {"count": 3, "level": logging.INFO}
    assert answer.json() == {"now": now, "sync": [1, None], "zero": 0}


async def test_a_probe_that_fails_is_an_error_at_once_and_can_recover() -> None:
    errors: list[Exception] = [ValueError("No database."), webop.PermanentError("No luck.")]

    @webop.on.probe(id="database")
    def check(**_: Any) -> str:
        if errors:
            raise errors.pop(0)
        return "fine"

    async with serve() as site, asyncio.timeout(10):
        answers = [await site.get("/healthz") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [500, 500, 200]
    assert answers[0].json() == {"error": "The probe has failed in database."}
    assert answers[2].json() == {"database": "fine"}


@pytest.mark.feature("PRB-05")
def test_a_probe_that_hangs_fails_after_ten_seconds_and_is_called_again_when_it_has_ended() -> None:
    called, released = threading.Event(), threading.Event()
    calls: list[int] = []

    @webop.on.probe(id="database")
    def check(**_: Any) -> int:
        calls.append(len(calls))
        called.set()
        released.wait(30)
        return len(calls)

    async def ask_twice() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdvancingLoop)
        async with serve() as site:
            asking = asyncio.gather(site.get("/healthz"), site.get("/healthz"))
            await eventually(called.is_set)
            loop.advance += 9
            await asyncio.sleep(0.1)
            assert not asking.done()
            loop.advance += 1
            slow, quick = await asking
            released.set()
            answer = await site.get("/healthz")
            while answer.status_code == 500:  # as long as the thread takes to end
                await asyncio.sleep(0.01)
                answer = await site.get("/healthz")
        assert slow.status_code == quick.status_code == 500
        assert "no result within 10 s" in slow.json()["error"]
        assert "an earlier call of database is still running" in quick.json()["error"]
        assert (answer.status_code, answer.json()) == (200, {"database": 2})

    with asyncio.Runner(loop_factory=AdvancingLoop) as runner:
        runner.run(ask_twice())


@pytest.mark.feature("PRB-06")
async def test_the_results_of_probes_are_json_or_made_so() -> None:
    for name, value in {"map": {1: 2}, "memo": webop.Memo(a=1), "path": Path("/tmp")}.items():
        webop.on.probe(id=name)(lambda value=value, **_: value)
    async with serve() as site:
        answer = await site.get("/healthz")
    assert answer.json() == {"map": {"1": 2}, "memo": {"a": 1}, "path": "/tmp"}


@pytest.mark.usefixtures("nowhere")
async def test_without_credentials_admission_is_served_and_the_readiness_says_what_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    webop.on.create("kopfexamples")(lambda **_: None)
    webop.on.validate("kopfexamples")(lambda **_: None)
    async with serve() as site:
        assert (await site.get("/readyz")).status_code == 503  # from the first moment on
        await eventually(lambda: "only admission and probes are served" in caplog.text)
        answer = await site.get("/readyz")
        assert answer.status_code == 503
        (reason,) = answer.json()["not ready"]
        assert "no credentials for the API server. There is no kubeconfig" in reason
        assert (await site.review())["allowed"]
        assert (await site.get("/livez")).json() == {"alive": True}
        assert (await site.get("/healthz")).status_code == 200
        assert (await site.get("/")).json()["not ready"] == [reason]


@pytest.mark.feature("PRB-01", "PRB-03")
@pytest.mark.parametrize("path", ["", "/", "/healthz", "/some/where"])
async def test_the_liveness_endpoint_reports_the_health_and_takes_no_reviews(path: str) -> None:
    root = f"http://127.0.0.1:{find_free_port()}"
    async with operate(liveness_endpoint=f"{root}{path}") as http:
        await wait_listening(http, root)
        answer = await http.get(f"{root}{path}")
        refusal = await http.post(f"{root}/", json=build_review())
    assert (answer.status_code, answer.json()) == (200, {"x": "fine"})
    assert refusal.status_code == 405
