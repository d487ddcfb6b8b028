"""Replicas that share webhook configurations on a real API server: they come, go and die."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.kit.managed_webhooks import KINDS, Site
from tests.kit.waiting import eventually
from tests.kit.webhook_replicas import SERVICE, Crew
from webop.handlers.model import WebhookType

VALIDATING, MUTATING = WebhookType.VALIDATING, WebhookType.MUTATING


async def get_contents(site: Site) -> list[Any]:
    return [await site.get_webhooks(which) for which in KINDS]


@pytest.mark.feature("ADM-12")
@pytest.mark.parametrize("change", ["", "another pod", "another address"])
async def test_a_container_that_restarts_after_a_kill_takes_its_webhooks_over_at_once(
    crew: Crew, site: Site, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setenv("POD_ID", "operator-1")
    killed = await crew.start("x")
    await killed.kill()
    monkeypatch.setenv("POD_ID", "operator-2" if change == "another pod" else "operator-1")
    if change == "another address":  # another container of the pod
        other = crew.begin("y", url="https://localhost:2")
        await eventually(lambda: "operator-1 serves them at" in other.manager.problem)
    else:
        await crew.start("y")
    assert await site.has_names("x" if change else "y")
    assert len(await site.get_records()) == (2 if change == "another pod" else 1)


@pytest.mark.feature("ADM-11")
async def test_persistent_webhooks_stay_after_the_last_exit_until_nobody_has_their_handlers(
    crew: Crew, site: Site
) -> None:
    members = [await crew.start("stays!", "goes", "~fills!") for _ in range(2)]
    for member in members:
        await member.leave()
    assert await site.has_names("stays", "fills")
    assert await site.get_records() == []
    assert not await crew.is_allowed("any")
    next_version = await crew.start("other")
    assert await site.has_names("other")
    await next_version.leave()
    assert await crew.is_clean()


@pytest.mark.feature("ADM-41")
async def test_webhooks_of_other_frameworks_are_overwritten_and_the_rest_is_kept(
    crew: Crew, site: Site
) -> None:
    foreign = {
        "name": f"x.{site.name}",
        "sideEffects": "None",
        "clientConfig": {"service": {"name": "any", "namespace": "any"}},
        "admissionReviewVersions": ["v1"],
    }
    metadata = {"name": site.name, "annotations": {"kept": "yes"}}
    body = {"metadata": metadata, "webhooks": [foreign, {**foreign, "name": f"y.{site.name}"}]}
    await site.client.create(KINDS[VALIDATING], None, body)
    await crew.start("x")
    (webhook,) = await site.get_webhooks(VALIDATING) or []
    assert webhook["clientConfig"] == {"url": "https://localhost:1/x"}
    found = await site.client.get(KINDS[VALIDATING], None, site.name)
    assert found["metadata"]["annotations"]["kept"] == "yes"


async def test_a_replica_at_another_address_waits_unless_it_may_take_over(
    crew: Crew, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = await crew.start("x", replica_lifetime=1.5)
    before = await get_contents(site)
    other = crew.begin("y", url="https://localhost:2")
    await eventually(lambda: other.manager.problem)
    await other.manager.withdraw(is_asked=True)  # it has nothing to take along
    assert await get_contents(site) == before
    assert f"serves them at {SERVICE}." in caplog.text
    assert "--take-over" in caplog.text
    boss = await crew.start("y", url="https://localhost:2", take_over=True)
    assert await site.has_names("y")
    await eventually(lambda: "were taken over by" in caplog.text)
    assert "Waiting until all replicas serve the same webhooks" not in caplog.text
    second = await crew.start("x", replica_lifetime=1.5)  # a pod of the first one's Deployment
    await site.wait_for_names("x")
    await second.leave()
    await boss.leave()
    assert await site.has_names("x")
    handed = f" at {SERVICE}. If it does not run any more, remove them: "
    assert f"{handed}webop uninstall --managed {site.name}" in caplog.text
    await first.leave()
    assert await crew.is_clean()
