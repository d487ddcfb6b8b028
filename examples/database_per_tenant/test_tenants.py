"""Tests of the operator with the rights of its service account, on a real API server."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from database_server import DatabaseServer

from webop.testing import LocalCluster, OperatorRunner, eventually

FOLDER = Path(__file__).parent
Json = dict[str, Any]
LEASE = "--lease=database-per-tenant"
HOME = {"WEBOP_LEADERSHIP__LEASE_NAMESPACE": "database-per-tenant"}


@contextmanager
def serve(folder: Path, port: int = 0) -> Iterator[DatabaseServer]:
    with DatabaseServer(folder, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatabaseServer]:
    with serve(tmp_path) as server:
        monkeypatch.setenv("DATABASE_SERVER", server.url)
        monkeypatch.setenv("CHECK_INTERVAL", "0.3")
        yield server


@pytest.fixture(scope="module")
def account(webop_cluster: LocalCluster) -> Path:
    """Apply the manifests of the operator; return a kubeconfig of its service account."""
    webop_cluster.apply(FOLDER / "manifests")
    name = "system:serviceaccount:database-per-tenant:database-per-tenant"
    return webop_cluster.kubeconfig_for(name)


@pytest.fixture
def run_operator(
    webop_operator: Callable[..., OperatorRunner], account: Path
) -> Callable[..., OperatorRunner]:
    env = {"KUBECONFIG": str(account), **HOME}
    return lambda *options: webop_operator("tenants.py", *options, env=env)


class World:
    """The Tenant 'acme' in the namespace of the test, its Secret, and its database."""

    def __init__(self, cluster: LocalCluster, namespace: str, server: DatabaseServer) -> None:
        self.cluster, self.namespace, self.server = cluster, namespace, server
        self.file = server.folder / f"{namespace}.acme.sqlite"

    def create(self, name: str = "acme", **spec: str) -> None:
        tenant = {"apiVersion": "example.com/v1", "kind": "Tenant", "metadata": {"name": name}}
        self.cluster.apply({**tenant, "spec": spec}, namespace=self.namespace)

    def delete(self) -> None:
        self.cluster.delete("example.com/v1", "Tenant", "acme", self.namespace)

    def get(self, name: str = "acme") -> Any:
        return self.cluster.get("example.com/v1", "Tenant", name, self.namespace)

    def read_condition(self, type: str, name: str = "acme") -> Any:  # noqa: A002
        """Return the status of a condition with its reason."""
        conditions = self.get(name)["status"]["conditions"]
        return next((one["status"], one["reason"]) for one in conditions if one["type"] == type)

    def read_secret(self) -> dict[str, str]:
        secret = self.cluster.get("v1", "Secret", "acme-database", self.namespace)
        assert secret is not None
        data: dict[str, str] = secret["data"]
        return {key: base64.b64decode(text).decode() for key, text in data.items()}

    def query(self, sql: str, **login: str) -> httpx.Response:
        """Query the database as an application of the tenant."""
        secret = {**self.read_secret(), **login}
        return httpx.post(
            f"{secret['server']}/databases/{secret['database']}/query",
            json={"sql": sql},
            auth=(secret["database"], secret["password"]),
        )


@pytest.fixture
def world(webop_cluster: LocalCluster, webop_namespace: str, server: DatabaseServer) -> World:
    return World(webop_cluster, webop_namespace, server)


def test_a_tenant_gets_a_database_that_its_secret_opens(
    run_operator: Callable[..., OperatorRunner], world: World
) -> None:
    with run_operator():
        world.create()
        eventually(lambda: world.read_condition("Ready") == ("True", "Created"))
        eventually(lambda: world.read_condition("Healthy") == ("True", "Answers"))
        assert world.query("select 6 * 7").json() == [[42]]
        assert world.query("select 6 * 7", password="guessed").status_code == 401  # noqa: S106
        world.delete()
        eventually(lambda: world.get() is None)


def test_the_health_of_a_database_is_a_condition(
    run_operator: Callable[..., OperatorRunner], world: World
) -> None:
    with run_operator():
        world.create()
        eventually(lambda: world.read_condition("Healthy") == ("True", "Answers"))
        content = world.file.read_bytes()
        world.file.unlink()
        eventually(lambda: world.read_condition("Healthy") == ("False", "Lost"))
        world.file.write_bytes(content)
        eventually(lambda: world.read_condition("Healthy") == ("True", "Answers"))


def test_the_operator_retries_while_the_database_server_is_unavailable(
    run_operator: Callable[..., OperatorRunner],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve(world.server.folder) as other:
        port = other.server_port
    monkeypatch.setenv("DATABASE_SERVER", other.url)
    with run_operator() as operator:
        world.create()
        eventually(lambda: world.read_condition("Ready") == ("False", "NoDatabase"))
        with serve(world.server.folder, port):
            eventually(lambda: world.read_condition("Healthy") == ("True", "Answers"))
            assert world.read_condition("Ready") == ("True", "Created")
        eventually(lambda: world.read_condition("Healthy") == ("Unknown", "NoAnswer"))
        world.delete()
        eventually(lambda: "Handler 'remove' is not done yet" in operator.output)
        with serve(world.server.folder, port):
            eventually(lambda: world.get() is None)


@pytest.mark.parametrize(("spec", "kept"), [({}, 1), ({"onDeletion": "Drop"}, 0)])
def test_the_database_of_a_deleted_tenant_is_archived_or_dropped(
    run_operator: Callable[..., OperatorRunner], world: World, spec: Json, kept: int
) -> None:
    with run_operator():
        world.create(**spec)
        eventually(lambda: world.read_condition("Ready") == ("True", "Created"))
        world.delete()
        eventually(lambda: world.get() is None)
    assert not world.file.exists()
    assert len(list(world.server.archive.iterdir())) == kept


def test_a_secret_of_somebody_else_is_not_changed(
    run_operator: Callable[..., OperatorRunner], world: World
) -> None:
    metadata = {"name": "acme-database", "namespace": world.namespace}
    world.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    with run_operator():
        world.create()
        eventually(lambda: world.read_condition("Ready") == ("False", "SecretTaken"))
        world.cluster.delete("v1", "Secret", "acme-database", world.namespace)
        eventually(lambda: world.read_condition("Ready") == ("True", "Created"))


def test_another_replica_takes_over_when_the_leader_is_killed(
    run_operator: Callable[..., OperatorRunner],
    world: World,
    account: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("lease_duration", 2), ("renew_deadline", 1.5), ("retry_period", 0.3)):
        monkeypatch.setenv(f"WEBOP_LEADERSHIP__{name}", str(seconds))
    command = [sys.executable, "-m", "webop", "run", LEASE, f"--namespace={world.namespace}"]
    env = {**os.environ, "KUBECONFIG": str(account), **HOME}
    leader = subprocess.Popen([*command, "tenants.py"], cwd=FOLDER, env=env)  # noqa: S603
    try:
        world.create()
        eventually(lambda: world.read_condition("Healthy") == ("True", "Answers"))
        secret = world.read_secret()
        with run_operator(LEASE):
            leader.kill()
            world.create("beta")
            eventually(lambda: world.read_condition("Ready", "beta") == ("True", "Created"))
            world.file.unlink()
            eventually(lambda: world.read_condition("Healthy") == ("False", "Lost"))
        assert world.read_secret() == secret
    finally:
        leader.kill()
        leader.wait()
