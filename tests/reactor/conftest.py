"""What the tests of several files here have at hand."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.reactor.proxy import Proxy, intercept
from tests.reactor.timeline import Timeline

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
async def proxy(webop_cluster: LocalCluster) -> AsyncIterator[Proxy]:
    async with intercept(webop_cluster.server) as proxy:
        yield proxy
