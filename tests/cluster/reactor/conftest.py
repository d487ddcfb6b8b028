"""What the tests of several files here have at hand."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

import webop
from tests.kit.forwarder import Forwarder
from tests.kit.http_relay import Meddler, Relay, relay
from tests.kit.operators import Objects, Running, RunOperator, operate
from tests.kit.timeline import Timeline

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Lets threads and daemons go that hang; at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
async def proxy(webop_cluster: LocalCluster) -> AsyncIterator[Forwarder]:
    async with Forwarder(webop_cluster.server).listen() as proxy:
        yield proxy


@pytest.fixture
async def relayed(webop_cluster: LocalCluster) -> AsyncIterator[Relay]:
    async with relay(webop_cluster) as relayed:
        yield relayed


@pytest.fixture
def run_relayed(relayed: Relay, registry: webop.OperatorRegistry, objects: Objects) -> RunOperator:
    """Runs an operator behind a relay; ``meddle`` answers some of its requests."""

    def run(
        settings: webop.OperatorSettings | None = None, *, meddle: Meddler | None = None
    ) -> AbstractAsyncContextManager[Running]:
        relayed.meddle = meddle
        return operate(
            relayed.info, registry, settings, beside=True, namespaces=[objects.namespace]
        )

    return run
