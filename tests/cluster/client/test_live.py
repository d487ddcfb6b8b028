"""The client against a real API server that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.client_options import Networking
from tests.kit.operators import get_connection
from tests.kit.waiting import eventually
from webop import Vault
from webop.client.api import Client
from webop.client.objects import AsyncClient
from webop.testing import LocalCluster

NETWORKING = Networking(request_timeout=30, error_backoffs=[0.5] * 60)


def build_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


@pytest.fixture
def own_cluster() -> Iterator[LocalCluster]:
    """Others may use the usual one."""
    with LocalCluster() as cluster:
        yield cluster


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
        waiting = group.create_task(
            client.wait_for("configmaps", "changed", lambda raw: "data" in raw, namespace=here)
        )
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
        assert (await waiting)["data"] == {"a": "1"}
        await client.replace({**kept, "data": {"b": "2"}})
        await eventually(lambda: seen[3:] == [("MODIFIED", "kept")])
        task.cancel()
