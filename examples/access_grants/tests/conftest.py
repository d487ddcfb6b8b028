"""Fixtures of the tests: grants, and the operator in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from webop.testing import LocalCluster, OperatorRunner

MANIFESTS = Path(__file__).parents[1] / "manifests"


@pytest.fixture(scope="session")
def account(webop_cluster: LocalCluster) -> Path:
    """Apply the manifests of the operator; return a kubeconfig of its service account."""
    webop_cluster.apply(MANIFESTS)
    return webop_cluster.kubeconfig_for("system:serviceaccount:access-grants:access-grants")


@pytest.fixture
def uninstall(webop_cluster: LocalCluster) -> Iterator[Callable[[], None]]:
    """Removes the webhooks: persistent ones stay when the operator stops."""

    def remove() -> None:
        for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
            webop_cluster.delete("admissionregistration.k8s.io/v1", kind, "access.example.com")

    yield remove
    remove()


@pytest.fixture
def run_operator(
    account: Path,
    uninstall: Callable[[], None],
    webop_operator: Callable[..., OperatorRunner],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], OperatorRunner]:
    """Runs the operator in the namespace of the test, with the rights of its service account."""
    monkeypatch.setenv("CHECK_INTERVAL", "0.5")
    monkeypatch.setenv("WEBOP_ADMISSION__SHUTDOWN_DELAY", "0")
    monkeypatch.setenv("WEBOP_LEADERSHIP__LEASE_NAME", "access-grants")
    monkeypatch.setenv("WEBOP_LEADERSHIP__LEASE_NAMESPACE", "access-grants")
    return lambda: webop_operator("grants.py", env={"KUBECONFIG": str(account)})


@pytest.fixture
def operator(run_operator: Callable[[], OperatorRunner]) -> Iterator[OperatorRunner]:
    """The operator, running during the test."""
    with run_operator() as runner:
        yield runner


@pytest.fixture
def build_grant() -> Callable[..., dict[str, Any]]:
    """Builds grants; keyword arguments go into the spec."""

    def build(**spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": "access.example.com/v1",
            "kind": "AccessGrant",
            "metadata": {"name": "jane"},
            "spec": {"user": "jane", "role": "view", **spec},
        }

    return build
