"""Check the manifests of the repository on a real API server, and that they are consistent."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from webop.testing import LocalCluster

_ROOT = Path(__file__).parents[3]
_FOLDERS = (_ROOT / "manifests", *sorted((_ROOT / "examples").glob("*/manifests")))
_MANIFESTS = sorted((_ROOT / "manifests").glob("*.yaml"))

_COLLECTIONS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "ResourceQuota": "/api/v1/namespaces/default/resourcequotas",
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
        timeout=30,
    ) as client:
        yield client


def apply(api: httpx.Client, document: dict[str, Any], **query: str) -> httpx.Response:
    """Server-side apply a document; unknown fields are errors."""
    return api.patch(
        f"{_COLLECTIONS[document['kind']]}/{document['metadata']['name']}",
        params={"fieldManager": "tests", "force": "true", "fieldValidation": "Strict", **query},
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


@pytest.mark.parametrize("folder", _FOLDERS, ids=lambda folder: folder.parent.name)
def test_the_manifests_of_an_operator_agree_with_each_other(folder: Path) -> None:
    documents = load_all(folder)
    (deployment,) = find(documents, "Deployment")
    services = find(documents, "Service")
    (policy,) = find(documents, "NetworkPolicy")
    (budget,) = find(documents, "PodDisruptionBudget")
    namespace = deployment["metadata"]["namespace"]
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for port in container["ports"]}
    spread = [each["labelSelector"]["matchLabels"] for each in spec["topologySpreadConstraints"]]

    for found in (deployment["spec"]["selector"], budget["spec"]["selector"]):
        assert found["matchLabels"] == labels
    assert spread == [labels, labels]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    for service in services:
        assert service["spec"]["selector"] == labels
        assert service["spec"]["ports"][0]["targetPort"] in ports
    allowed = {port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]}
    assert allowed == ({"webhooks"} if services else set())
    assert allowed < ports
    for kind in ("liveness", "readiness"):
        assert container[f"{kind}Probe"]["httpGet"]["port"] in ports
    for dockerfile in folder.parent.glob("Dockerfile"):  # other examples have no Dockerfile
        assert f"docker build -t {container['image']} ." in dockerfile.read_text()

    # Its account is bound to these roles only.
    roles = [*find(documents, "Role"), *find(documents, "ClusterRole")]
    bindings = [*find(documents, "RoleBinding"), *find(documents, "ClusterRoleBinding")]
    assert sorted(role["metadata"]["name"] for role in roles) == sorted(
        binding["roleRef"]["name"] for binding in bindings
    )
    account = {"kind": "ServiceAccount", "name": spec["serviceAccountName"], "namespace": namespace}
    assert all(binding["subjects"] == [account] for binding in bindings)
