"""The client over sessions of aiohttp that users make."""

from __future__ import annotations

import gzip
import traceback
from collections.abc import Callable

import aiohttp
import aiohttp.web
import pytest
from aiohttp.test_utils import TestServer

from tests.kit.client_options import Networking
from tests.kit.faulty_cluster import PATH, FaultyCluster
from tests.kit.scripted_server import ScriptedServer, answer_with, build_answer, playing
from tests.unit.client.http.test_transport import FAULTS, check_memory, serving
from webop import AiohttpSession, Vault
from webop.client.api import Client
from webop.errors import APIConnectionError, APINotFoundError


def build_info(server: ScriptedServer, session: aiohttp.ClientSession) -> AiohttpSession:
    return AiohttpSession(server=server.url, aiohttp_session=session)


def connect(server: ScriptedServer, session: aiohttp.ClientSession) -> Client:
    return Client(Vault({"test": build_info(server, session)}), Networking())


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_the_memory_equals_the_cluster_after_a_fault_of_the_network_of_a_session(
    fault: Callable[[FaultyCluster], None],
) -> None:
    session = aiohttp.ClientSession()
    await check_memory(lambda server: connect(server, session), fault)
    assert session.closed


async def test_requests_have_the_headers_of_the_session_and_keep_their_quoting() -> None:
    cluster = FaultyCluster("one", "two")
    headers = {"Authorization": "Custom x", "User-Agent": "mine/1"}
    session = aiohttp.ClientSession(headers=headers)
    async with serving(cluster) as server, connect(server, session) as client:
        listed = await client.request("GET", f"{PATH}?limit=1&fieldSelector=metadata.name%3Done")
    request = cluster.requests[0]
    assert [item["metadata"]["name"] for item in listed["items"]] == ["one"]
    assert request.headers["authorization"] == "Custom x"
    assert request.headers["user-agent"] == "mine/1"
    assert request.headers["accept"] == "application/json"
    assert request.url.raw_path.endswith(b"=metadata.name%3Done")


async def test_a_session_that_cannot_connect_says_why() -> None:
    async with serving(FaultyCluster()) as server:
        info = build_info(server, aiohttp.ClientSession())
    async with Client(Vault({"test": info}), Networking()) as client:
        with pytest.raises(APIConnectionError, match=r"aiohttp: .*127\.0\.0\.1"):
            await client.request("GET", PATH)


async def test_a_proxy_that_refuses_is_told_without_its_password() -> None:
    async with playing(answer_with(build_answer(b"", status=407))) as proxy:
        place = f"127.0.0.1:{proxy.port}"
        session = aiohttp.ClientSession(proxy=f"http://joe:hunter2@{place}")
        info = AiohttpSession(server="https://host", aiohttp_session=session)
        async with Client(Vault({"test": info}), Networking()) as client:
            with pytest.raises(APIConnectionError, match=rf"407.*{place}") as e:
                await client.request("GET", PATH)
    assert "hunter2" not in "".join(traceback.format_exception(e.value))


async def test_refusals_are_answers_also_if_the_session_raises_them_itself() -> None:
    session = aiohttp.ClientSession(raise_for_status=True)
    async with TestServer(aiohttp.web.Application()) as server:
        info = AiohttpSession(server=str(server.make_url("")), aiohttp_session=session)
        async with Client(Vault({"test": info}), Networking()) as client:
            with pytest.raises(APINotFoundError):
                await client.request("GET", PATH)


async def test_a_session_that_the_user_has_closed_says_so() -> None:
    session = aiohttp.ClientSession()
    await session.close()
    async with serving(FaultyCluster()) as server, connect(server, session) as client:
        with pytest.raises(APIConnectionError, match="session of aiohttp is closed"):
            await client.request("GET", PATH)


async def test_compressed_answers_are_decompressed_once() -> None:
    answer = build_answer(gzip.compress(b'{"a":1}'), "Content-Encoding: gzip")
    session = aiohttp.ClientSession()
    async with playing(answer_with(answer)) as server, connect(server, session) as client:
        assert await client.request("GET", "/x") == {"a": 1}
