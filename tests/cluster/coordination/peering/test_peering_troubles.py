"""What is wrong with records, permissions and the API server does not end peering."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import webop
from tests.cluster.coordination.peering.pauses import stay_out
from tests.kit.forwarder import Forwarder
from tests.kit.http_relay import relay
from tests.kit.operators import (
    Calls,
    Objects,
    RunOperator,
    build_settings,
    get_connection,
    operate,
)
from tests.kit.peering_objects import (
    PeeringObject,
    build_record,
)
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo
from webop.errors import APIConflictError

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

LOST = {"error_backoffs": [0.05] * 20, "request_timeout": 2}


async def test_garbage_in_the_status_is_told_once_and_ignored(
    run_operator: RunOperator,
    shared: PeeringObject,
    objects: Objects,
    log: pytest.LogCaptureFixture,
) -> None:
    await shared.create(kopf={"progress": {}}, x="text", y={"priority": "high"})  # type: ignore[arg-type]
    async with run_operator(standalone=False, identity="me"):
        await objects.pass_fence()
        await shared.write("z", {"priority": 1, "lastseen": "yesterday"})
        await eventually(lambda: "'z'" in log.text)
        await objects.pass_fence()
    for identity in ("kopf", "x", "y", "z"):
        assert log.text.count(f"Ignoring the record of {identity!r}") == 1
    assert "Traceback" not in log.text
    assert set(await shared.read()) == {"kopf", "x", "y", "z"}


class TestWithoutTheServer:
    @pytest.fixture
    async def proxy(self, webop_cluster: LocalCluster) -> AsyncIterator[Forwarder]:
        async with Forwarder(webop_cluster.server).listen() as proxy:
            yield proxy

    @pytest.fixture
    def info(self, webop_cluster: LocalCluster, proxy: Forwarder) -> ConnectionInfo:
        return get_connection(webop_cluster, proxy.url)

    @pytest.mark.feature("PEE-14")
    async def test_records_count_and_expire_while_it_is_away(
        self,
        run_operator: RunOperator,
        proxy: Forwarder,
        shared: PeeringObject,
        objects: Objects,
        calls: Calls,
        log: pytest.LogCaptureFixture,
    ) -> None:
        await shared.create(boss=build_record(100, lifetime=3))
        settings = build_settings(networking=LOST, peering={"lifetime": 2})
        async with run_operator(settings, standalone=False, identity="me"):
            await stay_out(objects, calls, log)
            proxy.is_refusing = True
            proxy.cut()
            await eventually(lambda: "Cannot renew the record" in log.text)
            await eventually(lambda: "Resuming" in log.text)
            proxy.is_refusing = False
            await calls.wait("ignored")
            await shared.wait(lambda records: set(records) == {"me"})
        warnings = [r for r in log.records if "Cannot renew the record" in r.getMessage()]
        assert [r.levelno for r in warnings].count(logging.WARNING) == 1


@pytest.mark.feature("PEE-13")
async def test_a_record_that_is_lost_while_it_is_renewed_is_written_again(
    webop_cluster: LocalCluster,
    registry: webop.OperatorRegistry,
    shared: PeeringObject,
    log: pytest.LogCaptureFixture,
) -> None:
    async def meddle(request: httpx.Request) -> httpx.Response | None:
        is_first = len(relayed.list_requests("PATCH", "kopfpeerings")) == 1
        if request.method != "PATCH" or "kopfpeerings" not in request.url.path or not is_first:
            return None
        response = await relayed.pass_on(request)
        await shared.write("me", None)
        await shared.write("third", "text")
        await eventually(lambda: "'third'" in log.text, "the event")
        return response

    await shared.create()
    async with relay(webop_cluster) as relayed:
        relayed.meddle = meddle
        options: Any = {"beside": True, "standalone": False, "identity": "me"}
        async with operate(relayed.info, registry, namespaces=[shared.namespace], **options):
            await eventually(lambda: "'third'" in log.text, "the event")
            start = time.monotonic()
            await shared.wait(lambda records: "me" in records)
            assert time.monotonic() - start < 8


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
        shared: PeeringObject,
        objects: Objects,
        log: pytest.LogCaptureFixture,
    ) -> None:
        await shared.create()
        await grant(shared.client, objects.namespace, [])
        async with run_operator(standalone=False, identity="me"):
            await objects.pass_fence()
            assert "cannot be read, falling back to the standalone mode" in log.text
            assert "Grant the verb 'list' on 'kopfpeerings'" in log.text
            await grant(shared.client, objects.namespace, [*READING, "patch"])
            await shared.wait(lambda records: "me" in records)

    @pytest.mark.feature("CFG-07")
    async def test_if_it_must_be_there_it_acts_only_when_it_may_write(
        self,
        run_operator: RunOperator,
        shared: PeeringObject,
        objects: Objects,
        calls: Calls,
        log: pytest.LogCaptureFixture,
    ) -> None:
        await shared.create()
        await grant(shared.client, objects.namespace, READING)
        async with run_operator(standalone=False, identity="me", peering_name="default"):
            await stay_out(objects, calls, log)
            assert "Grant the verb 'patch' on 'kopfpeerings'" in log.text
            await grant(shared.client, objects.namespace, [*READING, "patch"])
            await calls.wait("ignored")
        assert await shared.read() == {}
