"""Detect the kind of a local cluster by its API server's certificate and version (pure).

The rules are Kopf's: the certificate first, as it can be read without permissions; then the
version.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webop.servers.certificates.certs import Certificate


class ClusterKind(enum.StrEnum):
    """Local clusters that have a special name for the host they run on."""

    K3D = "k3d"
    MINIKUBE = "minikube"
    DOCKER_DESKTOP = "docker-desktop"


def detect_by_certificate(certificate: Certificate) -> ClusterKind | None:
    """Detect a cluster by the certificate of its API server.

    K3s: the name "k3s", signed by a CA such as "k3s-server-ca@1700000000". Minikube: the name
    "minikube", signed by "minikubeCA". Docker Desktop: the name "docker-for-desktop".
    """
    if certificate.common_name == "k3s" or "k3s" in certificate.organizations:
        return ClusterKind.K3D
    if certificate.issuer.startswith("k3s-"):
        return ClusterKind.K3D
    if certificate.common_name == "minikube" or certificate.issuer == "minikubeCA":
        return ClusterKind.MINIKUBE
    if "control-plane.minikube.internal" in certificate.hostnames:
        return ClusterKind.MINIKUBE
    if "docker-for-desktop" in certificate.hostnames:
        return ClusterKind.DOCKER_DESKTOP
    return None


def detect_by_version(version: Mapping[str, Any]) -> ClusterKind | None:
    """Detect a cluster by the response of ``/version``; K3s has "v1.36.3+k3s1", for example."""
    is_k3s = "+k3s" in str(version.get("gitVersion", ""))
    return ClusterKind.K3D if is_k3s else None
