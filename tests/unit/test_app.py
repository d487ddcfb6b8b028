"""The app as an ASGI server sees it: its life and its options."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import webop
from tests.kit.operators import build_settings
from tests.kit.reviews import Lifespan, Site, build_review, connect, serve
from tests.kit.waiting import eventually
from webop.errors import ActivityError, ConfigurationError


@pytest.mark.feature("STA-01", "STA-04", "STA-05")
async def test_startup_handlers_run_before_the_first_request_and_cleanup_handlers_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[Any] = []
    settings = build_settings(admission={"managed": "auto.kopf.dev"})

    @webop.on.startup()
    async def start(memo: webop.Memo, **kwargs: Any) -> None:
        calls.append(("startup", kwargs["settings"] is settings))
        memo.started = True

    @webop.on.cleanup()
    def clean(memo: webop.Memo, **_: Any) -> None:
        calls.append(("cleanup", memo.started))

    @webop.on.validate("kopfexamples")
    def check(memo: webop.Memo, **_: Any) -> None:
        calls.append(("review", memo.started))

    async with serve(settings=settings) as site:
        await site.review()
        assert (await site.get("/readyz")).status_code == 200
    assert calls == [("startup", True), ("review", True), ("cleanup", True)]
    assert "The webhook configurations 'auto.kopf.dev' are not managed" in caplog.text


@pytest.mark.feature("STA-02", "D-64")
@pytest.mark.parametrize("phase", ["startup", "shutdown"])
async def test_a_failed_startup_or_cleanup_is_told_to_the_server_without_a_traceback(
    phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: Any) -> None:
        raise webop.PermanentError("No database.")

    calls: list[str] = []
    if phase == "startup":
        webop.on.startup(id="tidy")(fail)
        webop.on.cleanup()(lambda **_: calls.append("cleanup"))
    else:
        webop.on.cleanup(id="tidy")(fail)
    lifespan = Lifespan(webop.create_app())
    message = await lifespan.pass_through("startup")
    if phase == "shutdown":
        message = await lifespan.pass_through("shutdown")
    activity = "Startup" if phase == "startup" else "Cleanup"
    text = f"{activity} handler 'tidy' failed for good: No database."
    assert message == {"type": f"lifespan.{phase}.failed", "message": text}
    with pytest.raises(ActivityError):
        await lifespan.task
    assert not calls
    assert not any(record.exc_info for record in caplog.records)


async def test_handlers_are_not_doubled_when_an_app_lives_twice(tmp_path: Path) -> None:
    file = tmp_path / "handlers_of_two_lives.py"
    file.write_text("import webop\nwebop.on.validate('x', id='check')(lambda **_: None)")
    app = webop.create_app(modules=str(file), namespaces="team-1", clusterwide=None)
    for _ in range(2):
        async with app.lifespan():
            assert app.operator is not None
            assert len(app.operator.context.registry) == 1
            assert app.operator.options.scope.patterns == ("team-1",)


async def test_a_server_that_drops_the_lifespan_ends_the_operator() -> None:
    cleaned = threading.Event()
    webop.on.cleanup()(lambda **_: cleaned.set())
    lifespan = Lifespan(webop.create_app())
    await lifespan.pass_through("startup")
    lifespan.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await lifespan.task
    assert cleaned.is_set()


@pytest.mark.feature("PRB-09")
async def test_nothing_is_served_before_the_start_and_after_the_end() -> None:
    gate = asyncio.Event()

    @webop.on.startup()
    async def start(**_: Any) -> None:
        await gate.wait()

    webop.on.validate("kopfexamples")(lambda **_: None)
    app = webop.create_app()
    async with connect(app) as http:
        site = Site(http)
        assert await get_statuses(site) == [503, 503, 503, 503]
        lifespan = Lifespan(app)
        lifespan.begin("startup")
        await eventually(lambda: app.operator is not None)
        assert await get_statuses(site) == [503, 503, 503, 503]
        assert "startup is not finished" in (await site.get("/readyz")).text
        gate.set()
        assert (await lifespan.finish())["type"] == "lifespan.startup.complete"
        assert await get_statuses(site) == [200, 200, 200, 200]
        assert (await lifespan.pass_through("shutdown"))["type"] == "lifespan.shutdown.complete"
        await lifespan.task
        assert await get_statuses(site) == [503, 503, 503, 503]
        refusal = (await site.post(build_review())).json()
        assert (refusal["kind"], refusal["code"]) == ("Status", 503)
        assert "does not run" in refusal["message"]


async def get_statuses(site: Site) -> list[int]:
    answers = [await site.get(path) for path in ("/healthz", "/livez", "/readyz")]
    return [(await site.post(build_review())).status_code, *(a.status_code for a in answers)]


@pytest.mark.feature("ADM-49", "ADM-60")
async def test_the_end_of_a_webhook_server_is_the_end_of_the_operator_and_is_seen_by_the_probes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []
    gate = asyncio.Event()

    async def serve_briefly(fn: webop.WebhookFn) -> Any:
        yield {"url": "https://somewhere"}
        await gate.wait()

    settings = build_settings(admission={"server": serve_briefly})
    webop.on.validate("kopfexamples")(lambda **_: None)
    webop.on.cleanup()(lambda **_: calls.append("cleanup"))
    app = webop.create_app(settings=settings)
    lifespan = Lifespan(app)
    await lifespan.pass_through("startup")
    async with connect(app) as http:
        site = Site(http)
        assert await get_statuses(site) == [200, 200, 200, 200]
        gate.set()
        await eventually(lambda: "The operator has ended" in caplog.text)
        assert await get_statuses(site) == [503, 503, 503, 503]
        assert "The webhook server has exited" in (await site.get("/readyz")).text
    assert calls == ["cleanup"]
    assert (await lifespan.pass_through("shutdown"))["type"] == "lifespan.shutdown.failed"
    with pytest.raises(webop.WebopError):
        await lifespan.task


async def return_config(fn: webop.WebhookFn) -> Any:
    return {"url": "https://somewhere"}


async def yield_url(fn: webop.WebhookFn) -> Any:
    yield "https://somewhere"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (yield_url, r"WebhookClientConfig, got 'https:"),
        (return_config, r"must be an asynchronous generator: .* with `yield`"),
    ],
)
async def test_a_webhook_server_that_yields_something_else_than_a_usable_config_is_told_of(
    server: Any, message: str
) -> None:
    settings = build_settings(admission={"server": server})
    webop.on.validate("kopfexamples")(lambda **_: None)
    lifespan = Lifespan(webop.create_app(settings=settings))
    await lifespan.pass_through("startup")
    await lifespan.pass_through("shutdown")
    with pytest.raises(webop.ConfigurationError, match=message):
        await lifespan.task


def test_a_misspelt_option_is_told_at_once() -> None:
    with pytest.raises(TypeError, match=r"no option 'namespace' .* did you mean 'namespaces'"):
        webop.create_app(namespace="x")  # type: ignore[call-arg]


async def test_a_handler_that_cannot_be_called_is_told_to_the_server_or_the_caller() -> None:
    calls: list[str] = []
    webop.on.startup()(lambda **_: calls.append("startup"))

    @webop.on.create("kopfexamples")
    def fn(nam: str, **_: Any) -> None: ...

    reason = r"fn\(\) requires 'nam', .* did you mean 'name'\? .*test_app\.py, line"
    lifespan = Lifespan(webop.create_app())
    message = await lifespan.pass_through("startup")
    assert message["type"] == "lifespan.startup.failed"
    assert re.search(reason, message["message"])
    with pytest.raises(ConfigurationError):
        await lifespan.task
    with pytest.raises(ConfigurationError, match=reason):
        await webop.operator(clusterwide=True)
    assert calls == []


@pytest.mark.feature("ADM-48")
async def test_without_an_asgi_server_admission_handlers_need_a_webhook_server() -> None:
    calls: list[str] = []
    webop.on.startup()(lambda **_: calls.append("startup"))
    webop.on.cleanup()(lambda **_: calls.append("cleanup"))
    webop.on.validate("kopfexamples", id="check")(lambda **_: None)
    with pytest.raises(ConfigurationError, match=r"handlers \(check\).*settings\.admission\.serv"):
        await webop.operator(clusterwide=True)
    assert calls == ["startup", "cleanup"]
