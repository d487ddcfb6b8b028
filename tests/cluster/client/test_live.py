"""The client against a real API server that is killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.kit.client_options import Networking, Watching
from tests.kit.mirrors import get_versions, mirroring
from tests.kit.operators import get_connection
from webop.client.api import Client
from webop.client.auth.vault import Vault
from webop.objects.resources import Resource

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

MAPS = Resource("", "v1", "configmaps", namespaced=True)
NETWORKING = Networking(request_timeout=30, error_backoffs=[0.5] * 60)


def build_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def fetch_versions(client: Client, namespace: str) -> dict[str, str]:
    pages = [page.items async for page in client.list_pages(MAPS, namespace)]
    return get_versions({raw["metadata"]["name"]: raw for items in pages for raw in items})


async def test_a_watch_survives_a_kill_and_restart_of_the_api_server(
    webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    client = Client(Vault({"x": get_connection(webop_cluster)}), NETWORKING)
    for name in ("kept", "changed", "deleted"):
        await client.create(MAPS, webop_namespace, build_map(name))
    async with mirroring(client, Watching(streaming_list=True), MAPS, webop_namespace) as mirror:
        await mirror.wait_for(lambda: len(mirror.objects) == 3)
        await asyncio.to_thread(webop_cluster.kill_apiserver)
        deleting = asyncio.create_task(client.delete(MAPS, webop_namespace, "deleted"))
        await asyncio.to_thread(webop_cluster.restart_apiserver)
        await deleting
        await client.patch(MAPS, webop_namespace, "changed", {"data": {"a": "1"}})
        await client.create(MAPS, webop_namespace, build_map("created"))
        expected = await fetch_versions(client, webop_namespace)
        await mirror.wait_for(lambda: mirror.versions == expected)
        assert mirror.deleted == ["deleted"]
