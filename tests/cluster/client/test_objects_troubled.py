"""The client of handlers when values, answers, or the moment are not as one would wish."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

import webop
from tests.cluster.client.test_objects import build_map
from tests.kit.managed_webhooks import Site
from tests.kit.operators import Kind
from tests.kit.rows import rows
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.http.sessions import build_transport
from webop.client.http.transport import Request, Response
from webop.client.objects import AsyncClient
from webop.controlplane.cluster_client import find_free_port
from webop.errors import APIServerError
from webop.settings.groups import NetworkingSettings

Rule = Callable[[Request], Awaitable["Response | Request"]]


class Made:
    """An answer that no API server has given."""

    is_complete = True

    def __init__(self, status: int, content: Any, **headers: str) -> None:
        self.status = status
        self.headers = {key.encode(): value.encode() for key, value in headers.items()}
        self._content = [json.dumps(content).encode()]

    async def receive(self) -> bytes:
        return self._content.pop() if self._content else b""

    async def aclose(self) -> None:
        pass


@contextlib.asynccontextmanager
async def meddle(info: webop.ConnectionInfo, rule: Rule) -> AsyncIterator[AsyncClient]:
    """Give a client whose requests are answered, held or changed by a rule on their way."""

    class Transport:
        def __init__(self) -> None:
            self._transport = build_transport(info)

        async def send(self, request: Request) -> Response:
            result = await rule(request)
            return await self._transport.send(result) if isinstance(result, Request) else result

        async def aclose(self) -> None:
            await self._transport.aclose()

    networking = NetworkingSettings()
    networking.error_backoffs = (0.01,)
    vault = webop.Vault({"test": info})
    async with Client(vault, networking, transport_factory=lambda _: Transport()) as requests:
        yield AsyncClient(requests)


@contextlib.asynccontextmanager
async def losing(info: webop.ConnectionInfo, method: str) -> AsyncIterator[AsyncClient]:
    """Give a client that gets no response to its first request of this method."""
    transport, lost = build_transport(info), list[str]()

    async def rule(request: Request) -> Response | Request:
        if request.method == method and not lost:
            lost.append(request.method)
            await (await transport.send(request)).receive()
            raise ConnectionResetError("the connection was reset")
        return request

    async with meddle(info, rule) as client:
        yield client
    await transport.aclose()
    assert lost


async def test_a_json_patch_that_appends_is_not_applied_twice_when_a_response_is_lost(
    info: webop.ConnectionInfo, client: Client, webop_namespace: str
) -> None:
    own = AsyncClient(client)
    body = build_map("one", webop_namespace)
    body["metadata"]["finalizers"] = ["example.com/a"]
    await own.create(body)
    add = {"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/b"}
    place: Any = {"namespace": webop_namespace}
    async with losing(info, "PATCH") as troubled:
        with pytest.raises(webop.APIConnectionError, match="unknown whether"):
            await troubled.patch("configmaps", "one", [add], **place)
    found = await own.get("configmaps", "one", **place)
    assert found["metadata"]["finalizers"] == ["example.com/a", "example.com/b"]
    version = found["metadata"]["resourceVersion"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    async with losing(info, "PATCH") as troubled:
        with pytest.raises(webop.APIStatusError, match=r"An earlier attempt .* been executed"):
            await troubled.patch("configmaps", "one", [test, add], **place)
    await own.patch("configmaps", "one", {"metadata": {"finalizers": []}}, **place)


async def test_a_kind_of_an_api_group_that_does_not_answer_is_not_absent(
    info: webop.ConnectionInfo,
) -> None:
    version = {"version": "v1", "freshness": "Stale", "resources": []}
    group = {"metadata": {"name": "metrics.k8s.io"}, "versions": [version]}

    async def rule(request: Request) -> Response | Request:
        if request.target == "/apis":
            return Made(200, {"kind": "APIGroupDiscoveryList", "items": [group]})
        return request

    async with meddle(info, rule) as client:
        with pytest.raises(APIServerError, match=r"not respond .*: metrics\.k8s\.io/v1\."):
            await client.list("nodemetrics.metrics.k8s.io")
        with pytest.raises(webop.APINotFoundError, match="There is no kind"):
            await client.list("dogs.example.com")


@rows("what", ["/api", "/configmaps"])
async def test_waiting_ends_in_time_although_the_server_does_not_answer(
    info: webop.ConnectionInfo, what: str
) -> None:
    async def rule(request: Request) -> Response | Request:
        if request.target == what or "configmaps" in request.target:
            await asyncio.Event().wait()
        return request

    async with asyncio.timeout(10), meddle(info, rule) as client:
        with pytest.raises(webop.APITimeoutError, match=r"0\.2 s: the API server did not respond"):
            await client.wait_for("configmaps", "a", "Ready", namespace="default", timeout=0.2)


@pytest.fixture
def kinds(widgets: Kind) -> Iterator[Kind]:
    return iter([widgets])


MANY = [f"one-{index}" for index in range(16)]
"""As many as requests of handlers can be in flight."""


async def create(site: Site, client: AsyncClient, names: list[str], labels: dict[str, str]) -> None:
    kind = {"apiVersion": site.objects.resource.api_version, "kind": site.objects.kind.kind}
    metadata = {"namespace": site.objects.namespace, "labels": labels}
    bodies = [{**kind, "metadata": {**metadata, "name": name}, "spec": {}} for name in names]
    await asyncio.gather(*map(client.create, bodies))


async def test_daemons_reviews_and_probes_do_not_wait_for_sixteen_requests_of_handlers_that_hang(
    site: Site, webop_namespace: str
) -> None:
    held = {"held": "yes"}
    hanging, answered = list[str](), set[str]()
    all_hang, released = asyncio.Event(), asyncio.Event()

    @webop.on.validate(*site.names, timeout_seconds=30, labels=held)
    async def hold(name: str, **_: Any) -> None:
        hanging.append(name)
        if len(hanging) == len(MANY):
            all_hang.set()
        await released.wait()

    @webop.on.create("configmaps", labels=held)
    async def make(client: webop.AsyncClient, **_: Any) -> None:
        await create(site, client, MANY, held)

    async def ask(who: str, client: webop.AsyncClient) -> None:
        await all_hang.wait()
        await client.get("namespaces", webop_namespace)
        answered.add(who)

    @webop.daemon("configmaps", labels=held)
    async def look(client: webop.AsyncClient, **_: Any) -> None:
        await ask("daemon", client)

    @webop.on.validate(*site.names, labels={"free": "yes"})
    async def judge(client: webop.AsyncClient, **_: Any) -> None:
        await ask("review", client)

    @webop.on.probe()
    async def probe(client: webop.AsyncClient, **_: Any) -> None:
        if hanging:  # not before the start is over
            await ask("probe", client)

    endpoint = f"http://127.0.0.1:{find_free_port()}/healthz"
    async with site.run(liveness_endpoint=endpoint), httpx.AsyncClient() as http:
        body = build_map("all", webop_namespace)
        body["metadata"]["labels"] = held
        own = AsyncClient(site.client)
        await own.create(body)
        await asyncio.wait_for(all_hang.wait(), 20)
        await asyncio.wait_for(create(site, own, ["free"], {"free": "yes"}), 20)
        assert (await http.get(endpoint, timeout=20)).is_success
        await eventually(lambda: answered == {"daemon", "review", "probe"}, timeout=20)
        released.set()


async def test_a_list_whose_pages_expire_goes_on_with_the_rest(
    info: webop.ConnectionInfo, client: Client, webop_namespace: str
) -> None:
    for name in ("one", "two"):
        await AsyncClient(client).create(build_map(name, webop_namespace))
    tokens = list[str]()

    async def rule(request: Request) -> Response | Request:
        _, _, token = request.target.partition("continue=")
        tokens.append(token) if "configmaps" in request.target else None
        if token and len(tokens) == 2:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            return Made(410, {**status, "metadata": {"continue": unquote(token)}})
        return request._replace(target=request.target.replace("limit=500", "limit=1"))

    async with meddle(info, rule) as troubled:
        found = await troubled.list("configmaps", namespace=webop_namespace)
    assert [item["metadata"]["name"] for item in found] == ["one", "two"]
    assert tokens[0] == ""
    assert tokens[1:] == [tokens[1]] * 2
