"""Keeping webhook configurations while the API server has its problems."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

import webop
from tests.kit.httpx_client import build_request, build_response, connect
from tests.kit.virtual_time import in_virtual_time
from tests.kit.waiting import eventually
from tests.unit.testing.simulated.operators import Thing
from webop.admission.configurations.management import ConfigurationManager
from webop.admission.configurations.replica_agreement import PREFIX, ReplicaRecord, follow
from webop.errors import APIForbiddenError, APIUnprocessableError, ConfigurationError
from webop.runtime.operator import Operator, OperatorOptions
from webop.testing import SimulatedCluster, simulated
from webop.testing.apiserver import Cluster

Json = dict[str, Any]
KEX = webop.Resource("kopf.dev", "v1", "kopfexamples")
PODS = webop.Resource("", "v1", "pods", namespaced=True)
VALIDATING = "validatingwebhookconfigurations"
MUTATING = "mutatingwebhookconfigurations"
GROUP = "admissionregistration.k8s.io"
NAME = "auto.kopf.dev"


# ---- whole operators


def declare() -> None:
    @webop.on.startup()
    def configure(settings: webop.OperatorSettings, **_: Any) -> None:
        settings.admission.managed = NAME

    webop.on.validate(Thing, id="v")(lambda **_: None)
    webop.on.validate(Thing, id="p", persistent=True)(lambda **_: None)


def get_names(cluster: SimulatedCluster | Cluster) -> dict[str, list[str]]:
    """Return the names of the webhooks in each configuration."""
    found: dict[str, list[str]] = {}
    for kind in (VALIDATING, MUTATING):
        if isinstance(cluster, Cluster):
            stored = [*cluster.get_objects(f"{kind}.{GROUP}").values()]
        else:
            stored = cluster.list(kind)
        for raw in stored:
            names = [webhook["name"] for webhook in raw.get("webhooks", [])]
            found[kind] = [name.removesuffix(f".{NAME}") for name in names]
    return found


@pytest.mark.feature("ADM-41", "ADM-43", "ADM-47")
@simulated(declare, given=[Thing])
def test_a_configuration_is_created_if_there_is_something_for_it_and_emptied_at_the_end(
    cluster: SimulatedCluster,
) -> None:
    assert get_names(cluster) == {VALIDATING: ["v", "p"]}
    cluster.stop()
    assert get_names(cluster) == {VALIDATING: ["p"]}
    cluster.advance(hours=1)
    assert get_names(cluster) == {VALIDATING: ["p"]}


@pytest.mark.parametrize(
    ("method", "failure"),
    [
        *(("PATCH", {"status": status, "times": 9}) for status in (500, 503, 429, None)),
        ("PATCH", {"lost": True}),
        ("POST", {"status": 409}),  # another process creates it at the same time
    ],
)
def test_problems_of_the_api_server_are_waited_out(method: str, failure: Any) -> None:
    @simulated(declare, given=[Thing])
    def run(cluster: SimulatedCluster) -> None:
        cluster.stop()
        cluster.delete(VALIDATING, NAME)
        cluster.fail(method, VALIDATING, **failure)
        cluster.start()
        cluster.settle()
        assert get_names(cluster) == {VALIDATING: ["v", "p"]}

    run()


# ---- one manager


@dataclass
class FailingServer:
    """The API server of the simulation, which can be told to fail."""

    cluster: Cluster = field(
        default_factory=lambda: Cluster(lambda: dt.datetime.now(dt.UTC), random.Random(1))
    )
    requests: int = 0
    failures: list[int] = field(default_factory=list)
    review: int = 201
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    # The removal of mutating webhooks waits for the second event; the first tells that it does.
    removing: asyncio.Event = field(default_factory=asyncio.Event)
    removable: asyncio.Event | None = None

    async def handle(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        if "selfsubjectreviews" in request.url.path:
            return self._carry_out(request) if self.review == 201 else answer_status(self.review)
        self.requests += 1
        await self.gate.wait()
        is_removal = MUTATING in request.url.path and b'"webhooks":[]' in content
        if is_removal and self.removable is not None:
            self.removing.set()
            await self.removable.wait()
        return answer_status(self.failures.pop(0)) if self.failures else self._carry_out(request)

    def _carry_out(self, request: httpx.Request) -> httpx.Response:
        sent = build_request(request, "system:serviceaccount:ns:me")
        return build_response(self.cluster.handle(sent))

    def put(self, plural: str, annotations: Json | None = None) -> None:
        """Create a configuration."""
        body = {"metadata": {"name": NAME, "annotations": annotations or {}}, "webhooks": []}
        url = f"http://api/apis/{GROUP}/v1/{plural}"
        assert self._carry_out(httpx.Request("POST", url, json=body)).status_code == 201


def answer_status(code: int) -> httpx.Response:
    body = {"kind": "Status", "message": "Not now.", "code": code, "details": {"name": NAME}}
    return httpx.Response(code, json=body)


@dataclass
class Managing:
    """A manager at work."""

    manager: ConfigurationManager
    task: asyncio.Task[None]
    operator: Operator

    async def wait_applied(self) -> None:
        """Wait until the configurations are as they should be."""
        is_applied = self.manager.is_applied
        await eventually(lambda: self.task.done() or is_applied.is_set())
        assert not self.task.done(), self.task.exception()

    async def wait_failed(self) -> BaseException | None:
        await asyncio.wait([self.task])
        return self.task.exception()


@contextlib.asynccontextmanager
async def manage(
    server: FailingServer, config: webop.WebhookClientConfig | None = None, **admission: Any
) -> AsyncIterator[Managing]:
    """Run a manager that knows the resource and where the webhooks are served."""
    settings = webop.OperatorSettings()
    settings.admission.managed = NAME
    settings.networking.error_backoffs = ()
    for name, value in admission.items():
        setattr(settings.admission, name, value)
    operator = Operator(OperatorOptions(settings=settings))
    info = webop.ConnectionInfo(server="http://api", default_namespace="mine")
    async with connect(server.handle, settings.networking, webop.Vault({"x": info})) as client:
        manager = operator.webhooks.manager = ConfigurationManager(
            operator.context, client, lambda: True
        )
        task = asyncio.create_task(manager.run())
        operator.context.cluster_view.update([KEX])
        manager.announce(config or {"url": "https://host"})
        try:
            yield Managing(manager, task, operator)
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.fixture
def server() -> FailingServer:
    """A server, and handlers of the kind in the default registry."""
    webop.on.validate("kopfexamples", id="v")(lambda **_: None)
    webop.on.validate("kopfexamples", id="p", persistent=True)(lambda **_: None)
    made = FailingServer()
    made.gate.set()
    return made


@pytest.mark.feature("ADM-43")
async def test_refusals_are_errors_and_one_for_lack_of_permissions_shows_the_rule(
    server: FailingServer,
) -> None:
    server.failures.append(422)
    async with manage(server) as managing:
        assert isinstance(await managing.wait_failed(), APIUnprocessableError)
    server.failures.append(403)
    async with manage(server) as managing:
        error = await managing.wait_failed()
    assert isinstance(error, APIForbiddenError)
    for part in (
        "Grant the verb 'patch' on 'validatingwebhookconfigurations'",
        "resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]",
        "verbs: [create]}, {",
        "resourceNames: [auto.kopf.dev], verbs: [patch]}",
    ):
        assert part in str(error)


@pytest.mark.parametrize(
    "config",
    [
        {"caBundle": None},
        {"url": "https://host", "caBundle": "!"},
        {"url": "x", "service": {"name": "y"}},
    ],
)
async def test_a_config_that_is_not_usable_is_an_error(
    server: FailingServer, config: webop.WebhookClientConfig
) -> None:
    async with manage(server, config) as managing:
        assert isinstance(await managing.wait_failed(), ConfigurationError)


@in_virtual_time
async def test_a_replica_that_cannot_update_its_record_is_not_ready_but_goes_on(
    server: FailingServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with manage(server) as managing:
        await managing.wait_applied()
        server.failures.append(403)
        managing.operator.context.cluster_view.update([])
        await eventually(lambda: "HTTP 403" in managing.manager.problem)
        assert managing.manager.is_applied.is_set()
        assert managing.operator.webhooks.list_obstacles() != []
        await eventually(lambda: not managing.manager.problem)
    assert get_names(server.cluster) == {VALIDATING: []}
    assert "Cannot update the webhook configurations" in caplog.text


@pytest.mark.feature("ADM-47")
async def test_what_is_on_its_way_does_not_come_back_after_the_withdrawal(
    server: FailingServer,
) -> None:
    server.gate.clear()
    server.put(VALIDATING)
    async with manage(server) as managing:
        await eventually(lambda: server.requests)
        withdrawal = asyncio.create_task(managing.manager.withdraw(is_asked=True))
        managing.manager.announce({"url": "https://elsewhere"})
        await asyncio.sleep(0)
        server.gate.set()
        await withdrawal
        managing.manager.announce({"url": "https://anywhere"})
        managing.operator.context.cluster_view.update([KEX, PODS])
        for _ in range(100):
            await asyncio.sleep(0)
    assert get_names(server.cluster) == {VALIDATING: ["p"]}


@pytest.mark.feature("ADM-42")
async def test_one_that_comes_while_the_last_one_goes_keeps_its_mutating_webhooks(
    server: FailingServer,
) -> None:
    webop.on.mutate("kopfexamples", id="m")(lambda **_: None)
    async with manage(server) as old:
        await old.wait_applied()
        server.removable = asyncio.Event()
        leaving = asyncio.create_task(old.manager.withdraw(is_asked=True))
        await server.removing.wait()
        async with manage(server) as new:
            await new.wait_applied()
            server.removable.set()
            await leaving
    assert get_names(server.cluster) == {VALIDATING: ["v", "p"], MUTATING: ["m"]}


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ([], "webhook configurations: kopfexamples is not in the cluster yet."),
        (
            [KEX, webop.Resource("example.com", "v1", "kopfexamples")],
            "kopfexamples is ambiguous: kopfexamples.v1.example.com, kopfexamples.v1.kopf.dev.",
        ),
    ],
)
async def test_handlers_without_a_webhook_are_told_of_once(
    server: FailingServer, resources: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with manage(server) as managing:
        await managing.wait_applied()
        for _ in range(3):
            managing.operator.context.cluster_view.update(resources)
            await eventually(lambda: get_names(server.cluster) == {VALIDATING: []})
    assert caplog.text.count(reason) == 2  # for each of the two handlers


@pytest.mark.parametrize("status", [403, 404])
async def test_an_account_that_is_not_told_cannot_be_exempted(
    server: FailingServer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.review = status
    async with manage(server, exempt_account=True) as managing:
        await managing.wait_applied()
    (stored,) = server.cluster.get_objects(f"{VALIDATING}.{GROUP}").values()
    assert "matchConditions" not in stored["webhooks"][0]
    assert "settings.admission.exempt_account has no effect" in caplog.text


@pytest.mark.parametrize("has_others", [False, True])
async def test_a_new_or_expired_certificate_delays_the_readiness(
    server: FailingServer, has_others: bool
) -> None:
    if has_others:
        times: Json = {"since": follow(), "renewed": follow()}
        record = ReplicaRecord(identity="x", address={"url": "https://host"}, **times)
        server.put(VALIDATING, {f"{PREFIX}x": record.encode()})
    async with manage(server) as managing:
        webhooks, now = managing.operator.webhooks, dt.datetime.now(dt.UTC)
        await managing.wait_applied()
        webhooks.hosting.is_settling = True  # a new one, that API servers may not trust yet
        for days in (1, -1):
            webhooks.hosting.expiry = now + dt.timedelta(days=days)
            doubts = " ".join(webhooks.list_obstacles())
            assert ("may not trust" in doubts) is has_others
            assert ("has expired" in doubts) is (days < 0)
