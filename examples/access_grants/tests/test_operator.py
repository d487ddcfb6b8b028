"""The operator at work on a real API server, started by the fixture ``webop_cluster``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from webop.testing import ClusterError, LocalCluster, OperatorRunner, eventually

Grant = Callable[..., dict[str, Any]]


class Namespace:
    """What there is in the namespace of a test."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.cluster, self.name = cluster, name

    def apply(self, grant: dict[str, Any], **options: Any) -> None:
        self.cluster.apply(grant, namespace=self.name, **options)

    def get_grant(self) -> Any:
        return self.cluster.get("access.example.com/v1", "AccessGrant", "jane", self.name)

    def get_binding(self) -> Any:
        group = "rbac.authorization.k8s.io/v1"
        return self.cluster.get(group, "RoleBinding", "grant-jane", self.name)

    def explain_refusal(self, grant: dict[str, Any]) -> str | None:
        try:
            self.apply(grant, dry_run=True)
        except ClusterError as exc:
            return str(exc)
        return None


@pytest.fixture
def namespace(webop_cluster: LocalCluster, webop_namespace: str) -> Namespace:
    return Namespace(webop_cluster, webop_namespace)


def test_a_user_is_let_in_for_a_while(
    operator: OperatorRunner, namespace: Namespace, build_grant: Grant
) -> None:
    namespace.apply(build_grant(duration="2s"))
    binding = eventually(namespace.get_binding, "jane is let in")
    assert binding["roleRef"]["name"] == "view"
    assert binding["subjects"][0]["name"] == "jane"
    eventually(lambda: namespace.get_binding() is None, "jane is locked out")
    eventually(lambda: namespace.get_grant()["status"]["phase"] == "Over")


def test_a_grant_that_is_prolonged_is_open_again(
    operator: OperatorRunner, namespace: Namespace, build_grant: Grant
) -> None:
    namespace.apply(build_grant(duration="1s"))
    eventually(lambda: namespace.get_grant()["status"]["phase"] == "Over")
    namespace.apply(build_grant(duration="1h"))
    eventually(lambda: namespace.get_grant()["status"]["phase"] == "Open")
    assert namespace.get_binding() is not None


def test_a_user_is_locked_out_when_the_grant_is_deleted(
    operator: OperatorRunner, namespace: Namespace, build_grant: Grant
) -> None:
    namespace.apply(build_grant(duration="1h"))
    eventually(namespace.get_binding, "jane is let in")
    namespace.cluster.delete("access.example.com/v1", "AccessGrant", "jane", namespace.name)
    eventually(lambda: namespace.get_grant() is None, "the grant is gone")
    assert namespace.get_binding() is None


def test_the_cluster_asks_the_webhooks(
    operator: OperatorRunner, namespace: Namespace, build_grant: Grant
) -> None:
    # It takes the API server a moment to learn of them.
    reason = eventually(lambda: namespace.explain_refusal(build_grant(duration="9h")))
    assert "spec.duration: 8h at most." in reason
