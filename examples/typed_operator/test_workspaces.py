"""Tests of workspaces on a real API server, with the rights of the service account."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from workspace_models import Workspace, WorkspaceSpec
from workspace_v1beta1 import OldSpec, OldWorkspace

import webop
import webop.testing
from webop.models import Condition, Metadata
from webop.testing import AdmissionClient, ClusterError, LocalCluster, OperatorRunner, eventually

FOLDER = Path(__file__).parent


def build(name: str, namespace: str, **spec: Any) -> Workspace:
    return Workspace(metadata=Metadata(name=name), spec=WorkspaceSpec(namespace=namespace, **spec))


@pytest.fixture(scope="module", autouse=True)
def account(webop_cluster: LocalCluster) -> Path:
    """Apply the manifests of the operator; return a kubeconfig of its service account."""
    webop_cluster.apply(FOLDER / "manifests")
    return webop_cluster.kubeconfig_for("system:serviceaccount:typed-operator:typed-operator")


@pytest.fixture
def operator(
    webop_operator: Callable[..., OperatorRunner], account: Path
) -> Iterator[OperatorRunner]:
    with webop_operator(
        "workspaces.py", "--all-namespaces", env={"KUBECONFIG": str(account)}
    ) as it:
        yield it


def apply_old(cluster: LocalCluster, name: str) -> OldWorkspace:
    """Apply a workspace of the old version, as soon as the operator converts it."""
    old = OldWorkspace(
        metadata=Metadata(name=name), spec=OldSpec(namespace=name, owner="me", size="1/2Gi")
    )
    eventually(lambda: cluster.apply(old), "the operator converts", timeout=30)
    return old


def wait_for_ready(cluster: LocalCluster, name: str, *, generation: int = 1) -> Condition:
    """Return the condition Ready when it is of this generation."""

    def find() -> Condition | None:
        found = Workspace.model_validate(cluster.get("example.com/v1", "Workspace", name))
        ready = found.status and found.status.conditions.get("Ready")
        return ready if ready and ready.observed_generation == generation else None

    condition: Condition = eventually(find)
    return condition


def test_a_workspace_gets_a_namespace_with_a_quota(
    operator: OperatorRunner, webop_cluster: LocalCluster
) -> None:
    webop_cluster.apply(build("shop", "shop", stage="test"))
    assert wait_for_ready(webop_cluster, "shop").status == "True"
    namespace: Any = webop_cluster.get("v1", "Namespace", "shop")
    assert namespace["metadata"]["labels"]["example.com/stage"] == "test"
    quota: Any = webop_cluster.get("v1", "ResourceQuota", "workspace", "shop")
    assert quota["spec"]["hard"] == {"cpu": "2", "memory": "4Gi", "pods": "20"}
    webop_cluster.apply(build("shop", "shop", quota={"cpu": "4"}))
    assert wait_for_ready(webop_cluster, "shop", generation=2).status == "True"
    quota = webop_cluster.get("v1", "ResourceQuota", "workspace", "shop")
    assert quota["spec"]["hard"]["cpu"] == "4"


def test_a_namespace_of_others_is_never_changed(
    operator: OperatorRunner, webop_cluster: LocalCluster
) -> None:
    webop_cluster.apply(build("greedy", "kube-system"))
    ready = wait_for_ready(webop_cluster, "greedy")
    assert (ready.status, ready.reason) == ("False", "NamespaceExists")
    assert webop_cluster.get("v1", "ResourceQuota", "workspace", "kube-system") is None


def test_both_versions_show_the_same_workspaces(
    operator: OperatorRunner, webop_cluster: LocalCluster
) -> None:
    apply_old(webop_cluster, "lab")
    assert wait_for_ready(webop_cluster, "lab").status == "True"
    new: Any = webop_cluster.get("example.com/v1", "Workspace", "lab")
    assert new["spec"]["contact"] == "me"
    assert new["spec"]["quota"] == {"cpu": "1", "memory": "2Gi", "pods": 20}
    webop_cluster.apply(build("club", "club", contact="you", quota={"cpu": "4"}))
    older: Any = webop_cluster.get("example.com/v1beta1", "Workspace", "club")
    assert (older["spec"]["owner"], older["spec"]["size"]) == ("you", "4/4Gi")


def test_both_versions_can_be_applied_in_turn_by_one_client(
    operator: OperatorRunner, webop_cluster: LocalCluster
) -> None:
    old = apply_old(webop_cluster, "turn")
    old.spec.size = "2/2Gi"
    webop_cluster.apply(old)
    (stored,) = webop_cluster.apply(build("turn", "turn", contact="you", quota={"cpu": "4"}))
    assert stored["spec"]["quota"]["cpu"] == "4"
    assert stored["spec"]["contact"] == "you"


def test_conversions_lose_nothing() -> None:
    webop.testing.check_round_trips(OldWorkspace, Workspace)


def test_the_example_is_accepted(webop_cluster: LocalCluster) -> None:
    (stored,) = webop_cluster.apply(FOLDER / "workspace.yaml", dry_run=True)
    assert stored["spec"]["quota"]["memory"] == "4Gi"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"quota": {"cpu": "many"}}, "must be a quantity"),
        ({"stage": "production"}, "production workspaces need a contact"),
        ({"stage": "production", "contact": "me"}, ""),
    ],
)
def test_the_api_server_checks_the_rules_without_the_operator(
    webop_cluster: LocalCluster, spec: Any, message: str
) -> None:
    try:
        webop_cluster.apply(build("rules", "rules", **spec), dry_run=True)
        found = ""
    except ClusterError as exc:
        found = str(exc)
    assert message in found
    assert bool(message) == bool(found)


def test_the_namespace_of_a_workspace_cannot_be_renamed(webop_cluster: LocalCluster) -> None:
    webop_cluster.apply(build("fixed", "fixed"))
    with pytest.raises(ClusterError, match="the namespace cannot be renamed"):
        webop_cluster.apply(build("fixed", "renamed"))


@pytest.mark.asyncio
async def test_two_workspaces_cannot_have_the_same_namespace(
    webop_admission: Callable[..., AdmissionClient], webop_cluster: LocalCluster
) -> None:
    webop_cluster.apply(build("first", "taken"))
    async with webop_admission(modules=["workspaces.py"], cluster=webop_cluster) as client:
        assert (await client.create(build("first", "taken"))).allowed
        result = await client.create(build("second", "taken"))
    assert (result.allowed, result.code) == (False, 409)
    assert result.message == "spec.namespace: the workspace first has the namespace taken."
