"""Which cluster it is by the certificate and the version of its API server."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

import pytest

from tests.kit.rows import rows
from webop.servers.auto import detect_by_certificate, detect_by_version
from webop.servers.certificates.certs import Certificate

build = partial(Certificate, start=dt.datetime.now(dt.UTC), end=dt.datetime.now(dt.UTC), serial="1")
K3D, MINIKUBE, DOCKER = "k3d", "minikube", "docker-desktop"


@pytest.mark.feature("ADM-86", "ADM-87")
@rows(
    ("names", "kind"),
    [
        (build(issuer="kubernetes", hostnames=frozenset({"kind-control-plane"})), None),
        # Each of the signs alone.
        (build(common_name="k3s"), K3D),
        (build(organizations=("other", "k3s")), K3D),
        (build(issuer="k3s-server-ca@1"), K3D),
        (build(common_name="minikube"), MINIKUBE),
        (build(issuer="minikubeCA"), MINIKUBE),
        (build(hostnames=frozenset({"control-plane.minikube.internal"})), MINIKUBE),
        (build(hostnames=frozenset({"docker-for-desktop"})), DOCKER),
        # What only looks like them.
        (build(common_name="k3s.example.com", issuer="my-k3s-ca"), None),
        (build(hostnames=frozenset({"minikube.example.com", "docker-desktop"})), None),
    ],
)
def test_clusters_are_known_by_their_certificates(names: Certificate, kind: str | None) -> None:
    assert detect_by_certificate(names) == kind


@pytest.mark.feature("ADM-86", "ADM-87")
@rows(
    ("version", "kind"),
    [
        ({"major": "1", "minor": "36", "gitVersion": "v1.36.3+k3s1"}, K3D),
        ({"gitVersion": "v1.36.3"}, None),
        ({"gitVersion": "v1.36.3+rke2r1"}, None),
        ({"gitVersion": None}, None),
        ({}, None),
    ],
)
def test_k3s_is_known_by_its_version(version: dict[str, Any], kind: str | None) -> None:
    assert detect_by_version(version) == kind
