"""Operators whose credentials end while they run, against a real API server."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime as dt
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest

import webop
from tests.kit.exec_plugins import build_kubeconfig
from tests.kit.leases import LEASES
from tests.kit.operators import Objects, RunOperator, build_settings
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.expiration import parse_certificate_lifetime
from webop.client.auth.logins import read_service_account
from webop.controlplane.credentials import CredentialFiles
from webop.errors import APIUnauthorizedError
from webop.servers.certificates.certs import build_certificate_signed
from webop.settings.groups import NetworkingSettings
from webop.testing import LocalCluster

ACCOUNTS = webop.Resource("", "v1", "serviceaccounts", namespaced=True)
SECRETS = webop.Resource("", "v1", "secrets", namespaced=True)
BINDINGS = webop.Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", namespaced=False
)


class Account:
    """A service account that may do everything, and its tokens, each of which can be revoked."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def create(self) -> None:
        subject = {"kind": "ServiceAccount", "name": "operator", "namespace": self._namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
        binding = {
            "metadata": {"name": f"all-{self._namespace}"},
            "subjects": [subject],
            "roleRef": {**role, "name": "cluster-admin"},
        }
        account = {"metadata": {"name": "operator"}}
        await self._client.create(ACCOUNTS, self._namespace, account)
        await self._client.create(BINDINGS, None, binding)

    async def issue(self, name: str) -> str:
        """Return a token that is good for as long as a secret of this name exists."""
        secret = await self._client.create(SECRETS, self._namespace, {"metadata": {"name": name}})
        bound = {"kind": "Secret", "apiVersion": "v1", "name": name}
        bound["uid"] = secret["metadata"]["uid"]
        path = ACCOUNTS.get_url(namespace=self._namespace, name="operator", subresource="token")
        body = {"spec": {"boundObjectRef": bound, "expirationSeconds": 3600}}
        answer = await self._client.request("POST", path, body=body)
        token: str = answer["status"]["token"]
        return token

    async def revoke(self, name: str) -> None:
        await self._client.delete(SECRETS, self._namespace, name)


@pytest.fixture
async def account(client: Client, webop_namespace: str) -> Account:
    account = Account(client, webop_namespace)
    await account.create()
    return account


@pytest.fixture
def handled() -> list[str]:
    names: list[str] = []

    @webop.on.create("widgets")
    def created(name: str, **_: Any) -> str:
        names.append(name)
        return "done"

    return names


async def handle(objects: Objects, handled: list[str], name: str) -> None:
    """Have an object handled, with what is to be stored of it: watch, call, patch."""
    await objects.make(name)
    assert name in handled


def write_kubeconfig(path: Path, cluster: LocalCluster, user: dict[str, Any]) -> None:
    fields = {"server": cluster.server, "certificate-authority-data": cluster.ca_data}
    config = build_kubeconfig(user, **fields)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(config))
    new.rename(path)


async def wait_revoked(cluster: LocalCluster, token: str) -> None:
    """Wait until a token is refused: API servers remember for a while that it was good."""
    info = webop.ConnectionInfo(server=cluster.server, ca_data=cluster.ca_data, token=token)

    async def is_refused() -> bool:
        async with Client(webop.Vault({"x": info}), NetworkingSettings()) as client:
            try:
                async with client.stream("/api"):
                    return False
            except APIUnauthorizedError:
                return True

    await eventually(is_refused, "the refusal of the token")


@pytest.mark.feature("AUT-09", "AUT-16", "AUT-17", "AUT-23")
async def test_a_token_of_a_pod_that_is_revoked_is_replaced_by_the_next_one(
    webop_cluster: LocalCluster,
    run_operator: RunOperator,
    objects: Objects,
    handled: list[str],
    account: Account,
    tmp_path: Path,
) -> None:
    address = urlsplit(webop_cluster.server)
    environ = {
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }
    old = await account.issue("old")
    (tmp_path / "token").write_text(old)
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(webop_cluster.ca_data))
    brought: list[webop.ConnectionInfo | None] = []

    @webop.on.login()
    def log_in(**_: Any) -> webop.ConnectionInfo | None:
        brought.append(read_service_account(tmp_path, environ))
        return brought[-1]

    async with run_operator(vault=None):
        await handle(objects, handled, "before")
        (tmp_path / "token").write_text(await account.issue("new"))
        await account.revoke("old")
        await wait_revoked(webop_cluster, old)
        await handle(objects, handled, "after")
    assert len(brought) == 2
    assert all(found and 0 < found.expires_at - time.time() < 3600 for found in brought)


@pytest.mark.feature("REF-76")
async def test_a_session_of_aiohttp_that_is_refused_is_closed_and_replaced_by_the_next_one(
    webop_cluster: LocalCluster,
    run_operator: RunOperator,
    objects: Objects,
    handled: list[str],
    info: webop.ConnectionInfo,
) -> None:
    sessions: list[aiohttp.ClientSession] = []

    @webop.on.login()
    async def log_in(**_: Any) -> webop.AiohttpSession:
        found = dataclasses.replace(info, token=info.token if sessions else "wrong")
        connector = aiohttp.TCPConnector(ssl=found.as_ssl_context())
        session = aiohttp.ClientSession(connector=connector, headers=found.as_http_headers())
        sessions.append(session)
        return webop.AiohttpSession(server=webop_cluster.server, aiohttp_session=session)

    async with run_operator(vault=None):
        await handle(objects, handled, "one")
    assert [session.closed for session in sessions] == [True, True]


@pytest.mark.feature("AUT-13", "AUT-14", "AUT-18")
async def test_certificates_that_end_are_replaced_and_without_new_ones_the_operator_ends(
    webop_cluster: LocalCluster,
    run_operator: RunOperator,
    objects: Objects,
    handled: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    settings = build_settings(networking={"error_backoffs": (0.1,)})

    async def renew() -> None:
        fields, end = build_brief_certificate(webop_cluster, seconds=4)
        write_kubeconfig(path, webop_cluster, fields)
        ends.append(end)

    async def outlive(end: float) -> None:
        await asyncio.sleep(end - time.time() + 0.01)

    async def live_on() -> None:
        async with run_operator(settings, vault=None) as running:
            await handle(objects, handled, "first")
            await outlive(ends[0])
            await renew()
            await handle(objects, handled, "second")
            await outlive(ends[1])
            await objects.create("third")
            await asyncio.wait(running.tasks, timeout=20)

    ends: list[float] = []
    await renew()
    with pytest.raises(webop.LoginError, match=r"client certificate.*expired at 20.*Renew"):
        await live_on()
    assert handled[:2] == ["first", "second"]


def build_brief_certificate(cluster: LocalCluster, seconds: float) -> tuple[dict[str, str], float]:
    """Return the fields of an administrator in a kubeconfig, and when they end."""
    pair = build_certificate_signed(
        CredentialFiles(cluster.folder).read_ca(),
        common_name="brief",
        organizations=["system:masters"],
        client=True,
        days=seconds / 86400,
    )
    fields = {
        "client-certificate-data": base64.b64encode(pair.cert).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
    }
    lifetime = parse_certificate_lifetime(pair.cert)
    assert lifetime is not None
    return fields, lifetime.end


@pytest.mark.feature("AUT-04", "AUT-15", "AUT-16", "AUT-19")
async def test_of_several_credentials_those_that_are_refused_are_left_out(
    run_operator: RunOperator, objects: Objects, handled: list[str], info: webop.ConnectionInfo
) -> None:
    calls: list[str] = []
    for number in range(5):
        wrong = dataclasses.replace(info, token=f"wrong-{number}")
        provide(calls, f"wrong-{number}", wrong)
    provide(calls, "good", info)
    async with run_operator(vault=None):
        for name in ("a", "b", "c"):
            await handle(objects, handled, name)
    assert sorted(calls) == ["good", *(f"wrong-{number}" for number in range(5))]


def provide(calls: list[str], name: str, info: webop.ConnectionInfo) -> None:
    @webop.on.login(id=name)
    def log_in(**_: Any) -> webop.ConnectionInfo:
        calls.append(name)
        return info


@pytest.mark.feature("AUT-14", "AUT-17", "PRB-05")
async def test_logins_probes_and_the_lease_need_no_thread_of_handlers_or_of_the_event_loop(
    webop_cluster: LocalCluster,
    run_operator: RunOperator,
    objects: Objects,
    info: webop.ConnectionInfo,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names, released = [f"slow-{number}" for number in range(6)], threading.Event()
    begun: list[str] = []
    logins: list[float] = []
    named = dataclasses.replace(  # by a name: it is resolved for each new connection
        info, server=webop_cluster.server.replace("127.0.0.1", "localhost")
    )

    @webop.on.create("widgets")
    def create(name: str, **_: Any) -> None:
        begun.append(name)
        released.wait(60)

    @webop.on.login()
    def log_in(**_: Any) -> webop.ConnectionInfo:
        logins.append(time.monotonic())
        end = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
        return dataclasses.replace(named, expiration=end)

    @webop.on.probe(id="logins")
    def probe(**_: Any) -> int:
        return len(logins)

    lease = {"lease_name": "busy", "lease_namespace": objects.namespace, "lease_duration": 3}
    settings = build_settings(
        execution={"max_workers": len(names)},
        leadership={"retry_period": 0.2, "renew_deadline": 2.5, "exits_when_stuck": False, **lease},
    )
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/healthz"
    options: Any = {"liveness_endpoint": url, "vault": None}
    async with run_operator(settings, **options), httpx.AsyncClient() as http:
        hanging = [asyncio.create_task(asyncio.to_thread(released.wait, 60)) for _ in range(64)]
        try:
            for name in names:
                await objects.create(name)
            await eventually(lambda: len(begun) == len(names))
            count = len(logins)
            await eventually(lambda: len(logins) > count + 3)
            answer = await http.get(url, timeout=5)
            holder = (await objects.client.get(LEASES, objects.namespace, "busy"))["spec"]
        finally:
            released.set()
            await asyncio.wait(hanging)
        for name in names:
            await objects.wait_handled(name)
    assert answer.json()["logins"] > count
    assert holder["leaseTransitions"] == 0
    assert "lost" not in caplog.text
    assert sorted(begun) == names
