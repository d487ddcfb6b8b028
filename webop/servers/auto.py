"""Webhook servers that detect the kind of cluster and choose how it can reach this host.

The rules are Kopf's: the certificate of the API server first, as it can be read without
permissions; then the version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webop.errors import WebopError
from webop.servers.base import BaseWebhookServer, WebhookClientConfig, WebhookFn
from webop.servers.limits import get_hosting
from webop.servers.local import (
    WebhookDockerDesktopServer,
    WebhookK3dServer,
    WebhookMinikubeServer,
    WebhookServer,
)
from webop.servers.tunnel import WebhookNgrokTunnel

if TYPE_CHECKING:
    from webop.servers.certificates.certs import Certificate
    from webop.servers.limits import ClusterAccess

logger = logging.getLogger(__name__)


# By the local clusters that have a special name for the host they run on.
_SERVERS: dict[str, type[WebhookServer]] = {
    "k3d": WebhookK3dServer,
    "minikube": WebhookMinikubeServer,
    "docker-desktop": WebhookDockerDesktopServer,
}

# Seconds, including the login and the client's retries; meanwhile, no reviews are served.
_DETECTION_LIMIT = 30.0


class WebhookAutoServer(WebhookServer):
    """A server that detects K3d, Minikube and Docker Desktop for development.

    For these, it acts as :class:`~webop.WebhookK3dServer`, etc.; for other clusters, and without
    a cluster, as a plain :class:`~webop.WebhookServer`. It never opens a tunnel.

    It has the parameters of the plain server; a given ``host`` or ``addr`` wins.
    """

    async def _prepare(self) -> None:
        if not self.host:
            chosen = await _choose_server() or WebhookServer
            self.DEFAULT_HOST, self.DEFAULT_ADDR = chosen.DEFAULT_HOST, chosen.DEFAULT_ADDR  # type: ignore[misc]


@dataclass(kw_only=True, eq=False, repr=False)
class WebhookAutoTunnel(BaseWebhookServer):
    """A server for known local clusters, and a tunnel for all others.

    See :class:`~webop.WebhookAutoServer` and :class:`~webop.WebhookNgrokTunnel`. Use one of them to
    set more than the address.

    Args:
        addr: the address to listen on.
        port: the port to listen on; 9443 by default; 0 for a free one.
        path: the root path of the URLs; none by default.
    """

    addr: str | None = None
    port: int | None = None
    path: str | None = None

    async def serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Serve by the server for the detected cluster, or by a tunnel."""
        chosen = await _choose_server() or WebhookNgrokTunnel
        server = chosen(addr=self.addr, port=self.port, path=self.path)
        async with contextlib.aclosing(server.serve(fn)) as configs:
            async for config in configs:
                yield config


async def _choose_server() -> type[WebhookServer] | None:
    """Return the server for the cluster; None for an unknown kind of cluster."""
    cluster = get_hosting().cluster
    if cluster is None:
        logger.info("Cannot detect the kind of cluster: the operator has no access to a cluster.")
        return None
    try:
        async with asyncio.timeout(_DETECTION_LIMIT):
            kind = await _detect(cluster)
    except (TimeoutError, WebopError) as exc:
        reason = str(exc) or f"no response in {_DETECTION_LIMIT:g} s"
        logger.warning("Cannot detect the kind of cluster: %s", reason)
        return None
    if kind is None:
        logger.info("The cluster is none of the known local ones: %s.", ", ".join(_SERVERS))
        return None
    logger.info("Detected a local cluster: %s.", kind)
    return _SERVERS[kind]


async def _detect(cluster: ClusterAccess) -> str | None:
    certificate = await cluster.fetch_certificate()
    if certificate is not None:
        from webop.servers.certificates.certs import read_certificate  # noqa: PLC0415 - slow

        try:
            kind = detect_by_certificate(read_certificate(certificate))
        except ValueError as exc:
            logger.warning("Cannot read the certificate of the API server: %s", exc)
        else:
            if kind is not None:
                return kind
    version = await cluster.request("GET", "/version")
    return detect_by_version(version) if isinstance(version, Mapping) else None


def detect_by_certificate(certificate: Certificate) -> str | None:
    """Detect a cluster by the certificate of its API server.

    K3s: the name "k3s", signed by a CA such as "k3s-server-ca@1700000000". Minikube: the name
    "minikube", signed by "minikubeCA". Docker Desktop: the name "docker-for-desktop".
    """
    if certificate.common_name == "k3s" or "k3s" in certificate.organizations:
        return "k3d"
    if certificate.issuer.startswith("k3s-"):
        return "k3d"
    if certificate.common_name == "minikube" or certificate.issuer == "minikubeCA":
        return "minikube"
    if "control-plane.minikube.internal" in certificate.hostnames:
        return "minikube"
    return "docker-desktop" if "docker-for-desktop" in certificate.hostnames else None


def detect_by_version(version: Mapping[str, Any]) -> str | None:
    """Detect a cluster by the response of ``/version``; K3s has "v1.36.3+k3s1", for example."""
    return "k3d" if "+k3s" in str(version.get("gitVersion", "")) else None
