"""What the tests share: grants to be made, and the operator in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from webop.testing import LocalCluster, OperatorRunner

MANIFESTS = Path(__file__).parents[1] / "manifests"


@pytest.fixture(scope="session")
def account(webop_cluster: LocalCluster) -> Path:
    """Install the operator, but for its pod; return a kubeconfig of its service account."""
    webop_cluster.apply(MANIFESTS)
    return webop_cluster.kubeconfig_for("system:serviceaccount:access-grants:access-grants")


@pytest.fixture
def operator(
    account: Path,
    webop_operator: Callable[..., OperatorRunner],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[OperatorRunner]:
    """The operator serves the namespace of the test, with the rights that it has in a cluster."""
    monkeypatch.setenv("CHECK_INTERVAL", "0.5")
    with webop_operator("grants.py", env={"KUBECONFIG": str(account)}) as runner:
        yield runner


@pytest.fixture
def build_grant() -> Callable[..., dict[str, Any]]:
    """Makes grants; what is given is put into the spec."""

    def build(**spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": "access.example.com/v1",
            "kind": "AccessGrant",
            "metadata": {"name": "jane"},
            "spec": {"user": "jane", "role": "view", **spec},
        }

    return build
