"""``webop webhooks``: what operators have left in the cluster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import Result

from tests.kit.cli_runner import invoke
from tests.kit.managed_webhooks import KINDS, open_site
from tests.kit.operators import Kind, define_kinds
from tests.kit.webhook_replicas import Crew, open_crew
from webop.client.api import Client
from webop.handlers.model import WebhookType

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def run(webop_cluster: LocalCluster, tmp_path: Path) -> Run:
    variables = {"KUBECONFIG": str(webop_cluster.kubeconfig), "HOME": str(tmp_path)}

    def call(*args: str) -> Awaitable[Result]:
        sure = {"WEBOP_WEBHOOKS_REMOVE_IS_SURE": "1"}  # no variable switches the question off
        return asyncio.to_thread(invoke, "webhooks", *args, env={**variables, **sure})

    return call


@pytest.fixture(scope="session")
def kinds(webop_cluster: LocalCluster) -> Iterator[Kind]:
    made = (Kind(f"leftover{number}.webop.dev", "parcels", "Parcel") for number in range(2))
    return define_kinds(webop_cluster, made)


@pytest.fixture
async def crew(
    webop_cluster: LocalCluster, client: Client, webop_namespace: str, kinds: Iterator[Kind]
) -> AsyncIterator[Crew]:
    kind = next(kinds)
    async with (
        open_site(webop_cluster, client, webop_namespace, kind) as site,
        open_crew(site) as opened,
    ):
        yield opened


async def test_webhooks_of_a_stopped_operator_are_listed_and_removed(crew: Crew, run: Run) -> None:
    member = await crew.start("x!", "~y!")
    name = crew.site.name
    running = await run("remove", name)  # there is nobody to answer
    assert (running.exit_code, "To confirm, add --yes" in running.stderr) == (1, True)
    assert re.search(r"restore them, if they still run: .*renewed.* \d+ s ago", running.stderr)
    await member.leave()
    assert not await crew.is_allowed("any")
    listed = await run("list")
    (line,) = [line.split() for line in listed.output.splitlines() if name in line]
    assert line == [name, "x,", "y", "none"]
    asked = await run("remove", name)
    assert (asked.exit_code, f"{name}: x, y" in asked.output) == (1, True)
    assert await crew.site.has_names("x", "y")
    removed = await run("remove", name, "--yes")
    assert (removed.exit_code, removed.output.count("Removed ")) == (0, 2)
    assert [await crew.site.get_webhooks(which) for which in KINDS] == [None, None]
    await crew.wait_allowed()


async def test_webhooks_of_others_are_not_removed(crew: Crew, run: Run) -> None:
    body = {"metadata": {"name": crew.site.name}, "webhooks": []}
    await crew.site.client.create(KINDS[WebhookType.VALIDATING], None, body)
    result = await run("remove", crew.site.name, "--yes")
    assert result.exit_code == 2
    assert f"No operator keeps webhook configurations {crew.site.name}" in result.stderr
    assert await crew.site.get_webhooks(WebhookType.VALIDATING) == []
