"""The manifests on a real API server, and the operator with no more rights than they grant."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from webop.testing import LocalCluster

_ROOT = Path(__file__).parents[2]
_GRANTS = _ROOT / "examples" / "access_grants"
_FOLDERS = (_ROOT / "manifests", _GRANTS / "manifests")
_MANIFESTS = sorted((_ROOT / "manifests").glob("*.yaml"))
_MANAGED = {
    "ephemeral-volume-claims": "ephemeralvolumeclaims.kopf.dev",
    "access-grants": "access.example.com",
}
_DEADLINE = 30.0
_NAME = "ephemeral-volume-claims"

_COLLECTIONS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "Service": "/api/v1/namespaces/default/services",
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
}


def load(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def load_all(folder: Path) -> list[dict[str, Any]]:
    return [document for path in sorted(folder.glob("*.yaml")) for document in load(path)]


def find(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def iterate_documents() -> Iterator[Any]:
    for path in _MANIFESTS:
        for document in load(path):
            name = f"{path.name}-{document['kind']}-{document['metadata']['name']}"
            yield pytest.param(document, id=name)


@pytest.fixture
def api(webop_cluster: LocalCluster) -> Iterator[httpx.Client]:
    ca = base64.b64decode(webop_cluster.ca_data).decode()
    with httpx.Client(
        base_url=webop_cluster.server,
        headers={"Authorization": f"Bearer {webop_cluster.token}"},
        verify=ssl.create_default_context(cadata=ca),
        trust_env=False,
        timeout=_DEADLINE,
    ) as client:
        yield client


def apply(api: httpx.Client, document: dict[str, Any], **query: str) -> httpx.Response:
    """Apply a document on the server's side, unknown fields being errors."""
    return api.patch(
        f"{_COLLECTIONS[document['kind']]}/{document['metadata']['name']}",
        params={"fieldManager": "tests", "fieldValidation": "Strict", **query},
        content=yaml.safe_dump(document),
        headers={"Content-Type": "application/apply-patch+yaml"},
    )


@pytest.mark.feature("DEP-04", "DEP-08", "DEP-09", "PEE-06")
@pytest.mark.parametrize("document", list(iterate_documents()))
def test_each_manifest_is_accepted_in_a_dry_run(
    api: httpx.Client, document: dict[str, Any]
) -> None:
    answer = apply(api, document, dryRun="All")
    assert answer.is_success, answer.text
    assert not answer.headers.get_list("warning")


@pytest.mark.feature("DEP-05", "DEP-06", "DEP-07", "DEP-10", "ADM-43", "TRB-04")
def test_the_operator_needs_no_more_than_the_manifests_grant_it(
    webop_cluster: LocalCluster, webop_namespace: str, api: httpx.Client, tmp_path: Path
) -> None:
    evcs = f"/apis/kopf.dev/v1/namespaces/{webop_namespace}/ephemeralvolumeclaims"
    pvc = f"/api/v1/namespaces/{webop_namespace}/persistentvolumeclaims/granted"
    with applied(api, "rbac.yaml", "ephemeral_volume_claims.crd.yaml"):
        wait_for(lambda: api.get(evcs).is_success)
        with run_operator(webop_cluster, api, tmp_path / "operator.log") as operator:
            operator.wait_for(lambda: has_webhooks(api, is_wanted=True))
            evc = {"apiVersion": "kopf.dev/v1", "kind": "EphemeralVolumeClaim"}
            bad = {**evc, "metadata": {"name": "bad"}, "spec": {"size": "plenty"}}
            operator.wait_for(lambda: api.post(evcs, params={"dryRun": "All"}, json=bad).is_error)

            labels = {"some": "label"}
            good = {**evc, "metadata": {"name": "granted", "labels": labels}}
            created = api.post(evcs, json=good).json()
            assert created["spec"] == {"size": "1G"}
            result = {"pvc-name": "granted"}
            operator.wait_for(lambda: read(api, f"{evcs}/granted", "status", "create_fn") == result)
            assert read(api, pvc, "metadata", "labels") == labels
            (owner,) = read(api, pvc, "metadata", "ownerReferences")
            assert owner["uid"] == created["metadata"]["uid"]

            events = f"/api/v1/namespaces/{webop_namespace}/events"
            operator.wait_for(lambda: bool(read(api, events, "items")))

            api.patch(
                f"{evcs}/granted",
                json={"metadata": {"labels": {"some": None, "other": "label"}}},
                headers={"Content-Type": "application/merge-patch+json"},
            )
            relabelled = {"other": "label"}
            operator.wait_for(lambda: read(api, pvc, "metadata", "labels") == relabelled)
        assert has_webhooks(api, is_wanted=False)
        assert "is forbidden" not in operator.log.read_text()


@dataclass
class Operator:
    """The operator as a process."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, is_met: Callable[[], bool]) -> None:
        """Wait for a condition as long as the operator lives."""
        wait_for(lambda: self.process.poll() is not None or is_met(), self.log)
        assert self.process.poll() is None, self.log.read_text()


@contextlib.contextmanager
def applied(api: httpx.Client, *names: str) -> Iterator[None]:
    documents = [document for name in names for document in load(_ROOT / "manifests" / name)]
    try:
        for document in documents:
            assert apply(api, document).is_success
        yield
    finally:
        for document in documents:
            api.delete(f"{_COLLECTIONS[document['kind']]}/{document['metadata']['name']}")


@contextlib.contextmanager
def run_operator(cluster: LocalCluster, api: httpx.Client, log: Path) -> Iterator[Operator]:
    """Run the operator as in a pod: as its service account, with a Service in front of it.

    There is nothing that would route to a pod here, but the API server resolves Services of the
    type ExternalName by itself.
    """
    port = find_free_port()
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    document = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": _NAME}, "spec": service}
    assert apply(api, document).is_success
    user = f"system:serviceaccount:default:{_NAME}"
    environment = {name: v for name, v in os.environ.items() if not name.startswith("WEBOP_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "webop", "run", "--all-namespaces", "handlers.py"],
            cwd=_ROOT / "examples" / "ephemeral_volume_claims",
            env={
                **environment,
                "KUBECONFIG": str(cluster.kubeconfig_for(user)),
                "EVC_SERVICE": f"{_NAME}.default:{port}",
                "EVC_PORT": str(port),
                "WEBOP_ADMISSION__SHUTDOWN_DELAY": "0",
                "WEBOP_LEADERSHIP__LEASE_NAME": _NAME,
                "WEBOP_LEADERSHIP__LEASE_NAMESPACE": "default",
            },
            stdout=output,
            stderr=output,
        )
    try:
        yield Operator(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(_DEADLINE)
        api.delete(f"{_COLLECTIONS['Service']}/{_NAME}")
    assert code == 0, log.read_text()


def has_webhooks(api: httpx.Client, *, is_wanted: bool) -> bool:
    """Tell whether both webhook configurations are as wanted: with webhooks, or without."""
    base = "/apis/admissionregistration.k8s.io/v1"
    kinds = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
    paths = [f"{base}/{kind}/ephemeralvolumeclaims.kopf.dev" for kind in kinds]
    return all(bool(api.get(path).json().get("webhooks")) is is_wanted for path in paths)


def read(api: httpx.Client, path: str, *keys: str) -> Any:
    """Return a field of an object; None if there is nothing."""
    found: Any = api.get(path).json()
    for key in keys:
        found = (found or {}).get(key)
    return found


def wait_for(is_met: Callable[[], bool], log: Path | None = None) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not is_met():
        assert time.monotonic() < deadline, log.read_text() if log else "not in time"
        time.sleep(0.05)


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("folder", _FOLDERS, ids=_MANAGED)
def test_the_manifests_of_an_operator_agree_with_each_other(folder: Path) -> None:
    documents = load_all(folder)
    (deployment,) = find(documents, "Deployment")
    (service,) = find(documents, "Service")
    (policy,) = find(documents, "NetworkPolicy")
    name, namespace = (deployment["metadata"][key] for key in ("name", "namespace"))
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    variables = {each["name"]: each.get("value") for each in container["env"]}

    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    assert service["spec"]["ports"][0]["targetPort"] == "webhooks"
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["webhooks"]
    assert ports == {"webhooks": 9443, "probes": 8080}
    assert {container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("liveness", "readiness")} == {
        "probes"
    }
    dockerfile = (folder.parent / "Dockerfile").read_text()
    assert f"docker build -t {container['image']} ." in dockerfile
    assert variables["WEBOP_LEADERSHIP__LEASE_NAME"] == name

    # Its account is bound to just these roles, and they allow just what it does.
    roles = [*find(documents, "Role"), *find(documents, "ClusterRole")]
    bindings = [*find(documents, "RoleBinding"), *find(documents, "ClusterRoleBinding")]
    assert sorted(role["metadata"]["name"] for role in roles) == sorted(
        binding["roleRef"]["name"] for binding in bindings
    )
    account = {"kind": "ServiceAccount", "name": spec["serviceAccountName"], "namespace": namespace}
    assert all(binding["subjects"] == [account] for binding in bindings)
    named = {
        (resource, verb): rule.get("resourceNames")
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert named["secrets", "get"] == named["secrets", "update"] == [f"{name}-webhook-certs"]
    assert named["leases", "update"] == [name]
    for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
        assert named[kind, "create"] is None
        assert named[kind, "patch"] == [_MANAGED[name]]


def test_all_operators_run_with_the_same_restrictions() -> None:
    deployments = [load(folder / "deployment.yaml")[0] for folder in _FOLDERS]
    pods = [deployment["spec"]["template"]["spec"] for deployment in deployments]
    for deployment in deployments:
        assert deployment["spec"]["replicas"] > 1
        assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    for key in ("securityContext", "volumes", "terminationGracePeriodSeconds"):
        assert pods[0][key] == pods[1][key]
    containers = [pod["containers"][0] for pod in pods]
    for key in ("securityContext", "resources", "volumeMounts", "readinessProbe", "livenessProbe"):
        assert containers[0][key] == containers[1][key]
    policies = [find(load_all(folder), "NetworkPolicy")[0]["spec"] for folder in _FOLDERS]
    assert policies[0]["ingress"] == policies[1]["ingress"]


@pytest.mark.parametrize("dockerfile", [_ROOT / "Dockerfile", _GRANTS / "Dockerfile"])
def test_images_are_built_of_a_base_that_cannot_change_and_of_wheels(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base) for base in bases)
    installs = re.findall(r"pip install .*", text)
    assert all("--only-binary=:all:" in line for line in installs)


def test_the_ports_of_the_image_are_those_of_the_deployment() -> None:
    exposed = re.search(r"^EXPOSE (.*)", (_ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert exposed is not None
    assert exposed[1].split() == ["8080", "9443"]
