"""Tests of the policy, in this process and on a real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from webop.testing import AdmissionClient, ClusterError, LocalCluster, OperatorRunner, eventually

FOLDER = Path(__file__).parent
Json = dict[str, Any]
MakeAdmission = Callable[..., AdmissionClient]


def build_pod(image: str = "registry.example.com/web:1", **container: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"team": "blue"}},
        "spec": {"containers": [{"name": "web", "image": image, **container}]},
    }


BAD = build_pod("evil.com/web:1")
REFUSAL = "not from an allowed registry"


@pytest.fixture(scope="module")
def account(webop_cluster: LocalCluster) -> Path:
    """Apply the manifests of the operator; return a kubeconfig of its service account."""
    webop_cluster.apply(FOLDER / "manifests")
    return webop_cluster.kubeconfig_for("system:serviceaccount:policy-server:policy-server")


@pytest.fixture(autouse=True)
def policy(webop_cluster: LocalCluster, account: Path) -> Iterator[Json]:
    """The policy of policy.yaml, which the test can change."""
    config_map = yaml.safe_load((FOLDER / "policy.yaml").read_text())
    webop_cluster.apply(config_map)
    yield config_map
    webop_cluster.delete("v1", "ConfigMap", "policy", "policy-server")


@pytest.fixture
def admission(webop_admission: MakeAdmission, webop_cluster: LocalCluster) -> AdmissionClient:
    return webop_admission(modules=["policies.py"], cluster=webop_cluster)


# ---- in the process of the test


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("registry.example.com/web:1", ""),
        ("nginx:1", ""),  # docker.io/library
        ("registry.example.com.evil.com/web:1", "evil.com/web:1' is not from an allowed registry"),
        ("somebody/nginx:1", "'docker.io/somebody/nginx:1' is not from an allowed registry"),
        ("localhost/nginx:1", "'localhost/nginx:1' is not from an allowed registry"),
    ],
)
async def test_images_come_from_allowed_registries(
    admission: AdmissionClient, image: str, problem: str
) -> None:
    async with admission:
        result = await admission.create(build_pod(image))
    assert result.allowed == (not problem)
    assert problem in (result.message or "")


@pytest.mark.asyncio
async def test_containers_without_requests_and_limits_get_limits(
    admission: AdmissionClient,
) -> None:
    pod = build_pod()
    pod["spec"]["containers"] += [
        {"name": "b", "image": "nginx:1", "resources": {"limits": {"cpu": "2"}}},
        {"name": "c", "image": "nginx:1", "resources": {"requests": {"memory": "1Gi"}}},
    ]
    async with admission:
        result = await admission.create(pod)
    assert result.object is not None
    assert [one["resources"]["limits"] for one in result.object["spec"]["containers"]] == [
        {"cpu": "500m", "memory": "256Mi"},
        {"cpu": "2", "memory": "256Mi"},
        {"cpu": "500m"},
    ]


@pytest.mark.asyncio
async def test_an_image_without_a_tag_draws_a_warning(admission: AdmissionClient) -> None:
    async with admission:
        result = await admission.create(build_pod("nginx"))
    assert result.allowed
    assert result.warnings == [
        "The image 'docker.io/library/nginx' has no tag: it can change at any time."
    ]


@pytest.mark.asyncio
async def test_a_deployment_whose_pods_will_be_denied_draws_a_warning(
    admission: AdmissionClient,
) -> None:
    template = {"spec": {"containers": [{"name": "web", "image": "nginx:1"}]}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    async with admission:
        result = await admission.create({**deployment, "spec": {"template": template}})
    assert result.allowed
    assert result.warnings == ["Its pods will be denied: The label 'team' is required."]


@pytest.mark.asyncio
async def test_an_update_is_denied_only_for_new_problems(admission: AdmissionClient) -> None:
    old, new = build_pod("evil.com/web:1"), build_pod("evil.com/web:1")
    old["metadata"]["finalizers"] = ["example.com/wait"]
    async with admission:
        assert (await admission.update(old, new)).allowed
        new["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "evil.com/sh:1"}]
        result = await admission.update(old, new, subresource="ephemeralcontainers")
    assert result.message == (
        "The image 'evil.com/sh:1' is not from an allowed registry "
        "(registry.example.com, docker.io/library)."
    )


@pytest.mark.asyncio
async def test_without_a_policy_nothing_is_allowed(
    admission: AdmissionClient, webop_cluster: LocalCluster
) -> None:
    webop_cluster.delete("v1", "ConfigMap", "policy", "policy-server")
    async with admission:
        result = await admission.create(build_pod())
    assert "ConfigMap 'policy' in namespace 'policy-server' has no valid policy" in str(
        result.message
    )


# ---- on a real API server


@pytest.fixture
def run_operator(
    webop_operator: Callable[..., OperatorRunner], webop_cluster: LocalCluster, account: Path
) -> Iterator[Callable[[], OperatorRunner]]:
    """Runs the operator with the rights of its service account."""
    yield lambda: webop_operator("policies.py", env={"KUBECONFIG": str(account)})
    # Persistent webhooks would block the pods of other tests.
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        webop_cluster.delete("admissionregistration.k8s.io/v1", kind, "policy.example.com")


@pytest.fixture
def try_pod(webop_cluster: LocalCluster, webop_namespace: str) -> Callable[..., Json | str]:
    """Applies a pod as a dry run; returns the pod, or the error."""

    def apply(pod: Json, namespace: str = webop_namespace) -> Json | str:
        try:
            (stored,) = webop_cluster.apply(pod, namespace=namespace, dry_run=True)
        except ClusterError as exc:
            return str(exc)
        return stored

    return apply


def test_the_api_server_calls_the_webhooks_and_a_dry_run_stores_nothing(
    run_operator: Callable[[], OperatorRunner],
    try_pod: Callable[..., Any],
    webop_cluster: LocalCluster,
    webop_namespace: str,
) -> None:
    with run_operator():
        eventually(lambda: REFUSAL in try_pod(BAD))
        stored = eventually(lambda: try_pod(build_pod())["spec"]["containers"][0]["resources"])
    assert stored["limits"] == {"cpu": "500m", "memory": "256Mi"}
    assert webop_cluster.get("v1", "Pod", "web", webop_namespace) is None


def test_excluded_namespaces_have_no_policy(
    run_operator: Callable[[], OperatorRunner],
    try_pod: Callable[..., Any],
    webop_cluster: LocalCluster,
) -> None:
    exempt = {"name": "exempt", "labels": {"policy.example.com/exempt": "yes"}}
    webop_cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": exempt})
    with run_operator():
        eventually(lambda: REFUSAL in try_pod(BAD))
        for namespace in ("kube-system", "policy-server", "exempt"):
            assert REFUSAL not in try_pod(BAD, namespace)


def test_a_new_policy_applies_at_once_and_an_invalid_one_is_denied(
    run_operator: Callable[[], OperatorRunner],
    try_pod: Callable[..., Any],
    webop_cluster: LocalCluster,
    policy: Json,
) -> None:
    with run_operator():
        eventually(lambda: REFUSAL in try_pod(BAD))
        policy["data"]["policy.yaml"] = "registries: evil.com"
        with pytest.raises(ClusterError, match="registries: Input should be a valid list"):
            webop_cluster.apply(policy)
        policy["data"]["policy.yaml"] = "registries: [evil.com]"
        webop_cluster.apply(policy)
        assert try_pod(BAD)["metadata"]["name"] == "web"


def test_pods_are_refused_while_no_replica_runs(
    run_operator: Callable[[], OperatorRunner], try_pod: Callable[..., Any]
) -> None:
    with run_operator():
        eventually(lambda: REFUSAL in try_pod(BAD))
    assert "failed calling webhook" in try_pod(build_pod())
