"""Replicas that share webhook configurations on a real API server: they come, go and die."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.admission.managing import KINDS, Site, until
from tests.admission.replicating import Crew, define_crews, open_crew
from tests.operating import Kind, eventually
from webop.client.api import Client
from webop.handling.handlers import WebhookType
from webop.servers.certificates.certs import build_ca

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

VALIDATING, MUTATING = WebhookType.VALIDATING, WebhookType.MUTATING
_COUNT = 16  # of the tests here, at least


@pytest.fixture(scope="module")
def kinds(webop_cluster: LocalCluster) -> Iterator[Kind]:
    return define_crews(webop_cluster, "crate", _COUNT)


@pytest.fixture
async def crew(
    webop_cluster: LocalCluster, client: Client, webop_namespace: str, kinds: Iterator[Kind]
) -> AsyncIterator[Crew]:
    async with open_crew(webop_cluster, client, webop_namespace, next(kinds)) as crew:
        yield crew


@pytest.fixture
def site(crew: Crew) -> Site:
    return crew.site


async def get_contents(site: Site) -> list[Any]:
    """Return all webhooks of both configurations."""
    return [await site.get_webhooks(which) for which in KINDS]


@pytest.mark.feature("ADM-41", "ADM-47")
async def test_the_exit_of_one_of_two_changes_nothing_and_that_of_both_ends_it(
    crew: Crew, site: Site
) -> None:
    one = await crew.start("x", "~y")
    two = await crew.start("x", "~y")
    before = await get_contents(site)
    await one.leave()
    assert await get_contents(site) == before
    assert len(await site.get_records()) == 1
    assert not await crew.is_allowed("bad")
    await two.leave()
    assert await crew.is_clean()
    await crew.wait_allowed()


async def test_one_that_retires_hands_its_webhooks_over_but_the_last_one_keeps_them(
    crew: Crew, site: Site
) -> None:
    old = await crew.start("x", "old")
    new = await crew.start("x", "new")
    assert await site.has_names("x old")
    await old.manager.retire()
    await site.wait_for_names("x new")
    kind = site.objects.kind.resource
    assert new.manager.is_elsewhere("old", kind)
    assert not old.manager.is_alone
    assert not new.manager.is_elsewhere("old", dataclasses.replace(kind, plural="others"))
    assert not new.manager.is_elsewhere("unheard-of", kind)
    assert old.manager.is_elsewhere("unheard-of", kind)  # it does not look any more
    await old.leave()
    await new.manager.retire()
    assert new.manager.is_alone
    assert await site.has_names("x new")
    await new.leave()
    assert await crew.is_clean()


async def test_two_that_retire_at_the_same_time_keep_their_webhooks_until_they_exit(
    crew: Crew, site: Site
) -> None:
    one, two = [await crew.start("stays!", "goes") for _ in range(2)]
    await one.manager.retire()
    await two.manager.retire()
    assert await site.has_names("stays goes")
    await one.leave()
    await two.leave()
    assert await site.has_names("stays")


async def test_replicas_that_exit_at_the_same_moment_leave_nothing(crew: Crew, site: Site) -> None:
    for _ in range(20):
        starting = [crew.begin("x", "~y") for _ in range(2)]
        for member in starting:
            await member.wait_applied()
        assert await site.has_names("x", "y")
        await asyncio.gather(*(member.leave() for member in starting))
        assert await crew.is_clean()


async def test_five_replicas_can_come_and_go_all_at_once(crew: Crew, site: Site) -> None:
    members = [crew.begin("x", "z", "~y") for _ in range(5)]
    for member in members:
        await member.wait_applied()
    assert await site.has_names("x z", "y")
    assert len(await site.get_records(VALIDATING)) == 5
    assert len(await site.get_records(MUTATING)) == 5
    await asyncio.gather(*(member.leave() for member in members))
    assert await crew.is_clean()


async def test_one_that_comes_while_the_last_one_goes_keeps_its_webhooks(
    crew: Crew, site: Site
) -> None:
    for _ in range(10):
        old = await crew.start("x")
        new = crew.begin("x")
        await asyncio.gather(old.leave(), new.wait_applied())
        assert await site.has_names("x")
        assert len(await site.get_records()) == 1
        await new.leave()


async def test_a_killed_replica_counts_until_its_mark_is_dead(crew: Crew, site: Site) -> None:
    killed = await crew.start("x")
    other = await crew.start("x")
    await killed.kill()
    await other.leave()
    assert await site.has_names("x")  # nobody knows yet that it is dead
    assert not await crew.is_allowed("bad")


async def test_the_mark_of_a_killed_replica_is_removed_and_the_last_one_cleans_up(
    crew: Crew, site: Site
) -> None:
    killed = await crew.start("x", "mine", replica_lifetime=1.5, url="https://localhost:2")
    other = await crew.start("x", replica_lifetime=1.5)
    await killed.kill()

    async def is_alone() -> bool:
        return len(await site.get_records()) == 1

    await until(is_alone, "the end of the record")
    assert await site.has_names("x")
    await other.leave()
    assert await crew.is_clean()


@pytest.mark.feature("ADM-42")
async def test_a_rollout_adds_and_removes_webhooks_when_the_last_old_replica_goes(
    crew: Crew, site: Site
) -> None:
    olds = [await crew.start("same", "old") for _ in range(2)]
    async with crew.refuse():
        news = [await crew.start("same", "new", "~filled") for _ in range(2)]
        assert await site.has_names("same old")
        await olds[0].leave()
        assert await site.has_names("same old")
        await olds[1].leave()
        await site.wait_for_names("same new", "filled")
        await news[0].leave()
    await news[1].leave()
    assert await crew.is_clean()


async def test_a_handler_that_is_renamed_is_replaced_in_one_step(crew: Crew, site: Site) -> None:
    old = await crew.start("old", "~older")
    async with crew.refuse():
        new = await crew.start("new", "~newer")
        assert await site.has_names("old", "older")
        await old.leave()
        assert await site.has_names("new", "newer")
    await new.leave()
    assert await crew.is_clean()


async def test_what_waits_for_a_killed_replica_comes_when_it_is_dead(
    crew: Crew, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old = await crew.start("old", replica_lifetime=3.0)
    await crew.start("new", replica_lifetime=3.0)
    await old.kill()
    assert await site.has_names("old")
    assert f"before enabling them: new.{site.name}. (" in caplog.text
    await site.wait_for_names("new")
    await eventually(lambda: "All webhooks are enabled." in caplog.text)
    assert f"dead replicas from {KINDS[VALIDATING].plural}/{site.name}" in caplog.text


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


async def test_what_others_have_removed_is_restored_at_the_next_look(
    crew: Crew, site: Site
) -> None:
    for _ in range(2):
        await crew.start("x", "~y", replica_lifetime=1.5)
    await site.client.delete(KINDS[VALIDATING], None, site.name)
    await crew.tear(MUTATING)

    async def is_restored() -> bool:
        records = [len(await site.get_records(which)) for which in KINDS]
        return records == [2, 2] and await site.has_names("x", "y")

    await until(is_restored, "the restored configurations")


@pytest.mark.feature("ADM-42")
async def test_a_resource_that_comes_and_goes_does_so_for_all_replicas(
    crew: Crew, site: Site
) -> None:
    members = [await crew.start("x") for _ in range(3)]
    for member in members[:2]:
        member.know()
    await until(lambda: _has_targets(site, [0, 0, 1]), "the resource gone for two of them")
    assert await site.has_names("x")
    members[2].know()
    await site.wait_for_names("")
    for member in members[:2]:
        member.know(site.objects.resource)
    await until(lambda: _has_targets(site, [0, 1, 1]), "the resource known to two of them")
    assert await site.has_names("")
    members[2].know(site.objects.resource)
    await site.wait_for_names("x")


async def _has_targets(site: Site, counts: list[int]) -> bool:
    found = await site.client.get(KINDS[VALIDATING], None, site.name)
    annotations = found["metadata"]["annotations"].values()
    return sorted(text.count('"targets":["') for text in annotations) == counts


@pytest.mark.feature("ADM-64")
async def test_a_new_authority_is_confirmed_when_it_is_trusted_beside_the_old_one(
    crew: Crew, site: Site
) -> None:
    old, new = (build_ca(name).cert for name in ("old", "new"))
    both: webop.WebhookClientConfig = {
        "url": "https://localhost:1",
        "caBundle": base64.b64encode(old + new).decode(),
    }
    one = await crew.start("x", "~y", ca=base64.b64encode(old).decode())
    await crew.start("x", "~y", ca=base64.b64encode(old).decode())
    confirmation = asyncio.create_task(one.manager.confirm(both))
    one.manager.announce(both)
    async with asyncio.timeout(10):
        await confirmation
    for webhooks in await get_contents(site):
        bundle = base64.b64decode(webhooks[0]["clientConfig"]["caBundle"])
        assert bundle.count(b"BEGIN") == 2
        assert bundle.count(old.strip()) == bundle.count(new.strip()) == 1
