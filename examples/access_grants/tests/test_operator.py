"""Tests of the operator on a real API server, which ``webop_cluster`` starts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from webop.testing import ClusterError, LocalCluster, OperatorRunner, eventually

Grant = Callable[..., dict[str, Any]]


class Namespace:
    """Access to the objects in the namespace of a test."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.cluster, self.name = cluster, name

    def apply(self, grant: dict[str, Any], **options: Any) -> None:
        self.cluster.apply(grant, namespace=self.name, **options)

    def get_grant(self) -> Any:
        return self.cluster.get("access.example.com/v1", "AccessGrant", "jane", self.name)

    def get_binding(self) -> Any:
        group = "rbac.authorization.k8s.io/v1"
        return self.cluster.get(group, "RoleBinding", "grant-jane", self.name)

    def find_denial(self, grant: dict[str, Any]) -> str | None:
        try:
            self.apply(grant, dry_run=True)
        except ClusterError as exc:
            return str(exc)
        return None

    def wait_for_webhooks(self, grant: dict[str, Any]) -> None:
        """Wait until the API server calls them, by a request that only they deny."""
        mine = {**grant, "spec": {**grant["spec"], "user": "admin"}}
        eventually(lambda: "cannot grant" in str(self.find_denial(mine)))


@pytest.fixture
def namespace(webop_cluster: LocalCluster, webop_namespace: str) -> Namespace:
    return Namespace(webop_cluster, webop_namespace)


def test_a_user_has_access_until_the_grant_expires(
    operator: OperatorRunner, namespace: Namespace, build_grant: Grant
) -> None:
    namespace.wait_for_webhooks(build_grant())
    namespace.apply(build_grant(duration="2s"))
    binding = eventually(namespace.get_binding, "jane has access")
    assert binding["roleRef"]["name"] == "view"
    assert binding["subjects"][0]["name"] == "jane"
    eventually(lambda: namespace.get_binding() is None, "jane has no access")
    eventually(lambda: namespace.get_grant()["status"]["phase"] == "Over")


def test_the_binding_has_the_grant_as_its_owner(
    operator: OperatorRunner, namespace: Namespace, build_grant: Grant
) -> None:
    namespace.wait_for_webhooks(build_grant())
    namespace.apply(build_grant())
    binding = eventually(namespace.get_binding, "jane has access")
    # The garbage collector uses this; the cluster of the tests runs none.
    (owner,) = binding["metadata"]["ownerReferences"]
    assert owner["uid"] == namespace.get_grant()["metadata"]["uid"]


def test_a_grant_that_is_prolonged_is_open_again(
    operator: OperatorRunner, namespace: Namespace, build_grant: Grant
) -> None:
    namespace.wait_for_webhooks(build_grant())
    namespace.apply(build_grant(duration="1s"))
    eventually(lambda: namespace.get_grant()["status"]["phase"] == "Over")
    namespace.apply(build_grant(duration="1h"))
    eventually(lambda: namespace.get_grant()["status"]["phase"] == "Open")
    assert namespace.get_binding() is not None


def test_a_role_binding_of_somebody_else_is_not_changed(
    operator: OperatorRunner, namespace: Namespace, build_grant: Grant
) -> None:
    group = "rbac.authorization.k8s.io"
    foreign = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "grant-jane"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
    }
    namespace.cluster.apply(foreign, namespace=namespace.name)
    namespace.wait_for_webhooks(build_grant())
    namespace.apply(build_grant())
    eventually(lambda: namespace.get_grant().get("status", {}).get("phase") == "Refused")
    namespace.cluster.delete("access.example.com/v1", "AccessGrant", "jane", namespace.name)
    eventually(lambda: namespace.get_grant() is None, "the grant is gone")
    assert namespace.get_binding()["roleRef"]["name"] == "edit"


def test_a_user_loses_access_when_the_grant_is_deleted(
    operator: OperatorRunner, namespace: Namespace, build_grant: Grant
) -> None:
    namespace.wait_for_webhooks(build_grant())
    namespace.apply(build_grant(duration="1h"))
    eventually(namespace.get_binding, "jane has access")
    namespace.cluster.delete("access.example.com/v1", "AccessGrant", "jane", namespace.name)
    eventually(lambda: namespace.get_grant() is None, "the grant is gone")
    assert namespace.get_binding() is None


SELF_MADE = {"user": "jane", "duration": "1h", "grantedBy": "jane"}  # the schema allows it


def test_grants_are_refused_while_the_operator_is_stopped(
    run_operator: Callable[[], OperatorRunner], namespace: Namespace, build_grant: Grant
) -> None:
    with run_operator():
        namespace.wait_for_webhooks(build_grant())
    reason = namespace.find_denial(build_grant(**SELF_MADE))
    assert "failed calling webhook" in str(reason)


def test_an_invalid_stored_grant_opens_no_access(
    run_operator: Callable[[], OperatorRunner], namespace: Namespace, build_grant: Grant
) -> None:
    namespace.apply(build_grant(**SELF_MADE))  # before the operator starts for the first time
    with run_operator():
        eventually(lambda: namespace.get_grant()["status"]["phase"] == "Refused")
    assert namespace.get_binding() is None


def test_a_grant_that_expired_while_the_operator_was_stopped_opens_no_access(
    run_operator: Callable[[], OperatorRunner],
    namespace: Namespace,
    build_grant: Grant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHECK_INTERVAL", "600")
    namespace.apply(build_grant(duration="1s", grantedBy="boss"))
    created = dt.datetime.fromisoformat(namespace.get_grant()["metadata"]["creationTimestamp"])
    eventually(lambda: dt.datetime.now(dt.UTC) > created + dt.timedelta(seconds=1))
    with run_operator():
        eventually(lambda: namespace.get_grant()["status"]["phase"] == "Over")
    assert namespace.get_binding() is None


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"duration": "999999h"}, "spec.duration"),
        ({"duration": "9h"}, "8h at most."),
        ({"role": "admin"}, "spec.role"),
        ({"grantedBy": None}, "spec.grantedBy"),
    ],
)
def test_the_schema_refuses_invalid_grants_without_webhooks(
    account: object, namespace: Namespace, build_grant: Grant, spec: dict[str, Any], reason: str
) -> None:
    denial = namespace.find_denial(build_grant(**{**SELF_MADE, **spec}))
    assert reason in str(denial)


def test_the_user_of_a_stored_grant_cannot_change(
    account: object, namespace: Namespace, build_grant: Grant
) -> None:
    namespace.apply(build_grant(**SELF_MADE))
    denial = namespace.find_denial(build_grant(**{**SELF_MADE, "user": "jim"}))
    assert "cannot be changed" in str(denial)
