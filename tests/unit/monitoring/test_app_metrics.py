"""``/metrics`` of an app and of the port of the probes, with no cluster."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import prometheus_client
import pytest

import webop
from tests.kit.operators import build_settings
from tests.kit.reviews import build_object, build_review, connect, serve
from tests.kit.rows import rows
from tests.kit.scrapes import OPENMETRICS, operate, scrape, scrape_until, wait_listening
from webop.controlplane.cluster_client import find_free_port
from webop.errors import ConfigurationError


async def test_an_app_that_starts_runs_and_has_ended_is_scraped_all_the_time() -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    @webop.on.startup(id="begin")
    async def begin(**_: Any) -> None:
        begun.set()
        await released.wait()

    app = webop.create_app(settings=build_settings())
    async with connect(app) as http:
        run = asyncio.create_task(_live(app, until=(ended := asyncio.Event())))
        await begun.wait()
        starting = await scrape(http)
        released.set()
        running = await scrape_until(lambda found: found.get("webop_ready"), http)
        ended.set()
        await run
        over = await scrape(http)
    assert starting.get("webop_info", version=webop.__version__) == 1
    readiness = [(each.get("webop_ready"), each.get("webop_acting")) for each in (starting, over)]
    assert readiness == [(0, 0), (0, 0)]
    assert running.get("webop_acting") == 1
    calls = {"handler": "begin", "type": "activity", "outcome": "success"}
    counted = [each.get("webop_handler_calls_total", **calls) for each in (starting, running, over)]
    assert counted == [0, 1, 1]


async def _live(app: Any, until: asyncio.Event) -> None:
    async with app.lifespan():
        await until.wait()


@rows(
    ("accept", "kind"),
    [
        ("", "text/plain; version=0.0.4"),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0"),
        ("text/plain;version=1.0.0", "text/plain; version=1.0.0"),
    ],
)
async def test_a_scrape_is_in_the_format_that_is_asked_for(accept: str, kind: str) -> None:
    async with serve(settings=build_settings()) as site:
        answer = await site.http.get("/metrics", headers={"accept": accept} if accept else None)
        found = await scrape(site.http, accept=accept)
    assert answer.headers["content-type"].startswith(kind)
    assert found.get("webop_acting") == 1
    assert answer.text.endswith("# EOF\n") == kind.startswith("application/")


async def test_reviews_are_counted_by_webhook_and_their_rejections_by_reason() -> None:
    @webop.on.validate("kopfexamples", id="check")
    async def check(spec: Any, **_: Any) -> None:
        if "wrong" in spec:
            raise webop.AdmissionError("no")
        if "broken" in spec:
            raise ValueError("oops")
        if "slow" in spec:
            await asyncio.sleep(60)

    settings = build_settings(admission={"max_body": 10_000})
    async with serve(settings=settings) as site:
        await site.review(path="/check")
        await site.review()
        for spec in ({"wrong": 1}, {"wrong": 2}, {"broken": 1}):
            await site.review(build_object(spec), path="/check")
        late = await site.post(build_review(build_object({"slow": 1})), "/check?timeout=1s")
        for path in ("/secret-name", "/other-name"):
            await site.post(build_review(), path)
        await site.post({"x": "y"}, "/check")
        await site.post({"x": "y" * 20_000}, "/check")
        found = await scrape(site.http)
    assert late.status_code == 504
    counts = {
        (sample.labels["webhook"], sample.labels["reason"]): sample.value
        for sample in found.families["webop_webhook_rejections"].samples
        if sample.value
    }
    assert counts == {
        ("check", "denied"): 2,
        ("check", "error"): 1,
        ("check", "timeout"): 1,
        ("(unknown)", "unknown_webhook"): 2,
        ("check", "malformed"): 1,
        ("check", "too_large"): 1,
    }
    latency = "webop_webhook_latency_seconds"
    assert found.get(f"{latency}_count", webhook="check") == 7
    assert found.get(f"{latency}_count", webhook="(all)") == 1
    assert found.get(f"{latency}_bucket", webhook="check", le="60.0") == 7
    assert 0.5 < found.get(f"{latency}_sum", webhook="check") < 2
    assert "secret-name" not in found.text
    calls = {"handler": "check", "type": "webhook"}
    outcomes = {
        outcome: found.get("webop_handler_calls_total", **calls, outcome=outcome)
        for outcome in ("success", "denied", "failure", "cancelled")
    }
    assert outcomes == {"success": 2, "denied": 2, "failure": 1, "cancelled": 1}
    assert found.get("webop_handler_duration_seconds_count", **calls) == 6


async def test_what_alerts_count_begins_at_zero() -> None:
    webop.on.validate("kopfexamples", id="check")(lambda **_: None)
    webop.on.create("kopfexamples", id="create")(lambda **_: None)
    async with serve(settings=build_settings()) as site:
        found = await scrape(site.http)
    calls = {
        (sample.labels["handler"], sample.labels["outcome"]): sample.value
        for sample in found.families["webop_handler_calls"].samples
    }
    rejections = {
        (sample.labels["webhook"], sample.labels["reason"]): sample.value
        for sample in found.families["webop_webhook_rejections"].samples
    }
    assert calls["create", "failure"] == calls["create", "retry"] == 0
    assert calls["check", "failure"] == calls["check", "denied"] == 0
    assert rejections["check", "timeout"] == rejections["check", "error"] == 0


async def test_sync_handlers_that_wait_for_a_thread_are_seen() -> None:
    released = threading.Event()

    @webop.on.validate("kopfexamples", id="check")
    def check(**_: Any) -> None:
        released.wait(30)

    settings = build_settings(admission={"max_workers": 1})
    async with serve(settings=settings) as site, asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(site.review(path="/check"))
        queued = "webop_threads_queued"
        found = await scrape_until(
            lambda found: found.get(queued, pool="admission") == 2, site.http
        )
        released.set()
    assert found.get("webop_threads", pool="admission") == 1
    assert found.get("webop_threads_busy", pool="admission") == 1
    assert found.get("webop_threads_busy", pool="handlers") == 0


async def test_a_handler_that_blocks_the_event_loop_shows_in_its_lag() -> None:
    @webop.on.validate("kopfexamples")
    async def block(**_: Any) -> None:
        time.sleep(0.8)  # noqa: ASYNC251  this is what is to be seen

    lag = "webop_event_loop_lag_seconds"
    async with serve(settings=build_settings()) as site:
        await site.review()
        found = await scrape_until(lambda found: found.get(f"{lag}_count"), site.http)
    late = found.get(f"{lag}_count") - found.get(f"{lag}_bucket", le="0.1")
    assert late == 1


async def test_two_operators_in_one_process_count_for_themselves() -> None:
    sites = []
    async with contextlib.AsyncExitStack() as stack:
        for name in ("one", "two"):
            registry = webop.OperatorRegistry()
            webop.on.validate("kopfexamples", id=name, registry=registry)(lambda **_: None)
            settings = build_settings()
            sites.append(
                await stack.enter_async_context(serve(registry=registry, settings=settings))
            )
        await sites[0].review()
        one, two = [await scrape(site.http) for site in sites]
    assert one.get("webop_handler_calls_total", handler="one") == 1
    assert one.get("webop_handler_calls_total", handler="two") == 0
    assert two.get("webop_handler_calls_total") == 0
    assert two.get("webop_webhook_requests_in_flight") == 0


@pytest.fixture
def orders() -> Iterator[prometheus_client.Gauge]:
    """A metric of the user's own."""
    gauge = prometheus_client.Gauge("orders", "Orders that are open.")
    yield gauge
    prometheus_client.REGISTRY.unregister(gauge)


async def test_metrics_of_the_users_own_are_scraped_too_and_hide_nothing_if_they_fail(
    orders: prometheus_client.Gauge, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> float:
        raise RuntimeError("no database")

    async with serve(settings=build_settings()) as site:
        orders.set(3)
        assert (await scrape(site.http, accept=OPENMETRICS)).get("orders") == 3
        orders.set_function(fail)
        found = await scrape(site.http)
    assert found.get("webop_ready") == 1
    assert "A collector in the registry of prometheus_client has failed" in caplog.text


async def test_two_hundred_scrapers_share_few_scrapes_and_a_tenth_of_the_event_loop(
    orders: prometheus_client.Gauge,
) -> None:
    collections: list[int] = []

    def collect() -> float:
        time.sleep(0.02)  # an expensive scrape
        collections.append(len(collections))
        return 0.0

    orders.set_function(collect)
    accepts = ["", OPENMETRICS, *(f"text/plain;version=1.{number}" for number in range(198))]
    async with serve(settings=build_settings()) as site:
        began = time.monotonic()
        await asyncio.gather(
            *(site.http.get("/metrics", headers={"accept": accept}) for accept in accepts)
        )
        took = time.monotonic() - began
    assert 2 <= len(collections) <= 8
    assert took > (len(collections) - 1) * 0.2


async def test_the_port_of_the_probes_has_metrics_only_if_they_are_asked_for() -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    async with operate(liveness_endpoint=f"{url}/healthz") as http:
        await wait_listening(http, f"{url}/livez")
        assert (await http.get(f"{url}/healthz")).json() == {"x": "fine"}
        assert (await http.get(f"{url}/metrics")).status_code == 404


PORT = "http://localhost:8080"


@pytest.mark.feature("PRB-02")
@rows(
    ("endpoints", "said"),
    [
        ({"liveness": "ftp://localhost/x"}, "ftp://localhost/x.*http://"),
        ({"metrics": f"{PORT}/x", "liveness": f"{PORT}/x"}, "is also the liveness endpoint"),
        ({"metrics": f"{PORT}/ui"}, f"status endpoint {PORT}/ui is also the metrics endpoint"),
    ],
)
async def test_a_wrong_endpoint_is_named(endpoints: Any, said: str) -> None:
    options: Any = {f"{name}_endpoint": url for name, url in endpoints.items()}
    with pytest.raises(ConfigurationError, match=said):
        await webop.operator(registry=webop.OperatorRegistry(), clusterwide=True, **options)
