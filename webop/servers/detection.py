"""Which local cluster it is, by what its API server tells of itself (pure).

The rules are those that users of Kopf rely on: certificates first, as they can be seen without
any permission; the version, where the certificate says nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webop.servers.certificates.certs import CertificateNames


class ClusterKind(enum.StrEnum):
    """Local clusters that know the host they run on by a name of their own."""

    K3D = "k3d"
    MINIKUBE = "minikube"
    DOCKER_DESKTOP = "docker-desktop"


def detect_by_certificate(names: CertificateNames) -> ClusterKind | None:
    """Recognise a cluster by the certificate of its API server.

    K3s signs by its own CA ("k3s-server-ca@1700000000") for "k3s"; Minikube by
    "minikubeCA" for "minikube"; that of Docker Desktop is for "docker-for-desktop", among others.
    """
    if names.common_name == "k3s" or "k3s" in names.organizations:
        return ClusterKind.K3D
    if names.issuer.startswith("k3s-"):
        return ClusterKind.K3D
    if names.common_name == "minikube" or names.issuer == "minikubeCA":
        return ClusterKind.MINIKUBE
    if "control-plane.minikube.internal" in names.hostnames:
        return ClusterKind.MINIKUBE
    if "docker-for-desktop" in names.hostnames:
        return ClusterKind.DOCKER_DESKTOP
    return None


def detect_by_version(version: Mapping[str, Any]) -> ClusterKind | None:
    """Recognise a cluster by the answer of ``/version``: that of K3s is like "v1.36.3+k3s1"."""
    is_k3s = "+k3s" in str(version.get("gitVersion", ""))
    return ClusterKind.K3D if is_k3s else None
