"""Which cluster it is by the certificate and the version of its API server."""

from __future__ import annotations

from typing import Any

import pytest

from webop.servers.auto import ClusterKind, detect_by_certificate, detect_by_version
from webop.servers.certificates.certs import (
    CertificateNames,
    build_ca,
    build_certificate_signed,
    read_names,
)

K3D, MINIKUBE, DOCKER = ClusterKind.K3D, ClusterKind.MINIKUBE, ClusterKind.DOCKER_DESKTOP


@pytest.mark.feature("ADM-86", "ADM-87")
@pytest.mark.parametrize(
    ("names", "kind"),
    [
        # As those clusters have them.
        (
            CertificateNames(
                common_name="k3s",
                organizations=("k3s",),
                issuer="k3s-server-ca@1700000000",
                hostnames=frozenset({"k3d-dev-server-0", "kubernetes", "localhost"}),
            ),
            K3D,
        ),
        (
            CertificateNames(
                common_name="minikube",
                organizations=("system:masters",),
                issuer="minikubeCA",
                hostnames=frozenset({"minikubeCA", "control-plane.minikube.internal", "localhost"}),
            ),
            MINIKUBE,
        ),
        (
            CertificateNames(
                common_name="kube-apiserver",
                issuer="kubernetes",
                hostnames=frozenset({"docker-desktop", "docker-for-desktop", "kubernetes"}),
            ),
            DOCKER,
        ),
        (
            CertificateNames(
                common_name="kube-apiserver",
                issuer="kubernetes",
                hostnames=frozenset({"kind-control-plane", "kubernetes", "localhost"}),
            ),
            None,
        ),
        # Each of the signs alone.
        (CertificateNames(common_name="k3s"), K3D),
        (CertificateNames(organizations=("other", "k3s")), K3D),
        (CertificateNames(issuer="k3s-server-ca@1"), K3D),
        (CertificateNames(common_name="minikube"), MINIKUBE),
        (CertificateNames(issuer="minikubeCA"), MINIKUBE),
        (CertificateNames(hostnames=frozenset({"control-plane.minikube.internal"})), MINIKUBE),
        (CertificateNames(hostnames=frozenset({"docker-for-desktop"})), DOCKER),
        # What only looks like them.
        (CertificateNames(), None),
        (CertificateNames(common_name="k3s.example.com", issuer="my-k3s-ca"), None),
        (CertificateNames(hostnames=frozenset({"minikube.example.com", "docker-desktop"})), None),
    ],
)
def test_clusters_are_known_by_their_certificates(
    names: CertificateNames, kind: ClusterKind | None
) -> None:
    assert detect_by_certificate(names) is kind


@pytest.mark.feature("ADM-86", "ADM-87")
@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ({"major": "1", "minor": "36", "gitVersion": "v1.36.3+k3s1"}, K3D),
        ({"gitVersion": "v1.30.0-rc1+k3s2"}, K3D),
        ({"gitVersion": "v1.36.3"}, None),
        ({"gitVersion": "v1.36.3+rke2r1"}, None),
        ({"gitVersion": "v1.30.5-gke.1014001"}, None),
        ({"gitVersion": None}, None),
        ({}, None),
    ],
)
def test_k3s_is_known_by_its_version(version: dict[str, Any], kind: ClusterKind | None) -> None:
    assert detect_by_version(version) is kind


def test_names_are_read_from_a_certificate() -> None:
    ca = build_ca("minikubeCA")
    pair = build_certificate_signed(
        ca,
        common_name="minikube",
        organizations=["system:masters", "more"],
        hostnames=["control-plane.minikube.internal", "127.0.0.1", "localhost"],
    )
    assert read_names(pair.cert + ca.cert) == CertificateNames(
        common_name="minikube",
        organizations=("system:masters", "more"),
        issuer="minikubeCA",
        hostnames=frozenset({"control-plane.minikube.internal", "127.0.0.1", "localhost"}),
    )


def test_names_that_are_not_there_are_empty() -> None:
    assert read_names(build_ca("ca").cert) == CertificateNames(common_name="ca", issuer="ca")


def test_what_is_no_certificate_has_no_names() -> None:
    with pytest.raises(ValueError, match=r"(?i)pem"):
        read_names(b"garbage")
