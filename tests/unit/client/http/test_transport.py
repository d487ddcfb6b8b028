"""The default transport over real sockets, and the watch over it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.client_options import Networking, Watching
from tests.kit.faulty_cluster import PATH, FaultyCluster
from tests.kit.mirrors import mirroring
from tests.kit.scripted_server import HalfChunkError, ScriptedServer, answer_by, playing
from tests.kit.waiting import eventually
from webop import APIConnectionError, ConnectionInfo, Vault
from webop.client.api import Client


def serving(cluster: FaultyCluster) -> contextlib.AbstractAsyncContextManager[ScriptedServer]:
    return playing(answer_by(cluster.handle))


FAULTS: dict[str, Callable[[FaultyCluster], None]] = {
    "reset": lambda cluster: cluster.cut(httpx.ReadError("reset")),
    "half a chunk": lambda cluster: cluster.cut(HalfChunkError()),
    "silence": lambda cluster: cluster.mute(),
}


async def check_memory(
    connect: Callable[[ScriptedServer], Client], fault: Callable[[FaultyCluster], None]
) -> None:
    """Check that a client that watches catches up after a fault."""
    cluster = FaultyCluster("kept", "changed", "deleted")
    options = Watching(inactivity_timeout=0.2, reconnect_backoff=0.01)
    async with serving(cluster) as server, mirroring(connect(server), options) as mirror:
        await eventually(lambda: bool(cluster.feeds))
        fault(cluster)
        cluster.delete("deleted")
        cluster.apply("changed", value=1)
        cluster.apply("created")
        await mirror.catch_up(cluster)
        assert mirror.deleted == ["deleted"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_the_memory_equals_the_cluster_after_a_fault_of_the_network(
    fault: Callable[[FaultyCluster], None],
) -> None:
    await check_memory(ScriptedServer.connect, fault)


async def test_many_streams_do_not_starve_the_requests() -> None:
    params = {"watch": "true", "resourceVersion": "0"}
    async with (
        serving(FaultyCluster("a")) as server,
        server.connect() as client,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(150):
            await stack.enter_async_context(client.stream(PATH, params))
        assert await client.request("GET", "/version", timeout=10)


@pytest.mark.feature("CFG-35")
@pytest.mark.parametrize("way", ["credentials", "environment, by settings", "environment"])
async def test_requests_go_through_a_proxy_if_told_so(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FaultyCluster()
    async with serving(cluster) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        if way != "credentials":
            monkeypatch.setenv("http_proxy", proxy)
            proxy = ""
        info = ConnectionInfo(
            "http://cluster.test", proxy_url=proxy or None, trust_env=way == "environment"
        )
        options = Networking(trust_env=way == "environment, by settings")
        async with Client(Vault({"x": info}), options) as client:
            assert await client.request("GET", "/version")
    assert str(cluster.requests[0].url) == "http://cluster.test/version"


@pytest.mark.feature("CFG-35")
@pytest.mark.parametrize("is_trusted", [False, True])
async def test_a_netrc_is_read_if_the_environment_is_trusted(
    is_trusted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login alice password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    cluster = FaultyCluster()
    async with serving(cluster) as server:
        info = ConnectionInfo(f"http://127.0.0.1:{server.port}", trust_env=is_trusted)
        async with Client(Vault({"x": info}), Networking()) as client:
            assert await client.request("GET", "/version")
    expected = "Basic YWxpY2U6c2VjcmV0" if is_trusted else None
    assert cluster.requests[0].headers.get("Authorization") == expected


async def test_proxies_of_the_environment_are_not_used_unless_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with serving(FaultyCluster()) as server, server.connect() as client:
        assert await client.request("GET", "/version")


async def test_addresses_that_refuse_are_not_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []

    async def refuse(_: socket.socket, address: Any) -> None:
        tried.append(address[0])
        raise ConnectionRefusedError(111, "Connection refused")

    targets = [(f"192.0.2.{number}", 6443) for number in (1, 2)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", target) for target in targets]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", refuse)
    vault = Vault({"x": ConnectionInfo("https://several.example")})
    async with Client(vault, Networking(error_backoffs=())) as client:
        with pytest.raises(APIConnectionError, match="refused"):
            await client.request("GET", "/version")
    assert tried == ["192.0.2.1", "192.0.2.2"]
