"""Keeping webhook configurations while the API server has its problems."""

from __future__ import annotations

import asyncio
import datetime as dt
import time

import httpx
import pytest

import webop
from tests.kit.virtual_time import in_virtual_time
from tests.kit.waiting import eventually
from tests.unit.admission.fake_api_server import (
    KEX,
    LOOK,
    MUTATING,
    PODS,
    VALIDATING,
    FailingServer,
    manage,
)
from webop.admission.configurations.replica_agreement import PREFIX, ReplicaRecord, follow
from webop.errors import APIForbiddenError, APIUnprocessableError, ConfigurationError


@pytest.fixture
def server() -> FailingServer:
    made = FailingServer()
    made.gate.set()
    return made


@pytest.fixture(autouse=True)
def handlers() -> None:
    webop.on.validate("kopfexamples", id="v")(lambda **_: None)
    webop.on.validate("kopfexamples", id="p", persistent=True)(lambda **_: None)


@pytest.mark.feature("ADM-41", "ADM-43")
async def test_a_configuration_is_read_by_a_patch_and_created_if_there_is_something_for_it(
    server: FailingServer,
) -> None:
    async with manage(server) as managing:
        await managing.wait_applied()
    created, is_ready = [*LOOK, f"POST {VALIDATING}"], [*LOOK, f"PATCH {VALIDATING}"]
    assert server.requests == created + is_ready
    assert server.get_names() == {VALIDATING: ["v", "p"]}


async def test_nothing_is_sent_when_nothing_changes(server: FailingServer) -> None:
    async with manage(server) as managing:
        await managing.wait_applied()
        server.requests.clear()
        managing.operator.context.cluster_view.update([KEX])
        managing.manager.announce({"url": "https://host"})
        managing.operator.context.cluster_view.update([])
        await eventually(lambda: server.get_names() == {VALIDATING: []})
    assert server.requests == [*LOOK, f"PATCH {VALIDATING}"]


@pytest.mark.parametrize("failure", [500, 503, 429, httpx.ConnectError("No way.")])
@in_virtual_time
async def test_problems_of_the_api_server_are_waited_out(
    server: FailingServer, failure: int | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    server.failures.append(failure)
    async with manage(server) as managing:
        await eventually(lambda: managing.manager.problem)
        assert not managing.manager.is_applied.is_set()
        await managing.wait_applied()
        assert managing.manager.problem == ""
    assert server.get_names() == {VALIDATING: ["v", "p"]}
    assert "Cannot write the webhook configurations" in caplog.text


async def test_a_refusal_of_what_is_configured_is_an_error(server: FailingServer) -> None:
    server.failures.append(422)
    async with manage(server) as managing:
        await asyncio.wait([managing.task])
        assert isinstance(managing.task.exception(), APIUnprocessableError)


@pytest.mark.feature("ADM-43")
async def test_a_refusal_for_lack_of_permissions_shows_the_rule(server: FailingServer) -> None:
    server.failures.append(403)
    async with manage(server) as managing:
        await asyncio.wait([managing.task])
        error = managing.task.exception()
    assert isinstance(error, APIForbiddenError)
    assert "Grant the verb 'patch' on 'validatingwebhookconfigurations'" in str(error)
    assert "resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations]" in str(
        error
    )
    assert "verbs: [create]}, {" in str(error)
    assert "resourceNames: [auto.kopf.dev], verbs: [patch]}" in str(error)


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
    assert server.get_names() == {VALIDATING: []}
    assert "Cannot update the webhook configurations" in caplog.text


@pytest.mark.parametrize(
    "config", [{}, {"url": "https://host", "caBundle": "!"}, {"url": "x", "service": {"name": "y"}}]
)
async def test_a_config_that_is_not_usable_is_an_error(
    server: FailingServer, config: webop.WebhookClientConfig
) -> None:
    async with manage(server, config or {"caBundle": None}) as managing:
        await asyncio.wait([managing.task])
        assert isinstance(managing.task.exception(), ConfigurationError)


async def test_another_process_that_creates_it_at_the_same_time_is_no_problem(
    server: FailingServer,
) -> None:
    server.failures += [404, 404, 409]
    server.put(VALIDATING, [])
    async with manage(server) as managing:
        await managing.wait_applied()
    assert server.requests == [
        *(*LOOK, f"POST {VALIDATING}"),
        *(*LOOK, f"PATCH {VALIDATING}"),
        *(*LOOK, f"PATCH {VALIDATING}"),  # it is ready
    ]
    assert server.get_names() == {VALIDATING: ["v", "p"]}


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
    assert server.get_names() == {VALIDATING: ["v", "p"], MUTATING: ["m"]}


@pytest.mark.feature("ADM-47")
async def test_what_is_on_its_way_does_not_come_back_after_the_withdrawal(
    server: FailingServer,
) -> None:
    server.gate.clear()
    server.put(VALIDATING, [])
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
    assert server.get_names() == {VALIDATING: ["p"]}


async def test_a_replica_that_has_withdrawn_does_not_keep_the_event_loop_busy(
    server: FailingServer,
) -> None:
    async with manage(server, replica_lifetime=0.3) as managing:
        await managing.wait_applied()
        await managing.manager.withdraw(is_asked=True)
        await asyncio.sleep(0.2)  # its next check would be due
        spent = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - spent < 0.1


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
    server: FailingServer,
    resources: list[webop.Resource],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with manage(server) as managing:
        await managing.wait_applied()
        for _ in range(3):
            managing.operator.context.cluster_view.update(resources)
            await eventually(lambda: server.get_names() == {VALIDATING: []})
    assert caplog.text.count(reason) == (1 if "'v'" in reason else 2)


@pytest.mark.parametrize("status", [403, 404])
async def test_an_account_that_is_not_told_cannot_be_exempted(
    server: FailingServer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.review = status
    async with manage(server, exempt_account=True) as managing:
        await managing.wait_applied()
    assert "matchConditions" not in server.stored[VALIDATING]["webhooks"][0]
    assert "settings.admission.exempt_account has no effect" in caplog.text


@pytest.mark.parametrize("has_others", [False, True])
async def test_a_new_certificate_delays_the_readiness_if_other_replicas_serve(
    server: FailingServer, has_others: bool
) -> None:
    if has_others:
        record = ReplicaRecord(
            identity="x", since=follow(), renewed=follow(), address={"url": "https://host"}
        )
        server.put(VALIDATING, [], {f"{PREFIX}x": record.encode()})
    async with manage(server) as managing:
        webhooks = managing.operator.webhooks
        await managing.wait_applied()
        webhooks.hosting.is_settling = True
        doubts = [why for why in webhooks.list_obstacles() if "may not trust" in why]
        assert bool(doubts) is has_others


async def test_a_replica_with_an_expired_certificate_is_not_ready(server: FailingServer) -> None:
    async with manage(server) as managing:
        webhooks, now = managing.operator.webhooks, dt.datetime.now(dt.UTC)
        await managing.wait_applied()
        for days, is_expired in ((1, False), (-1, True)):
            webhooks.hosting.expiry = now + dt.timedelta(days=days)
            doubts = [why for why in webhooks.list_obstacles() if "has expired" in why]
            assert bool(doubts) is is_expired
