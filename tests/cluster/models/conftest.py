"""A kind with several versions, for the tests of conversion and migration."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.kit.managed_webhooks import KINDS
from tests.kit.versioned_shops import MANAGED, Shops, open_shops
from webop.client.api import Client
from webop.errors import APINotFoundError


@pytest.fixture
async def shops(client: Client, webop_namespace: str) -> AsyncIterator[Shops]:
    """The kind without conversion; what operators keep under their name goes at the end."""
    async with open_shops(client, webop_namespace) as shops:
        yield shops
    for resource in KINDS.values():
        with contextlib.suppress(APINotFoundError):
            await client.delete(resource, None, MANAGED)
