"""The client against a real API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.kit.fake_cluster import Mirror, Networking, Watching, get_versions
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.discovery import discover
from webop.client.http.sessions import build_transport
from webop.client.http.transport import Request, Response
from webop.client.watch import ListingStarted, State
from webop.errors import (
    APINotFoundError,
)
from webop.objects.resources import Resource

if TYPE_CHECKING:
    from webop.testing import LocalCluster

MAPS = Resource("", "v1", "configmaps", namespaced=True)
NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
IN_BOTH_MODES = pytest.mark.parametrize(
    "is_streaming", [False, True], ids=["pages", "streaming list"]
)
NETWORKING = Networking(request_timeout=30, error_backoffs=[0.5] * 60)
CROWD = [f"x{index:04}" for index in range(1200)]


def connect(cluster: LocalCluster) -> Client:
    info = ConnectionInfo(server=cluster.server, ca_data=cluster.ca_data, token=cluster.token)
    return Client(Vault({"x": info}), NETWORKING)


def build_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def build_crd(plural: str, *versions: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "metadata": {"name": f"{plural}.webop.test"},
        "spec": {
            "group": "webop.test",
            "scope": "Cluster",
            "names": {
                "plural": plural,
                "singular": plural[:-1],
                "kind": plural.capitalize(),
                "shortNames": [plural[:3]],
                "categories": ["tests"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == versions[0],
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
                for version in versions
            ],
        },
    }


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


async def discover_until(
    client: Client, condition: Callable[[frozenset[Resource]], bool]
) -> frozenset[Resource]:
    """Ask until the server has taken note of a change of a CRD, which it does in background."""
    group = {"webop.test"}
    found = await eventually(
        lambda: discover(client, group), check=lambda found: condition(found.resources)
    )
    resources: frozenset[Resource] = found.resources
    return resources


@pytest.mark.feature("RES-18", "RES-19", "RES-20")
async def test_discovery_tells_all_of_a_kind(webop_cluster: LocalCluster) -> None:
    async with connect(webop_cluster) as client:
        crd = await client.create(CRDS, None, build_crd("things", "v1beta1", "v1"))
        try:
            things = Resource("webop.test", "v1", "things")
            resources = await discover_until(client, lambda found: things in found)
            assert resources <= (await discover(client)).resources
        finally:
            await client.delete(CRDS, None, crd["metadata"]["name"])
        await discover_until(client, lambda found: not found)
    [found] = [r for r in resources if r.version == "v1"]
    assert (found.kind, found.singular, found.namespaced) == ("Things", "thing", False)
    assert found.shortcuts == {"thi"}
    assert found.categories == {"tests"}
    assert found.subresources == {"status"}
    assert found.verbs >= {"list", "watch", "patch"}
    assert {r.version: r.preferred for r in resources} == {"v1": True, "v1beta1": False}


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


class _CountingTransport:
    """Notes the queries of all requests."""

    def __init__(self, info: ConnectionInfo, queries: list[dict[str, str]]) -> None:
        self.transport = build_transport(info)
        self.queries = queries

    async def send(self, request: Request) -> Response:
        self.queries.append(dict(parse_qsl(urlsplit(request.target).query)))
        return await self.transport.send(request)

    async def aclose(self) -> None:
        await self.transport.aclose()


@pytest.fixture(scope="module")
def crowded(webop_cluster: LocalCluster) -> Iterator[str]:
    """A namespace with three pages of objects; the tests leave it with the same names."""
    namespace = webop_cluster.create_namespace()

    async def fill() -> None:
        async with connect(webop_cluster) as client:
            for name in CROWD:
                await client.create(MAPS, namespace, build_map(name))

    asyncio.run(fill())
    yield namespace
    webop_cluster.delete_namespace(namespace)


@pytest.mark.feature("EVT-02", "EVT-03")
async def test_both_ways_of_listing_bring_the_same_objects(
    webop_cluster: LocalCluster, crowded: str
) -> None:
    is_off = webop_cluster.version.startswith("v1.33.")  # has streaming lists, but not by default
    async with connect(webop_cluster) as client:
        found, queries = [], []
        for is_streaming in (False, True):
            sent: list[dict[str, str]] = []
            counting = Client(
                client.vault,
                NETWORKING,
                transport_factory=partial(_CountingTransport, queries=sent),
            )
            async with (
                counting,
                following(counting, MAPS, crowded, is_streaming) as mirror,
            ):
                await mirror.wait_for(lambda: mirror.status.state is State.WATCHING)
                await client.patch(MAPS, crowded, "x0000", {"data": {"a": "1"}})
                await mirror.wait_for(lambda: len(mirror.items) == len(CROWD) + 3)
                await client.patch(MAPS, crowded, "x0000", {"data": {"a": None}})
                assert bool(counting.paging_groups) == (is_streaming and is_off)
            found.append({k: v for k, v in mirror.objects.items() if k != "x0000"})
            queries.append(sent)
        assert found[0] == found[1]
        lists = [query for query in queries[0] if "watch" not in query]
        assert [query["limit"] for query in lists] == ["500"] * 3
        assert "sendInitialEvents" in queries[1][0]


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
