"""The client of handlers when values, answers, or the moment are not as one would wish."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

import webop
from tests.cluster.client.test_objects import build_map
from tests.kit.managed_webhooks import Site
from tests.kit.operators import Kind
from tests.kit.waiting import eventually
from webop.aio.work_deadline import Fence, current_fence, fence_child_tasks, read_clock
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
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
async def meddle(info: ConnectionInfo, rule: Rule) -> AsyncIterator[AsyncClient]:
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
    vault = Vault({"test": info})
    async with Client(vault, networking, transport_factory=lambda _: Transport()) as requests:
        yield AsyncClient(requests)


@contextlib.asynccontextmanager
async def losing(info: ConnectionInfo, method: str) -> AsyncIterator[AsyncClient]:
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
    info: ConnectionInfo, client: Client, webop_namespace: str
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


async def test_a_namespace_leads_to_no_other_path(client: Client, webop_namespace: str) -> None:
    handlers_client = AsyncClient(client)
    for namespace in (f"{webop_namespace}?x=", f"{webop_namespace}#", f"{webop_namespace} x"):
        with pytest.raises(webop.APINotFoundError, match="configmaps"):
            await handlers_client.get("configmaps", "one", namespace=namespace)
        await handlers_client.delete("configmaps", "one", namespace=namespace, missing_ok=True)
    found = await handlers_client.get("namespaces", webop_namespace)
    assert "deletionTimestamp" not in found["metadata"]


async def test_kinds_that_the_server_did_not_tell_of_are_not_absent(info: ConnectionInfo) -> None:
    asked, is_down, gate = 0, True, asyncio.Event()

    async def rule(request: Request) -> Response | Request:
        nonlocal asked
        if request.target == "/api" and is_down:
            asked += 1
            await gate.wait()
            raise ConnectionResetError("gone")
        return request

    async with meddle(info, rule) as client:
        tasks = [asyncio.create_task(client.list("nodes")) for _ in range(5)]
        await eventually(lambda: asked)
        tasks[0].cancel()  # while the others wait for what it has asked
        gate.set()
        results = await asyncio.gather(*tasks[1:], return_exceptions=True)
        is_down = False
        assert await client.list("nodes") == []
    assert {type(result) for result in results} == {webop.APIConnectionError}


async def test_a_kind_of_an_api_group_that_does_not_answer_is_not_absent(
    info: ConnectionInfo,
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


@pytest.mark.parametrize("what", ["/api", "/configmaps"])
async def test_waiting_ends_in_time_although_the_server_does_not_answer(
    info: ConnectionInfo, what: str
) -> None:
    async def rule(request: Request) -> Response | Request:
        if request.target == what or "configmaps" in request.target:
            await asyncio.Event().wait()
        return request

    async with asyncio.timeout(10), meddle(info, rule) as client:
        with pytest.raises(webop.APITimeoutError, match=r"0\.2 s: the API server did not respond"):
            await client.wait_for("configmaps", "a", "Ready", namespace="default", timeout=0.2)


async def test_an_async_condition_is_refused(client: Client) -> None:
    async def is_there(_: Any) -> bool:
        return False

    with pytest.raises(TypeError, match="must not be an async function"):
        await AsyncClient(client).wait_for("namespaces", "default", is_there)


@pytest.mark.parametrize("answer", [None, [], "fine", {"metadata": None}])
async def test_what_is_no_object_is_an_error_of_the_connection(
    info: ConnectionInfo, answer: Any
) -> None:
    async def rule(request: Request) -> Response | Request:
        if "configmaps/" in request.target:
            return Made(200, answer)
        if "configmaps?" in request.target:
            return Made(200, {"metadata": {}, "items": [answer or 0]})
        return request

    async with meddle(info, rule) as client:
        with pytest.raises(webop.APIConnectionError):
            await client.get("configmaps", "one", namespace="default")
        with pytest.raises(webop.APIConnectionError):
            await client.list("configmaps", namespace="default")
        with pytest.raises(webop.APITimeoutError, match="something other than an event"):
            await client.wait_for("configmaps", "one", "Ready", namespace="default", timeout=0.5)


async def test_a_list_whose_pages_expire_goes_on_with_the_rest(
    info: ConnectionInfo, client: Client, webop_namespace: str
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


async def test_threads_that_handlers_start_end_with_the_right_to_act(client: Client) -> None:
    fence_child_tasks(asyncio.get_running_loop())
    handlers_client = AsyncClient(client)
    handlers_client.enter()
    fence = Fence()
    fence.ends_at = read_clock() + 60
    current_fence.set(fence)
    sync, results = handlers_client.sync, list[Any]()

    def ask() -> None:
        try:
            results.append(sync.get("namespaces", "default")["kind"])
        except webop.APIConnectionError as exc:
            results.append(exc)

    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        await asyncio.get_running_loop().run_in_executor(None, thread.join)
        fence.ends_at = read_clock()
        current_fence.set(None)  # the test itself goes on
    kind, refusal = results
    assert kind == "Namespace"
    assert "is no longer the leader" in str(refusal)


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


async def test_reviews_do_not_wait_for_requests_that_wait_for_them(
    site: Site, webop_namespace: str
) -> None:
    reviewed = {"reviewed": "yes"}
    reviews, overdue = list[str](), list[str]()
    are_all_here, ended = asyncio.Event(), asyncio.Event()

    @webop.on.validate(*site.names, timeout_seconds=5, labels=reviewed)
    async def judge(name: str, client: webop.AsyncClient, **_: Any) -> None:
        reviews.append(name)
        if len(reviews) == len(MANY):
            are_all_here.set()
        await are_all_here.wait()
        try:
            await client.get("namespaces", webop_namespace)
        except asyncio.CancelledError:
            overdue.append(name)
            raise

    @webop.on.create("configmaps", labels=reviewed)
    async def make(client: webop.AsyncClient, **_: Any) -> None:
        await create(site, client, MANY, reviewed)
        ended.set()

    async with site.run():
        body = build_map("all", webop_namespace)
        body["metadata"]["labels"] = reviewed
        await AsyncClient(site.client).create(body)
        await asyncio.wait_for(ended.wait(), 20)
    assert not overdue


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
