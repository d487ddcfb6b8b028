"""Discovery on a real API server: what has not changed is not sent again."""

from __future__ import annotations

from tests.kit.operators import Kind
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.discovery import discover


async def test_an_api_server_sends_its_resources_again_only_if_they_have_changed(
    client: Client, webop_namespace: str
) -> None:
    kind = Kind(f"{webop_namespace}.etags.webop.dev", "tags", "Tag")
    found = await discover(client)

    async def is_known() -> bool:
        nonlocal found
        former, found = found, await discover(client, None, found)
        return found is former

    await eventually(is_known, "the kinds of other tests have gone")
    await kind.define(client)
    await eventually(is_known, check=lambda _: kind.resource in found.resources)
    await eventually(is_known, "it is not sent again")
    assert kind.resource in found.resources
