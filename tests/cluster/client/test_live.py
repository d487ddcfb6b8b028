"""The client against a real API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.fake_cluster import Mirror, Networking, Watching, get_versions
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.watch import ListingStarted, State
from webop.errors import (
    APINotFoundError,
)
from webop.objects.resources import Resource

if TYPE_CHECKING:
    from webop.testing import LocalCluster

MAPS = Resource("", "v1", "configmaps", namespaced=True)
NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
IN_BOTH_MODES = pytest.mark.parametrize(
    "is_streaming", [False, True], ids=["pages", "streaming list"]
)
NETWORKING = Networking(request_timeout=30, error_backoffs=[0.5] * 60)


def connect(cluster: LocalCluster) -> Client:
    info = ConnectionInfo(server=cluster.server, ca_data=cluster.ca_data, token=cluster.token)
    return Client(Vault({"x": info}), NETWORKING)


def build_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@contextlib.asynccontextmanager
async def following(
    client: Client, resource: Resource, namespace: str | None, is_streaming: bool
) -> AsyncIterator[Mirror]:
    mirror = Mirror()
    options = Watching(streaming_list=is_streaming)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(mirror.follow(client, options, resource, namespace))
        yield mirror
        task.cancel()


async def fetch_versions(client: Client, resource: Resource, namespace: str) -> dict[str, str]:
    pages = [page.items async for page in client.list_pages(resource, namespace)]
    return get_versions({raw["metadata"]["name"]: raw for items in pages for raw in items})


@pytest.mark.feature("PAT-13")
async def test_patches_tell_what_is_gone_from_what_never_was(
    webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    async with connect(webop_cluster) as client:
        assert await client.patch(MAPS, webop_namespace, "absent", {"data": {}}) is None
        assert await client.patch(MAPS, webop_namespace, "absent", []) is None
        await client.create(MAPS, webop_namespace, build_map("x"))
        with pytest.raises(APINotFoundError):
            await client.patch(MAPS, webop_namespace, "x", {}, "status")
        absent = Resource("webop.test", "v1", "absents", namespaced=True)
        with pytest.raises(APINotFoundError):
            await client.patch(absent, webop_namespace, "x", {})


@IN_BOTH_MODES
@pytest.mark.feature("EVT-01", "EVT-02", "EVT-03")
async def test_a_watch_sees_what_is_and_what_comes(
    webop_cluster: LocalCluster, webop_namespace: str, is_streaming: bool
) -> None:
    async with connect(webop_cluster) as client:
        await client.create(MAPS, webop_namespace, build_map("before"))
        async with following(client, MAPS, webop_namespace, is_streaming) as mirror:
            await mirror.wait_for(lambda: "before" in mirror.objects)
            await client.create(MAPS, webop_namespace, build_map("large", x="y" * 900_000))
            await client.patch(MAPS, webop_namespace, "before", {"data": {"a": "1"}})
            await client.delete(MAPS, webop_namespace, "before")
            await mirror.wait_for(lambda: "before" in mirror.deleted)
        events = [item for item in mirror.items if isinstance(item, tuple)]
        told = [(kind, raw["metadata"]["name"]) for kind, raw in events]
        assert told == [
            (None, "before"),
            ("ADDED", "large"),
            ("MODIFIED", "before"),
            ("DELETED", "before"),
        ]
        assert {raw["kind"] for _, raw in events} == {"ConfigMap"}
        assert {raw["apiVersion"] for _, raw in events} == {"v1"}


async def test_a_watch_survives_a_kill_and_restart_of_the_api_server(
    webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    async with connect(webop_cluster) as client:
        for name in ("kept", "changed", "deleted"):
            await client.create(MAPS, webop_namespace, build_map(name))
        async with following(client, MAPS, webop_namespace, True) as mirror:
            await mirror.wait_for(lambda: len(mirror.objects) == 3)
            await asyncio.to_thread(webop_cluster.kill_apiserver)
            deleting = asyncio.create_task(client.delete(MAPS, webop_namespace, "deleted"))
            await asyncio.to_thread(webop_cluster.restart_apiserver)
            await deleting
            await client.patch(MAPS, webop_namespace, "changed", {"data": {"a": "1"}})
            await client.create(MAPS, webop_namespace, build_map("created"))
            expected = await fetch_versions(client, MAPS, webop_namespace)
            await mirror.wait_for(lambda: mirror.versions == expected)
            assert mirror.deleted == ["deleted"]


async def test_a_server_without_streaming_lists_is_asked_for_pages() -> None:
    from webop.controlplane.cluster import LocalCluster  # noqa: PLC0415 - only if it is used

    flags = ["--feature-gates=WatchList=false"]
    with await asyncio.to_thread(LocalCluster(apiserver_flags=flags).start) as cluster:
        async with connect(cluster) as client, following(client, NAMESPACES, None, True) as mirror:
            await mirror.wait_for(lambda: mirror.status.state is State.WATCHING)
            assert "kube-system" in mirror.objects
            assert client.paging_groups == {""}
            assert mirror.items.count(ListingStarted()) == 1
            assert mirror.status.failures == 0
        await asyncio.to_thread(cluster.stop)
