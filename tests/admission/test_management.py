"""Keeping webhook configurations while the API server has its problems."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

import webop
from tests.operating import eventually
from webop.admission.management import ConfigurationManager
from webop.client.api import Client
from webop.errors import APIUnprocessableError
from webop.running import Operator, OperatorOptions

Json = dict[str, Any]
KEX = webop.Resource("kopf.dev", "v1", "kopfexamples")
VALIDATING = "validatingwebhookconfigurations"
MUTATING = "mutatingwebhookconfigurations"


@dataclass
class FakeConfigurations:
    """An API server that knows webhook configurations, and can be told to fail."""

    stored: dict[str, list[Json]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    failures: list[int | Exception] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: httpx.Request) -> httpx.Response:
        plural = next(p for p in (VALIDATING, MUTATING) if p in request.url.path)
        self.requests.append(f"{request.method} {plural}")
        await self.gate.wait()
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return answer_status(failure)
        if request.method == "PATCH" and plural not in self.stored:
            return answer_status(404)
        self.stored[plural] = json.loads(await request.aread())["webhooks"]
        return httpx.Response(200, json={})

    def get_names(self) -> dict[str, list[str]]:
        return {
            plural: [webhook["name"].removesuffix(".auto.kopf.dev") for webhook in webhooks]
            for plural, webhooks in self.stored.items()
        }


def answer_status(code: int) -> httpx.Response:
    details = {"name": "auto.kopf.dev"}
    body = {"kind": "Status", "message": "Not now.", "code": code, "details": details}
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


@contextlib.asynccontextmanager
async def manage(
    registry: webop.OperatorRegistry, server: FakeConfigurations
) -> AsyncIterator[Managing]:
    """Run a manager that knows the resource and where the webhooks are served."""
    settings = webop.OperatorSettings()
    settings.admission.managed = "auto.kopf.dev"
    settings.networking.error_backoffs = ()
    operator = Operator(OperatorOptions(registry=registry, settings=settings))
    vault = webop.Vault({"x": webop.ConnectionInfo(server="http://api")})
    factory = lambda _: httpx.MockTransport(server.handle)  # noqa: E731
    async with Client(vault, settings.networking, transport_factory=factory) as client:
        manager = ConfigurationManager(operator.context, client)
        task = asyncio.create_task(manager.run())
        operator.context.insights.update([KEX])
        manager.announce({"url": "https://host"})
        try:
            yield Managing(manager, task, operator)
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.fixture
def server() -> FakeConfigurations:
    made = FakeConfigurations()
    made.gate.set()
    return made


@pytest.fixture(autouse=True)
def handlers(registry: webop.OperatorRegistry) -> None:
    webop.on.validate("kopfexamples", id="v", registry=registry)(lambda **_: None)
    webop.on.validate("kopfexamples", id="p", persistent=True, registry=registry)(lambda **_: None)


@pytest.mark.feature("ADM-41", "ADM-43")
async def test_a_configuration_is_patched_or_else_created_and_an_empty_one_is_not_created(
    registry: webop.OperatorRegistry, server: FakeConfigurations
) -> None:
    async with manage(registry, server) as managing:
        await managing.wait_applied()
    assert server.requests == [f"PATCH {VALIDATING}", f"POST {VALIDATING}", f"PATCH {MUTATING}"]
    assert server.get_names() == {VALIDATING: ["v", "p"]}


async def test_nothing_is_sent_when_nothing_changes(
    registry: webop.OperatorRegistry, server: FakeConfigurations
) -> None:
    async with manage(registry, server) as managing:
        await managing.wait_applied()
        server.requests.clear()
        managing.operator.context.insights.update([KEX])
        managing.manager.announce({"url": "https://host"})
        managing.operator.context.insights.update([])
        await eventually(lambda: server.get_names() == {VALIDATING: []})
    assert server.requests == [f"PATCH {VALIDATING}"]


@pytest.mark.parametrize("failure", [500, 503, 429, httpx.ConnectError("No way.")])
async def test_problems_of_the_api_server_are_waited_out(
    registry: webop.OperatorRegistry,
    server: FakeConfigurations,
    failure: int | Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.failures.append(failure)
    async with manage(registry, server) as managing:
        await managing.wait_applied()
    assert server.get_names() == {VALIDATING: ["v", "p"]}
    assert "The webhooks are not configured yet, to be retried" in caplog.text


async def test_a_refusal_of_what_is_configured_is_an_error(
    registry: webop.OperatorRegistry, server: FakeConfigurations
) -> None:
    server.failures.append(422)
    async with manage(registry, server) as managing:
        await asyncio.wait([managing.task])
        assert isinstance(managing.task.exception(), APIUnprocessableError)


async def test_another_process_that_creates_it_at_the_same_time_is_no_problem(
    registry: webop.OperatorRegistry, server: FakeConfigurations
) -> None:
    server.failures += [404, 409]
    server.stored[VALIDATING] = []
    async with manage(registry, server) as managing:
        await managing.wait_applied()
    assert server.requests[:3] == [
        f"PATCH {VALIDATING}",
        f"POST {VALIDATING}",
        f"PATCH {VALIDATING}",
    ]
    assert server.get_names() == {VALIDATING: ["v", "p"]}


@pytest.mark.feature("ADM-47")
async def test_what_is_on_its_way_does_not_come_back_after_the_withdrawal(
    registry: webop.OperatorRegistry, server: FakeConfigurations
) -> None:
    server.gate.clear()
    server.stored[VALIDATING] = []
    async with manage(registry, server) as managing:
        await eventually(lambda: server.requests)
        withdrawal = asyncio.create_task(managing.manager.withdraw())
        managing.manager.announce({"url": "https://elsewhere"})
        await asyncio.sleep(0)
        server.gate.set()
        await withdrawal
        managing.manager.announce({"url": "https://anywhere"})
        managing.operator.context.insights.update([KEX, webop.Resource("", "v1", "pods")])
        for _ in range(100):
            await asyncio.sleep(0)
    assert server.get_names() == {VALIDATING: ["p"]}


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ([], "Webhook 'v' is not in the configurations: kopfexamples is not in the cluster yet."),
        (
            [KEX, webop.Resource("example.com", "v1", "kopfexamples")],
            "kopfexamples is ambiguous: kopfexamples.v1.example.com, kopfexamples.v1.kopf.dev.",
        ),
    ],
)
async def test_handlers_without_a_webhook_are_told_of_once(
    registry: webop.OperatorRegistry,
    server: FakeConfigurations,
    resources: list[webop.Resource],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with manage(registry, server) as managing:
        await managing.wait_applied()
        for _ in range(3):
            managing.operator.context.insights.update(resources)
            await eventually(lambda: server.get_names() == {VALIDATING: []})
    assert caplog.text.count(reason) == (1 if "'v'" in reason else 2)
