"""What is scraped of an operator at work on a real API server, and who relies on the names."""

from __future__ import annotations

import asyncio
import json
import re
import time
from functools import partial
from typing import Any

import httpx
import pytest
import yaml

import webop
from tests.kit.leases import hold_lease
from tests.kit.operators import Objects, RunOperator, build_settings
from tests.kit.pages import ROOT
from tests.kit.reviews import post_review
from tests.kit.scrapes import OPENMETRICS, Scrape, scrape, scrape_until
from webop.controlplane.cluster_client import find_free_port
from webop.monitoring.metrics import DEFINITIONS
from webop.objects.shards import find_shard

MONITORING = ROOT / "manifests" / "monitoring"
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}
# Of prometheus-client and of Prometheus itself.
FOREIGN = {"process_resident_memory_bytes", "process_cpu_seconds_total", "up"}

SHARDS = {
    *("webop_shards_owned", "webop_shards_unowned", "webop_shard_moves_total"),
    *("webop_shard_handler_seconds_total", "webop_canary_failed"),
}

_NAME = re.compile(r"\b(?:webop|rest_client|leader_election|process)_\w+")


@pytest.fixture
def busy() -> None:  # noqa: C901  a list
    @webop.on.create("widgets", id="create")
    async def create(spec: Any, **_: Any) -> None:
        for item in spec.get("items", ()):
            webop.register(id=item, fn=handle_item)

    async def handle_item(**_: Any) -> None: ...

    @webop.on.create("widgets", id="flaky", labels={"flaky": "yes"})
    async def flake(retry: int, **_: Any) -> None:
        if not retry:
            raise webop.TemporaryError("not yet", delay=0.01)

    @webop.on.create("widgets", id="hopeless", labels={"hopeless": "yes"})
    async def give_up(**_: Any) -> None:
        raise webop.PermanentError("never")

    @webop.on.create("widgets", id="long", labels={"long": "yes"})
    async def sleep(**_: Any) -> None:
        await asyncio.sleep(60)

    @webop.on.event("widgets", id="spy", labels={"flaky": "yes"})
    async def spy(**_: Any) -> None:
        raise ValueError("ignored")

    @webop.timer("widgets", id="tick", labels={"ticks": "yes"}, interval=30)
    def tick(**_: Any) -> None: ...

    @webop.index("widgets", id="names")
    async def index(name: str, **_: Any) -> dict[str, str]:
        return {name: "secret-value"}

    @webop.on.validate("widgets", id="check")
    async def check(spec: Any, **_: Any) -> None:
        if spec:
            raise webop.AdmissionError("no")


@pytest.mark.usefixtures("busy")
async def test_a_scrape_shows_what_the_operator_does_and_all_names_in_use_are_in_it(
    run_operator: RunOperator, objects: Objects
) -> None:
    kind, hook = objects.resource.plural_name, find_free_port()
    server = webop.WebhookServer(addr="127.0.0.1", port=hook)
    lease = {"lease_name": "metrics", "lease_namespace": objects.namespace}
    settings = build_settings(
        leadership=lease, admission={"server": server}, batching={"exit_timeout": 0}
    )
    for number in range(40):  # more than there are workers
        await objects.create(f"widget-{number}", {})
    url = f"http://127.0.0.1:{find_free_port()}/metrics"
    async with (
        run_operator(settings, metrics_endpoint=url),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        await scrape_until(lambda found: found.get("webop_ready"), http, url)
        await objects.create("one", {"items": ["secret-a", "secret-b"]})
        labels = {"flaky": "yes", "hopeless": "yes", "ticks": "yes"}
        await objects.create("two", {"secret": "secret-c"}, labels=labels)
        await objects.create("three", {}, labels={"long": "yes"})
        for spec in ({}, {"field": 1}):
            assert (await post_review(hook, spec))["allowed"] is not bool(spec)

        def is_done(found: Scrape) -> object:
            ticks = found.get("webop_handler_calls_total", handler="tick", outcome="success")
            states = ("idle", "working")
            counts = [found.get("webop_objects", resource=kind, state=state) for state in states]
            lags = found.get("webop_event_loop_lag_seconds_count")
            return counts == [42, 1] and ticks and lags

        found = await scrape_until(is_done, http, url)
        again = await scrape(http, url, accept=OPENMETRICS)

    calls = {
        (sample.labels["handler"], sample.labels["type"], sample.labels["outcome"]): sample.value
        for sample in found.families["webop_handler_calls"].samples
    }
    expected = {
        ("create", "change", "success"): 43,
        ("create/*", "change", "success"): 2,
        ("flaky", "change", "retry"): 1,
        ("flaky", "change", "success"): 1,
        ("hopeless", "change", "failure"): 1,
        ("tick", "timer", "success"): 1,
        ("check", "webhook", "success"): 1,
        ("check", "webhook", "denied"): 1,
    }
    assert {key: calls.get(key, 0) for key in expected} == expected
    assert calls["spy", "event", "ignored"] >= 1
    assert calls["names", "index", "success"] >= 43
    assert 0 < found.get("webop_objects_oldest_seconds", resource=kind, state="working") < 60
    assert found.get("webop_objects_oldest_seconds", resource=kind, state="waiting") == 0
    assert found.get("webop_watches", resource=kind, state="watching") == 1
    assert 0 < found.get("webop_watch_age_seconds", resource=kind) < 60
    assert found.get("rest_client_requests_total", method="PATCH", code="200") >= 43
    assert found.get("rest_client_request_duration_seconds_count", verb="WATCH") >= 1
    assert found.get("leader_election_master_status", name="metrics") == 1
    assert found.get("webop_acting") == 1
    expiry = found.get("webop_webhook_certificate_expiration_timestamp_seconds")
    assert expiry > time.time() + 3600
    assert "secret" not in found.text
    assert objects.namespace not in found.text
    assert "widget-" not in found.text
    assert found.names - again.names <= {"python_gc_objects_collected"}

    defined = {
        item.name + suffix for item in DEFINITIONS for suffix in SUFFIXES.get(item.type, ("",))
    }
    assert defined - found.names == {"webop_watch_restarts_total", *SHARDS}  # none has ended yet
    assert read_used_names() <= defined | FOREIGN
    assert FOREIGN - found.names == {"up"}


async def test_watches_that_end_and_that_fail_are_counted_apart(
    run_operator: RunOperator, objects: Objects
) -> None:
    webop.on.event("widgets")(lambda **_: None)
    settings = build_settings(watching={"client_timeout": 1.2})
    url = f"http://127.0.0.1:{find_free_port()}/metrics"
    kind = objects.resource.plural_name
    async with (
        run_operator(settings, metrics_endpoint=url),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        found = await scrape_until(
            lambda found: found.get("webop_watch_restarts_total", resource=kind), http, url
        )
    assert found.get("webop_watch_restarts_total", resource=kind, reason="failed") == 0


async def test_replicas_with_shards_say_what_they_own_and_which_shards_take_time(
    run_operator: RunOperator, objects: Objects
) -> None:
    @webop.on.create("widgets", id="create")
    async def create(**_: Any) -> None:
        await asyncio.sleep(0.05)

    def build(name: str) -> dict[str, Any]:
        lease = {"lease_name": "team", "lease_namespace": objects.namespace}
        settings = build_settings(leadership={**lease, "sharded": True, "retry_period": 0.1})
        url = f"http://127.0.0.1:{find_free_port()}/metrics"
        return {"settings": settings, "identity": name, "beside": True, "metrics_endpoint": url}

    first, second = build("first"), build("second")
    async with run_operator(**first), httpx.AsyncClient(trust_env=False) as http:

        def owns(count: int, found: Scrape) -> bool:
            # A shard that moves is without an owner for a moment.
            owned, unowned = (found.get(f"webop_shards_{it}") for it in ("owned", "unowned"))
            return (owned, unowned) == (count, 0)

        url = first["metrics_endpoint"]
        alone = await scrape_until(partial(owns, 64), http, url)
        assert get_moves(alone) == (64, 0)
        assert SHARDS - alone.names <= {"webop_shard_handler_seconds_total"}
        meta = (await objects.make("one"))["metadata"]
        shard = str(find_shard(meta["uid"]))
        async with run_operator(**second):
            half = await scrape_until(partial(owns, 32), http, url)
            other = await scrape_until(partial(owns, 32), http, second["metrics_endpoint"])
        both = await scrape_until(partial(owns, 64), http, url)
    assert half.get("webop_shard_handler_seconds_total", shard=shard) >= 0.05
    assert (get_moves(half), get_moves(other)) == ((64, 32), (32, 0))
    assert get_moves(both) == (96, 32)
    held = [found.get("leader_election_master_status", name=name) for found in (half, other)
            for name in ("team-member-00", "team-member-01")]  # fmt: skip
    assert held == [1, 0, 0, 1]


def get_moves(found: Scrape) -> tuple[float, float]:
    gained, given = (
        found.get("webop_shard_moves_total", direction=direction)
        for direction in ("gained", "given")
    )
    return gained, given


@pytest.mark.parametrize("sharded", [False, True])
async def test_a_replica_that_waits_for_a_leader_is_scraped_as_such(
    run_operator: RunOperator, objects: Objects, *, sharded: bool
) -> None:
    """With shards, all of these are without an owner."""
    webop.on.create("widgets")(lambda **_: None)
    await hold_lease(objects.client, objects.namespace, "team")
    lease = {"lease_name": "team", "lease_namespace": objects.namespace, "sharded": sharded}
    url = f"http://127.0.0.1:{find_free_port()}/metrics"
    sign = "webop_shards_unowned" if sharded else "webop_ready"
    async with (
        run_operator(build_settings(leadership=lease), metrics_endpoint=url),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        found = await scrape_until(lambda found: found.get(sign), http, url)
    if sharded:
        assert (found.get("webop_shards_unowned"), found.get("webop_shards_owned")) == (64, 0)
    else:
        assert found.get("webop_acting") == 0
        assert "leader_election_master_status" in found.names
        assert found.get("leader_election_master_status", name="team") == 0


def read_used_names() -> set[str]:
    """Return the metrics that the alerts and the dashboard are made of."""
    (rules,) = yaml.safe_load_all((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
    texts = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    texts += [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    assert len(texts) > 20
    return {name for text in texts for name in _NAME.findall(text)}
