"""Replicas that share webhook configurations: what the API server lets them do, and asks them."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

import webop
from tests.kit.managed_webhooks import KINDS, Site
from tests.kit.rights import grant
from tests.kit.waiting import eventually
from tests.kit.webhook_replicas import Balancer, Crew
from webop.client.api import Client
from webop.client.auth.kubeconfig import read_kubeconfig
from webop.handlers.model import WebhookType

VALIDATING, MUTATING = WebhookType.VALIDATING, WebhookType.MUTATING


@pytest.fixture
async def restricted(site: Site) -> AsyncIterator[Client]:
    """A client of an account that may do what the manual asks for, and nothing else."""
    user = f"operator-{site.name}"
    for resource in KINDS.values():
        kind = f"{resource.plural}.{resource.group}"
        await grant(site.client, user, kind, "create,patch")
    info = read_kubeconfig([site.cluster.kubeconfig_for(user)])
    info = dataclasses.replace(info, default_namespace=site.objects.namespace)
    async with Client(webop.Vault({"x": info}), webop.OperatorSettings().networking) as client:
        yield client


@pytest.mark.parametrize("exempt", ["exempt_account", "exempt_namespace"])
async def test_the_operator_itself_can_be_exempted(
    crew: Crew, site: Site, restricted: Client, exempt: str
) -> None:
    client = site.client if exempt == "exempt_account" else restricted
    first = await crew.start("x", "~y", client=client, **{exempt: True})
    await crew.wait_allowed()
    assert await site.has_names("x", "y")
    await crew.start("x", "~y", client=client)
    assert await crew.is_allowed("any")  # options change at the end of a rollout
    await first.leave()
    await eventually(lambda: is_failing(site), "the end of the exemption")


async def is_failing(site: Site) -> bool:
    return (await site.create("any", {}, "?dryRun=All")).status_code == 500


OPTIONS: Any = {"beside": True, "sentinel": {"good": True}}


def declare(name: str, site: Site) -> webop.OperatorRegistry:
    """Return handlers that refuse all but the good, and tell who has done it."""
    registry = webop.OperatorRegistry()

    @webop.on.validate(*site.names, id="check", registry=registry)
    async def check(spec: webop.Spec, **_: Any) -> None:
        if not spec.get("good"):
            raise webop.AdmissionError(f"Refused by {name}.", code=403)

    return registry


async def test_two_operators_with_certificates_and_addresses_of_their_own(site: Site) -> None:
    async def is_refused_by(name: str) -> bool:
        answer = await site.create("bad")
        assert answer.status_code == 403, answer.text  # at no time does it pass, or fail
        return f"Refused by {name}." in answer.text

    async with site.run(declare("one", site), **OPTIONS):
        assert await is_refused_by("one")
        async with site.run(declare("two", site), take_over=True, **OPTIONS):
            await eventually(lambda: is_refused_by("two"), "the newest one in charge")
            (webhook,) = await site.get_webhooks(VALIDATING) or []
            bundle = base64.b64decode(webhook["clientConfig"]["caBundle"])
            assert bundle.count(b"BEGIN CERTIFICATE") == 2
        assert len(await site.get_records()) == 1
        (webhook,) = await site.get_webhooks(VALIDATING) or []
        await eventually(lambda: is_answered(site), "the other one in charge")
        assert await is_refused_by("one")
    assert await site.has_names()


async def is_answered(site: Site) -> bool:
    """Tell whether the API server has learnt where the webhook is by now."""
    answer = await site.create("bad")
    assert answer.status_code in {403, 500}, answer.text
    return answer.status_code == 403


async def test_two_operators_with_certificates_of_their_own_behind_one_address(site: Site) -> None:
    async with (
        Balancer().listen() as balancer,
        site.run(declare("one", site), server=balancer.serve, **OPTIONS),
        site.run(declare("two", site), server=balancer.serve, **OPTIONS),
    ):
        await eventually(lambda: has_replicas(site, 2), "both replicas in place")
        balancer.choose(1)
        await eventually(lambda: is_answered(site), "both certificates known to the API server")
        for number, name in enumerate(("one", "two", "one")):
            balancer.choose(number % 2)
            answer = await site.create("bad")
            assert answer.status_code == 403, answer.text
            assert f"Refused by {name}." in answer.text


async def has_replicas(site: Site, count: int) -> bool:
    return len(await site.get_records()) == count
