"""What stands between operators and the API server in tests."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import webop
from tests.kit.forwarder import Forwarder
from tests.kit.http_relay import Meddler, Relay, relay
from tests.kit.managed_webhooks import Site, open_site
from tests.kit.operators import Kind, Objects, Running, RunOperator, operate
from tests.kit.peering_objects import Boss, PeeringObject, provide_peerings
from webop.client.api import Client
from webop.testing import LocalCluster


@pytest.fixture
async def proxy(webop_cluster: LocalCluster) -> AsyncIterator[Forwarder]:
    async with Forwarder(webop_cluster.server).listen() as proxy:
        yield proxy


@pytest.fixture
async def relayed(webop_cluster: LocalCluster) -> AsyncIterator[Relay]:
    async with relay(webop_cluster) as relayed:
        yield relayed


@pytest.fixture
async def site(
    webop_cluster: LocalCluster, client: Client, webop_namespace: str, kinds: Iterator[Kind]
) -> AsyncIterator[Site]:
    """Where an operator has webhooks, for the next of the kinds of the room."""
    async with open_site(webop_cluster, client, webop_namespace, next(kinds)) as opened:
        yield opened


@pytest.fixture(scope="module")
def peerings(webop_cluster: LocalCluster) -> None:
    """The kinds of peering objects."""
    provide_peerings(webop_cluster)


@pytest.fixture
async def boss(
    peerings: None, client: Client, objects: Objects, caplog: pytest.LogCaptureFixture
) -> Boss:
    """Makes operators pause that have a peering in the namespace."""
    caplog.set_level(logging.INFO, "webop.coordination")
    shared = PeeringObject(client, objects.namespace)
    await shared.create()
    return Boss(shared, caplog)


@pytest.fixture
def run_relayed(relayed: Relay, registry: webop.OperatorRegistry, objects: Objects) -> RunOperator:
    """Runs an operator behind a relay; ``meddle`` answers some of its requests."""

    def run(
        settings: webop.OperatorSettings | None = None,
        *,
        meddle: Meddler | None = None,
        **options: Any,
    ) -> AbstractAsyncContextManager[Running]:
        relayed.meddle = meddle
        options = {"beside": True, "namespaces": [objects.namespace], **options}
        return operate(relayed.info, registry, settings, **options)

    return run
