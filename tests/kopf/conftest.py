"""Kinds and runs of operators for the tests of the interchange."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.operators import Kind, Objects, define_kinds
from tests.kopf.relay import Relay
from webop.client.api import Client

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


@pytest.fixture(scope="session")
def batons(webop_cluster: LocalCluster) -> Kind:
    """A kind whose objects are handed from one operator to the other."""
    kind = Kind("relay.webop.dev", "batons", "Baton", has_status=True)
    return next(define_kinds(webop_cluster, [kind]))


@pytest.fixture
def relay(
    tmp_path: Path, webop_cluster: LocalCluster, client: Client, batons: Kind, webop_namespace: str
) -> Relay:
    pytest.importorskip("kopf", reason="Kopf comes with the extra 'dev'.")
    objects = Objects(client, batons, webop_namespace)
    return Relay(tmp_path, webop_cluster.kubeconfig, objects)
