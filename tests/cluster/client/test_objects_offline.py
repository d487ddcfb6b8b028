"""The client of handlers where there is no cluster, no login yet, or nothing may be stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.kit.waiting import eventually
from webop.testing import AdmissionClient

if TYPE_CHECKING:
    from webop.testing import LocalCluster

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "default"}}


def build_map(name: str, namespace: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


@pytest.mark.parametrize("is_sync", [False, True])
async def test_writes_in_the_review_of_a_dry_run_store_nothing(
    registry: webop.OperatorRegistry,
    webop_cluster: LocalCluster,
    webop_namespace: str,
    *,
    is_sync: bool,
) -> None:
    target = build_map("written", webop_namespace)

    async def write(client: webop.AsyncClient, **_: Any) -> None:
        written = await client.apply(target)
        assert written["metadata"]["uid"]
        await webop.client.current().create(build_map("more", webop_namespace))
        await client.delete("configmaps", "kept", namespace=webop_namespace)

    def write_in_a_thread(client: webop.SyncClient, **_: Any) -> None:
        client.apply(target)
        webop.client.current().sync.create(build_map("more", webop_namespace))
        client.delete("configmaps", "kept", namespace=webop_namespace)

    fn = write_in_a_thread if is_sync else write
    webop.on.validate("pods", registry=registry, id="write", side_effects=True)(fn)

    async def list_maps(client: webop.AsyncClient) -> list[str]:
        found = await client.list("configmaps", namespace=webop_namespace)
        return sorted(item["metadata"]["name"] for item in found)

    async with (
        webop.client.connect() as client,
        AdmissionClient(registry, cluster=webop_cluster) as admission,
    ):
        await client.create(build_map("kept", webop_namespace))
        result = await admission.create(POD, dry_run=True)
        assert result.allowed, result.message
        assert await list_maps(client) == ["kept"]
        result = await admission.create(POD)
        assert result.allowed, result.message
        assert await list_maps(client) == ["more", "written"]


async def test_without_a_cluster_a_review_says_why_the_client_does_not_work(
    registry: webop.OperatorRegistry, webop_kubeconfig: object
) -> None:
    @webop.on.validate("pods", registry=registry)
    async def look(client: webop.AsyncClient, **_: Any) -> None:
        await client.list("pods")

    async with AdmissionClient(registry) as admission:  # although one is logged in to a cluster
        result = await admission.create(POD)
    assert not result.allowed
    assert "There are no credentials for the API server" in str(result.message)
    assert "AdmissionClient has no cluster. To use the client" in str(result.message)


async def test_an_operator_that_needs_no_cluster_outlives_a_client_without_credentials() -> None:
    failures: list[BaseException] = []
    stop = asyncio.Event()

    @webop.on.login()
    async def log_in(**_: Any) -> None: ...

    @webop.on.startup()
    async def start(client: webop.AsyncClient, **_: Any) -> None:
        with pytest.raises(webop.LoginError, match="login handlers returned nothing") as caught:
            await client.list("namespaces")
        failures.append(caught.value)

    running = asyncio.create_task(webop.operator(clusterwide=True, stop_flag=stop))
    await eventually(lambda: failures, "the startup handler has been refused")
    stop.set()
    await asyncio.wait_for(running, 10)


async def test_an_operator_that_needs_a_cluster_ends_if_its_startup_cannot_log_in() -> None:
    webop.on.create("pods", id="fn")(lambda **_: None)
    webop.on.login(id="log_in")(lambda **_: None)

    @webop.on.startup()
    async def start(client: webop.AsyncClient, **_: Any) -> None:
        await client.list("namespaces")

    with pytest.raises(webop.LoginError, match="login handlers returned nothing"):
        await webop.operator(clusterwide=True)


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_login_handler_is_told_that_it_cannot_use_the_client(*, is_sync: bool) -> None:
    webop.on.create("pods", id="fn")(lambda **_: None)

    async def log_in(client: webop.AsyncClient, **_: Any) -> None:
        await client.list("namespaces")

    def log_in_in_a_thread(client: webop.SyncClient, **_: Any) -> None:
        client.list("namespaces")

    fn = log_in_in_a_thread if is_sync else log_in
    webop.on.login(errors=webop.ErrorsMode.PERMANENT, id="log_in")(fn)
    with pytest.raises(webop.WebopError, match="A login handler cannot use the client"):
        await asyncio.wait_for(webop.operator(clusterwide=True), 10)
