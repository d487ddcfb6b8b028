"""The client against a real API server that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.client_options import Networking, Watching
from tests.kit.mirrors import get_versions, mirroring
from tests.kit.operators import get_connection
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.vault import Vault
from webop.client.objects import AsyncClient
from webop.objects.resources import Resource
from webop.testing import LocalCluster

MAPS = Resource("", "v1", "configmaps", namespaced=True)
NETWORKING = Networking(request_timeout=30, error_backoffs=[0.5] * 60)


def build_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def fetch_versions(client: Client, namespace: str) -> dict[str, str]:
    pages = [page.items async for page in client.list_pages(MAPS, namespace)]
    return get_versions({raw["metadata"]["name"]: raw for items in pages for raw in items})


@pytest.fixture
def own_cluster() -> Iterator[LocalCluster]:
    """Others may use the usual one."""
    with LocalCluster() as cluster:
        yield cluster


async def test_a_watch_survives_a_kill_and_restart_of_the_api_server(
    own_cluster: LocalCluster,
) -> None:
    namespace = own_cluster.create_namespace()
    client = Client(Vault({"x": get_connection(own_cluster)}), NETWORKING)
    for name in ("kept", "changed", "deleted"):
        await client.create(MAPS, namespace, build_map(name))
    async with mirroring(client, Watching(streaming_list=True), MAPS, namespace) as mirror:
        await mirror.wait_for(lambda: len(mirror.objects) == 3)
        await asyncio.to_thread(own_cluster.kill_apiserver)
        deleting = asyncio.create_task(client.delete(MAPS, namespace, "deleted"))
        await asyncio.to_thread(own_cluster.restart_apiserver)
        await deleting
        await client.patch(MAPS, namespace, "changed", {"data": {"a": "1"}})
        await client.create(MAPS, namespace, build_map("created"))
        expected = await fetch_versions(client, namespace)
        await mirror.wait_for(lambda: mirror.versions == expected)
        assert mirror.deleted == ["deleted"]


async def test_the_changes_that_a_user_sees_survive_a_kill_and_restart_of_the_api_server(
    own_cluster: LocalCluster,
) -> None:
    here = own_cluster.create_namespace()
    seen: list[tuple[str, str]] = []

    async def follow(client: AsyncClient) -> None:
        async for change in client.watch(
            "configmaps", namespace=here, fields="metadata.name!=kube-root-ca.crt"
        ):
            seen.append((change.type, change.object["metadata"]["name"]))  # noqa: PERF401

    vault = Vault({"x": get_connection(own_cluster)})
    async with Client(vault, NETWORKING) as requests, asyncio.TaskGroup() as group:
        client = AsyncClient(requests)
        kept, *_ = [
            await client.create(build_map(name), namespace=here)
            for name in ("kept", "changed", "deleted")
        ]
        task = group.create_task(follow(client))
        await eventually(lambda: len(seen) == 3)
        assert {kind for kind, _ in seen} == {"ADDED"}
        seen.clear()
        await asyncio.to_thread(own_cluster.kill_apiserver)
        deleting = group.create_task(client.delete("configmaps", "deleted", namespace=here))
        await asyncio.to_thread(own_cluster.restart_apiserver)
        await deleting
        await client.patch("configmaps", "changed", {"data": {"a": "1"}}, namespace=here)
        await client.create(build_map("created"), namespace=here)
        await eventually(lambda: len(seen) == 3)
        expected = [("ADDED", "created"), ("DELETED", "deleted"), ("MODIFIED", "changed")]
        assert sorted(seen) == expected
        await client.replace({**kept, "data": {"b": "2"}})
        await eventually(lambda: seen[3:] == [("MODIFIED", "kept")])
        task.cancel()
