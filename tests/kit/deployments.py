"""The manifests of an operator applied, and the operator run as a pod of them would be."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from tests.kit.exec_plugins import build_kubeconfig
from tests.kit.forking import fork
from tests.kit.http_relay import Relay
from tests.kit.operators import open_http
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Json = dict[str, Any]

_FASTER = """\
import webop

@webop.on.startup()
def hurry(settings: webop.OperatorSettings, **_):
    settings.admission.shutdown_delay = 0
    settings.watching.streaming_list = False  # so that "list" is needed, too
    if (server := settings.admission.server) is not None:
        server.port = server.service_port = {port}
        server.poll_interval, server.settle_time = 0.2, 0.1
"""


@dataclass(frozen=True)
class Deployed:
    documents: list[Json]
    folder: Path  # of the handlers

    def find(self, kind: str) -> list[Json]:
        return [document for document in self.documents if document["kind"] == kind]

    @property
    def account(self) -> tuple[str, str]:
        (account,) = self.find("ServiceAccount")
        return account["metadata"]["namespace"], account["metadata"]["name"]

    @property
    def container(self) -> Json:
        deployment = self.find("Deployment")[0]  # the second one is that of a canary
        container: Json = deployment["spec"]["template"]["spec"]["containers"][0]
        return container


def load(file: Path, folder: Path) -> Deployed:
    return Deployed([one for one in yaml.safe_load_all(file.read_text()) if one], folder)


class Admin:
    """Requests of the administrator, and in the name of others."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str) -> Json:
        answer = await self.client.get(path)
        return dict(answer.json()) if answer.is_success else {}

    async def create(self, path: str, body: Json) -> Json:
        answer = await self.client.post(path, json=body)
        assert answer.is_success, answer.text
        return dict(answer.json())

    async def wait(self, path: str, check: Callable[[Json], object] = bool) -> Json:
        """Wait until an object is as expected; it is empty if there is none."""
        found: Json = await eventually(lambda: self.get(path), path, check=check)
        return found

    async def wait_gone(self, path: str) -> None:
        await self.wait(path, operator.not_)

    async def wait_refused(self, path: str, body: Json, text: str) -> None:
        """Wait until the creation of an object is refused with a text."""

        async def post() -> str:
            answer = await self.client.post(path, params={"dryRun": "All"}, json=body)
            return "" if answer.is_success else answer.text

        await eventually(post, f"a refusal: {text}", check=lambda answer: text in answer)

    async def merge(self, path: str, patch: Json) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = await self.client.patch(path, json=patch, headers=headers)
        assert answer.is_success, answer.text


@contextlib.asynccontextmanager
async def administer(cluster: LocalCluster) -> AsyncIterator[Admin]:
    async with open_http(cluster) as client:
        yield Admin(client)


@contextlib.asynccontextmanager
async def run_as_pod(
    deployed: Deployed, admin: Admin, relayed: Relay, folder: Path, port: int
) -> AsyncIterator[None]:
    """Run the command of the container, with a token of the service account.

    There is nothing that would route to a pod here, but the API server resolves Services of the
    type ExternalName by itself.
    """
    home, name = deployed.account
    path = f"/api/v1/namespaces/{home}/serviceaccounts/{name}/token"
    token = (await admin.create(path, {"spec": {}}))["status"]["token"]
    kubeconfig = folder / "kubeconfig"
    credentials = build_kubeconfig({"token": token}, namespace=home, server=relayed.server.url)
    kubeconfig.write_text(json.dumps(credentials))
    faster = folder / "faster.py"
    faster.write_text(_FASTER.format(port=port))
    for service in deployed.find("Service"):
        place = f"/api/v1/namespaces/{home}/services"
        await admin.client.delete(f"{place}/{service['metadata']['name']}")
        spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
        await admin.create(place, {"metadata": service["metadata"], "spec": spec})
    container = deployed.container
    variables = {one["name"]: one.get("value", "pod-1") for one in container["env"]}
    ports = ("--liveness", "--status")  # of others of the same machine
    arguments = [one for one in container["args"] if not one.startswith(ports)]
    log = folder / "log"
    environment = {
        **{key: value for key, value in os.environ.items() if key[:6] != "WEBOP_"},
        **variables,
        "KUBECONFIG": str(kubeconfig),
        "KUBERNETES_SERVICE_HOST": "kubernetes.default.svc",
    }
    words = ("webop", *arguments, str(faster))
    process = fork(words, deployed.folder, environment, log, log)
    try:
        yield
    except BaseException:
        sys.stderr.write(log.read_text())
        raise
    finally:
        process.terminate()
        code = await process.wait()
    assert code == 0, log.read_text()
