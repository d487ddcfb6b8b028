"""What webhook servers are given of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest

from tests.kit.operators import get_connection
from webop.admission.cluster_access import ClientAccess
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.controlplane.cluster import LocalCluster
from webop.errors import APIConflictError, APINotFoundError, LoginError
from webop.servers.certificates.certs import read_certificate
from webop.servers.limits import ClusterAccess
from webop.settings.groups import NetworkingSettings


@contextlib.asynccontextmanager
async def connect(vault: Vault) -> AsyncIterator[ClusterAccess]:
    async with Client(vault, NetworkingSettings(error_backoffs=())) as client:
        yield ClientAccess(client)


async def test_requests_are_those_of_the_client(
    webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    async with connect(Vault({"test": get_connection(webop_cluster)})) as access:
        version = await access.request("GET", "/version")
        assert version["gitVersion"] == webop_cluster.version
        path = f"/api/v1/namespaces/{webop_namespace}/configmaps"
        body = {"metadata": {"name": "one"}, "data": {"a": "b"}}
        created = await access.request("POST", path, body)
        assert created["data"] == {"a": "b"}
        with pytest.raises(APIConflictError):
            await access.request("POST", path, body)
        with pytest.raises(APINotFoundError):
            await access.request("GET", f"{path}/two")


async def test_the_certificate_of_the_api_server_can_be_seen_without_trust(
    webop_cluster: LocalCluster,
) -> None:
    info = ConnectionInfo(server=webop_cluster.server)
    async with connect(Vault({"test": info})) as access:
        certificate = await access.fetch_certificate()
    assert certificate is not None
    names = read_certificate(certificate)
    assert names.common_name == "kube-apiserver"
    assert "kubernetes.default.svc" in names.hostnames


async def test_without_tls_there_is_no_certificate(caplog: pytest.LogCaptureFixture) -> None:
    async with connect(Vault({"test": ConnectionInfo(server="http://localhost:1")})) as access:
        assert await access.fetch_certificate() is None
    assert not caplog.records


@pytest.mark.parametrize("is_garbage", [False, True])
async def test_a_server_that_cannot_be_seen_is_warned_of(
    caplog: pytest.LogCaptureFixture, is_garbage: bool
) -> None:
    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if not is_garbage:
        server.close()
    info = ConnectionInfo(server=f"https://127.0.0.1:{port}")
    async with connect(Vault({"test": info})) as access:
        assert await access.fetch_certificate() is None
    server.close()
    assert f"Cannot read the certificate of https://127.0.0.1:{port}" in caplog.text


async def test_the_namespace_is_that_of_the_credentials(webop_cluster: LocalCluster) -> None:
    info = dataclasses.replace(get_connection(webop_cluster), default_namespace="here")
    vault = Vault()
    async with connect(vault) as access:
        namespaces = [access.namespace]
        await vault.populate({"test": info})
        namespaces.append(access.namespace)
    assert namespaces == [None, "here"]


async def test_without_credentials_nothing_is_known() -> None:
    vault = Vault()
    await vault.populate({})
    async with connect(vault) as access:
        assert access.namespace is None
        with pytest.raises(LoginError):
            await access.request("GET", "/version")
        with pytest.raises(LoginError):
            await access.fetch_certificate()
