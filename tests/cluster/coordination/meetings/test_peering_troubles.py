"""What is wrong with records, permissions and the API server does not end peering."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import webop
from tests.cluster.coordination.meetings.pauses import stay_out
from tests.kit.http_relay import Relay, relay
from tests.kit.operators import (
    Calls,
    Objects,
    RunOperator,
    build_settings,
    eventually,
    get_connection,
    operate,
)
from tests.kit.peering_objects import (
    Meeting,
    build_record,
)
from tests.kit.tcp_proxy import Proxy, intercept
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo
from webop.errors import APIConflictError

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

LOST = {"error_backoffs": [0.05] * 20, "request_timeout": 2}


async def test_garbage_in_the_status_is_told_once_and_ignored(
    run_operator: RunOperator, meeting: Meeting, objects: Objects, log: pytest.LogCaptureFixture
) -> None:
    await meeting.create(kopf={"progress": {}}, x="text", y={"priority": "high"})  # type: ignore[arg-type]
    async with run_operator(standalone=False, identity="me"):
        await objects.pass_fence()
        await meeting.write("z", {"priority": 1, "lastseen": "yesterday"})
        await eventually(lambda: "'z'" in log.text)
        await objects.pass_fence()
    for identity in ("kopf", "x", "y", "z"):
        assert log.text.count(f"Ignoring the record of {identity!r}") == 1
    assert "Traceback" not in log.text
    assert set(await meeting.read()) == {"kopf", "x", "y", "z"}


async def test_garbage_that_was_removed_is_forgotten_and_told_again_if_it_comes_back(
    run_operator: RunOperator, meeting: Meeting, objects: Objects, log: pytest.LogCaptureFixture
) -> None:
    await meeting.create(z="text")  # type: ignore[arg-type]
    async with run_operator(standalone=False, identity="me"):
        await objects.pass_fence()
        await meeting.write("z", None)
        await meeting.write("z", "text")
        await eventually(lambda: log.text.count("Ignoring the record of 'z'") == 2)


class TestWithoutTheServer:
    @pytest.fixture
    async def proxy(self, webop_cluster: LocalCluster) -> AsyncIterator[Proxy]:
        async with intercept(webop_cluster.server) as proxy:
            yield proxy

    @pytest.fixture
    def info(self, webop_cluster: LocalCluster, proxy: Proxy) -> ConnectionInfo:
        return get_connection(webop_cluster, proxy.url)

    @pytest.mark.feature("PEE-14")
    async def test_records_count_and_expire_while_it_is_away(
        self,
        run_operator: RunOperator,
        proxy: Proxy,
        meeting: Meeting,
        objects: Objects,
        calls: Calls,
        log: pytest.LogCaptureFixture,
    ) -> None:
        await meeting.create(boss=build_record(100, lifetime=3))
        settings = build_settings(networking=LOST, peering={"lifetime": 2})
        async with run_operator(settings, standalone=False, identity="me"):
            await stay_out(objects, calls, log)
            proxy.is_refusing = True
            proxy.cut()
            await eventually(lambda: "Cannot renew the record" in log.text)
            await eventually(lambda: "Resuming" in log.text)
            proxy.is_refusing = False
            await calls.wait("ignored")
            await meeting.wait(lambda records: set(records) == {"me"})
        warnings = [r for r in log.records if "Cannot renew the record" in r.getMessage()]
        assert [r.levelno for r in warnings].count(logging.WARNING) == 1


@pytest.mark.feature("PEE-14")
async def test_what_a_watch_shows_late_does_not_resume_an_operator_that_has_read_later_states(
    webop_cluster: LocalCluster,
    registry: webop.OperatorRegistry,
    meeting: Meeting,
    objects: Objects,
    calls: Calls,
    log: pytest.LogCaptureFixture,
) -> None:
    is_shown = asyncio.Event()
    is_shown.set()

    async def show(request: httpx.Request) -> AsyncIterator[bytes]:
        async for data in relayed.pass_watch_on(request):
            if request.url.path.endswith("/kopfpeerings"):
                await is_shown.wait()
            yield data

    await meeting.create(boss=build_record(100, lifetime=5))
    async with relay(webop_cluster) as relayed:
        relayed.watch = show
        options: Any = {"beside": True, "standalone": False, "identity": "me"}
        options["namespaces"] = [objects.namespace]
        async with operate(relayed.info, registry, **options):
            await stay_out(objects, calls, log)
            is_shown.clear()
            await meeting.delete()
            await meeting.create()
            await meeting.write("boss", build_record(100, lastseen="2020-01-01T00:00:00Z"))
            await meeting.write("boss", build_record(100))
            relayed.requests.clear()
            await eventually(lambda: relayed.list_requests("GET", "kopfpeerings"), "another read")
            is_shown.set()
            await meeting.write("boss", build_record(200))
            await eventually(lambda: "priority 200" in log.text, "the last state")
            assert "Resuming" not in log.text
            assert not len(calls)
            await meeting.write("boss", None)
            await calls.wait("ignored")


class Backup:
    """Shows all versions of peerings a million higher, until a backup "is restored"."""

    def __init__(self, relayed: Relay) -> None:
        self.relayed = relayed
        self.is_away = asyncio.Event()
        self.is_restored = asyncio.Event()
        relayed.watch, relayed.meddle = self.show, self.meddle

    async def restore(self, change: Awaitable[None]) -> None:
        """Let the operator see nothing until a change is made, and then the real versions."""
        self.is_away.set()
        await change
        self.is_restored.set()

    @staticmethod
    def raise_versions(data: bytes) -> bytes:
        pattern = rb'"resourceVersion":"(\d+)"'
        return re.sub(pattern, lambda m: b'"resourceVersion":"%d"' % (int(m[1]) + 10**6), data)

    async def meddle(self, request: httpx.Request) -> httpx.Response | None:
        is_read = request.method == "GET" and "kopfpeerings" in request.url.path
        if not is_read or self.is_restored.is_set():
            return None
        if self.is_away.is_set():
            await self.is_restored.wait()
            return None
        found = await self.relayed.pass_on(request)
        return httpx.Response(found.status_code, content=self.raise_versions(found.content))

    async def show(self, request: httpx.Request) -> AsyncIterator[bytes]:
        if not request.url.path.endswith("/kopfpeerings") or self.is_restored.is_set():
            async for data in self.relayed.pass_watch_on(request):
                yield data
            return
        version = request.url.params.get("resourceVersion", "")
        assert not version, "the first watch lists"
        stream = self.relayed.pass_watch_on(request)
        ended = asyncio.ensure_future(self.is_away.wait())
        while True:
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                reading.cancel()
                await self.is_restored.wait()
                yield b'{"type":"ERROR","object":{"kind":"Status","code":410}}\n'
                return
            yield self.raise_versions(reading.result())


@pytest.fixture
async def backup(webop_cluster: LocalCluster) -> AsyncIterator[Backup]:
    async with relay(webop_cluster) as relayed:
        yield Backup(relayed)


@pytest.fixture
def run_relayed(
    backup: Backup, registry: webop.OperatorRegistry, meeting: Meeting
) -> Callable[[], AbstractAsyncContextManager[Any]]:
    options: Any = {"beside": True, "standalone": False, "identity": "me"}
    options["namespaces"] = [meeting.namespace]
    return partial(operate, backup.relayed.info, registry, **options)


RunRelayed = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.mark.feature("PEE-14")
async def test_a_peering_that_is_created_after_a_backup_without_it_was_restored_is_noticed(
    run_relayed: RunRelayed, backup: Backup, meeting: Meeting, log: pytest.LogCaptureFixture
) -> None:
    await meeting.create()
    async with run_relayed():
        await meeting.wait(lambda records: "me" in records)
        await backup.restore(meeting.delete())
        await eventually(lambda: "is not found" in log.text, "the restored cluster")
        await meeting.create(boss=build_record(100))
        await eventually(lambda: "Pausing in favour of boss" in log.text, "the pause")


@pytest.mark.feature("PEE-14")
async def test_a_peer_that_is_not_in_a_restored_backup_counts_until_it_writes_its_record_again(
    run_relayed: RunRelayed,
    backup: Backup,
    meeting: Meeting,
    objects: Objects,
    calls: Calls,
    log: pytest.LogCaptureFixture,
) -> None:
    await meeting.create(boss=build_record(100))
    async with run_relayed():
        await stay_out(objects, calls, log)
        await meeting.wait(lambda records: "me" in records)
        await backup.restore(meeting.write("boss", None))
        await meeting.write("third", "text")
        await eventually(lambda: "'third'" in log.text, "the restored object")
        await asyncio.sleep(0.2)  # for what should not happen
        assert "Resuming" not in log.text
        assert not len(calls)
        await meeting.write("boss", build_record(100))
        await meeting.write("boss", None)
        await calls.wait("ignored")


@pytest.mark.feature("PEE-13")
async def test_records_are_not_written_again_and_again_while_watches_are_late(
    webop_cluster: LocalCluster, meeting: Meeting
) -> None:
    async def show(request: httpx.Request) -> AsyncIterator[bytes]:
        if not request.url.path.endswith("/kopfpeerings"):
            async for data in relayed.pass_watch_on(request):
                yield data
            return
        items: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            async for data in relayed.pass_watch_on(request):
                items.put_nowait((time.monotonic() + 1.6, data))

        reading = asyncio.create_task(read())
        try:
            while True:
                at, data = await items.get()
                await asyncio.sleep(max(0, at - time.monotonic()))
                yield data
        finally:
            reading.cancel()

    await meeting.create()
    async with relay(webop_cluster) as relayed, contextlib.AsyncExitStack() as stack:
        relayed.watch = show
        for number in range(2):
            settings = build_settings(peering={"priority": number})
            options: Any = {"beside": True, "standalone": False, "identity": f"op{number}"}
            options["namespaces"] = [meeting.namespace]
            registry = webop.OperatorRegistry()
            webop.on.event("widgets", registry=registry)(lambda **_: None)
            running = operate(relayed.info, registry, settings, **options)
            await stack.enter_async_context(running)
        await meeting.wait(lambda records: len(records) == 2)
        await asyncio.sleep(2)
        await meeting.write("third", build_record(-1))
        await asyncio.sleep(6)
        patches = relayed.list_requests("PATCH", "kopfpeerings")
        assert len(patches) == 2


@pytest.mark.feature("PEE-13")
async def test_a_record_that_is_lost_while_it_is_renewed_is_written_again(
    webop_cluster: LocalCluster,
    registry: webop.OperatorRegistry,
    meeting: Meeting,
    log: pytest.LogCaptureFixture,
) -> None:
    async def meddle(request: httpx.Request) -> httpx.Response | None:
        is_first = len(relayed.list_requests("PATCH", "kopfpeerings")) == 1
        if request.method != "PATCH" or "kopfpeerings" not in request.url.path or not is_first:
            return None
        response = await relayed.pass_on(request)
        await meeting.write("me", None)
        await meeting.write("third", "text")
        await eventually(lambda: "'third'" in log.text, "the event")
        return response

    await meeting.create()
    async with relay(webop_cluster) as relayed:
        relayed.meddle = meddle
        options: Any = {"beside": True, "standalone": False, "identity": "me"}
        async with operate(relayed.info, registry, namespaces=[meeting.namespace], **options):
            await eventually(lambda: "'third'" in log.text, "the event")
            start = time.monotonic()
            await meeting.wait(lambda records: "me" in records)
            assert time.monotonic() - start < 8


@pytest.mark.feature("PEE-13")
@pytest.mark.parametrize("content", ["[]", '"text"', '{"metadata":null}', "null"])
async def test_an_odd_answer_to_the_renewal_does_not_end_the_operator(
    webop_cluster: LocalCluster,
    registry: webop.OperatorRegistry,
    meeting: Meeting,
    objects: Objects,
    calls: Calls,
    content: str,
) -> None:
    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or "kopfpeerings" not in request.url.path:
            return None
        await relayed.pass_on(request)
        head = {"content-type": "application/json"}
        return httpx.Response(200, content=content.encode(), headers=head)

    await meeting.create()
    async with relay(webop_cluster) as relayed:
        relayed.meddle = meddle
        options: Any = {"beside": True, "standalone": False, "identity": "me"}
        async with operate(relayed.info, registry, namespaces=[meeting.namespace], **options):
            await meeting.wait(lambda records: "me" in records)
            await objects.create("one", labels={"x": "y"})
            await calls.wait("one")
            await asyncio.sleep(1)
            assert len(relayed.list_requests("PATCH", "kopfpeerings")) == 1


@pytest.mark.feature("PEE-13")
@pytest.mark.parametrize("kind", ["missing", "expired", "older"])
async def test_a_record_that_a_restored_backup_does_not_have_is_written_again_in_time(
    run_operator: RunOperator, meeting: Meeting, kind: str
) -> None:
    expired = build_record(0, lastseen="2020-01-01T00:00:00Z")
    found = {"missing": None, "expired": expired, "older": build_record(0, lifetime=8)}[kind]
    await meeting.create()
    async with run_operator(standalone=False, identity="me"):
        written = (await meeting.wait(lambda records: "me" in records))["me"]
        await meeting.write("me", found)
        start = time.monotonic()
        await meeting.wait(lambda records: records.get("me") not in (found, written))
        assert time.monotonic() - start < 8
        record = (await meeting.read())["me"]
        await asyncio.sleep(2)
        assert (await meeting.read())["me"] == record


RBAC = "/apis/rbac.authorization.k8s.io/v1"
READING = ["get", "list", "watch"]


async def grant(client: Client, namespace: str, verbs: list[str]) -> None:
    """Let the account of the test do something with peerings, or more of it."""
    kinds = {
        "": ["*"],
        "tests.webop.dev": ["*"],
        **({"kopf.dev": ["kopfpeerings"]} if verbs else {}),
    }
    rules = [
        {"apiGroups": [group], "resources": names, "verbs": verbs if group == "kopf.dev" else ["*"]}
        for group, names in kinds.items()
    ]
    where = f"{RBAC}/namespaces/{namespace}"
    role = {"metadata": {"name": "operator"}, "rules": rules}
    binding = {
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    try:
        await client.request("POST", f"{where}/roles", body=role)
        await client.request("POST", f"{where}/rolebindings", body=binding)
    except APIConflictError:
        await client.request("PUT", f"{where}/roles/operator", body=role)


class TestWithFewRights:
    @pytest.fixture
    async def info(
        self, client: Client, webop_cluster: LocalCluster, webop_namespace: str
    ) -> ConnectionInfo:
        path = f"/api/v1/namespaces/{webop_namespace}/serviceaccounts/default"
        account = {"metadata": {"name": "default"}}
        with contextlib.suppress(APIConflictError):  # a controller may have been quicker
            await client.request("POST", path.removesuffix("/default"), body=account)
        answer = await client.request("POST", f"{path}/token", body={"spec": {}})
        return ConnectionInfo(
            server=webop_cluster.server,
            ca_data=webop_cluster.ca_data,
            token=answer["status"]["token"],
        )

    async def test_without_the_right_to_look_it_says_which_one_and_goes_on(
        self,
        run_operator: RunOperator,
        meeting: Meeting,
        objects: Objects,
        log: pytest.LogCaptureFixture,
    ) -> None:
        await meeting.create()
        await grant(meeting.client, objects.namespace, [])
        async with run_operator(standalone=False, identity="me"):
            await objects.pass_fence()
            assert "cannot be read, falling back to the standalone mode" in log.text
            assert "Grant the verb 'list' on 'kopfpeerings'" in log.text
            await grant(meeting.client, objects.namespace, [*READING, "patch"])
            await meeting.wait(lambda records: "me" in records)

    @pytest.mark.feature("CFG-07")
    async def test_if_it_must_be_there_it_acts_only_when_it_may_write(
        self,
        run_operator: RunOperator,
        meeting: Meeting,
        objects: Objects,
        calls: Calls,
        log: pytest.LogCaptureFixture,
    ) -> None:
        await meeting.create()
        await grant(meeting.client, objects.namespace, READING)
        async with run_operator(standalone=False, identity="me", peering_name="default"):
            await stay_out(objects, calls, log)
            assert "Grant the verb 'patch' on 'kopfpeerings'" in log.text
            await grant(meeting.client, objects.namespace, [*READING, "patch"])
            await calls.wait("ignored")
        assert await meeting.read() == {}
