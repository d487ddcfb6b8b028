"""A kind with several versions, for the tests of conversion and migration."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.kit.managed_webhooks import KINDS
from tests.kit.versioned_shops import MANAGED, Shops, open_shops
from webop.client.api import Client
from webop.errors import APINotFoundError


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests of other workers, which have the same cluster, from the definition of shops."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (folder / "shops.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
async def shops(alone: None, client: Client, webop_namespace: str) -> AsyncIterator[Shops]:
    """The kind without conversion; what operators keep under their name goes at the end."""
    async with open_shops(client, webop_namespace) as shops:
        yield shops
    for resource in KINDS.values():
        with contextlib.suppress(APINotFoundError):
            await client.delete(resource, None, MANAGED)
