"""Webhook servers that look at the cluster first, and choose how it can reach this host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING

from webop.errors import WebopError
from webop.servers.base import BaseWebhookServer, WebhookClientConfig, WebhookFn
from webop.servers.detection import ClusterKind, detect_by_certificate, detect_by_version
from webop.servers.hosting import get_hosting
from webop.servers.local import (
    WebhookDockerDesktopServer,
    WebhookK3dServer,
    WebhookMinikubeServer,
    WebhookServer,
)
from webop.servers.ngrok import WebhookNgrokTunnel

if TYPE_CHECKING:
    from webop.servers.hosting import ClusterAccess

logger = logging.getLogger(__name__)

_SERVERS: dict[ClusterKind, type[WebhookServer]] = {
    ClusterKind.K3D: WebhookK3dServer,
    ClusterKind.MINIKUBE: WebhookMinikubeServer,
    ClusterKind.DOCKER_DESKTOP: WebhookDockerDesktopServer,
}

# Seconds. The login and the retries of the client are within; longer than that, nobody is served.
_DETECTION_LIMIT = 30.0


class WebhookAutoServer(WebhookServer):
    """A server that knows K3d, Minikube and Docker Desktop (manual, "Servers and tunnels").

    For these, it is as :class:`~webop.WebhookK3dServer`, etc. For all others, and without
    a cluster, it is a plain :class:`~webop.WebhookServer`. It never tunnels.

    The parameters are those of the plain server; a given ``host`` or ``addr`` wins.
    """

    async def serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Serve as the server for the cluster does (:meth:`WebhookServer.serve`)."""
        if not self.host:
            chosen = await _choose_server() or WebhookServer
            self.DEFAULT_HOST, self.DEFAULT_ADDR = chosen.DEFAULT_HOST, chosen.DEFAULT_ADDR  # type: ignore[misc]
        async with contextlib.aclosing(super().serve(fn)) as configs:
            async for config in configs:
                yield config


class WebhookAutoTunnel(BaseWebhookServer):
    """A server for the local clusters that are known, and a tunnel for all others.

    See :class:`~webop.WebhookAutoServer` and :class:`~webop.WebhookNgrokTunnel`; to set more than
    the address, use one of them.

    Args:
        addr: the address to listen on; of the tunnel, for its local server.
        port: the port to listen on; 9443 by default; 0 takes a free one.
        path: the root path of the URLs; none by default.
    """

    def __init__(
        self, *, addr: str | None = None, port: int | None = None, path: str | None = None
    ) -> None:
        super().__init__()
        self.addr = addr
        self.port = port
        self.path = path

    async def serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Serve by the server for the cluster, or by a tunnel."""
        chosen = await _choose_server() or WebhookNgrokTunnel
        server = chosen(addr=self.addr, port=self.port, path=self.path)
        async with contextlib.aclosing(server.serve(fn)) as configs:
            async for config in configs:
                yield config


async def _choose_server() -> type[WebhookServer] | None:
    """Return the server for the cluster; None if it is not one of those that are known."""
    cluster = get_hosting().cluster
    if cluster is None:
        logger.info("There is no cluster to detect the kind of.")
        return None
    try:
        async with asyncio.timeout(_DETECTION_LIMIT):
            kind = await _detect(cluster)
    except (TimeoutError, WebopError) as exc:
        reason = str(exc) or f"no answer in {_DETECTION_LIMIT:g} s"
        logger.warning("The kind of the cluster cannot be detected: %s", reason)
        return None
    if kind is None:
        logger.info("The cluster is none of those that are detected: %s.", ", ".join(ClusterKind))
        return None
    logger.info("The cluster is detected to be %s.", kind)
    return _SERVERS[kind]


async def _detect(cluster: ClusterAccess) -> ClusterKind | None:
    certificate = await cluster.fetch_certificate()
    if certificate is not None:
        from webop.servers.certificates.certs import read_names  # noqa: PLC0415 - slow

        try:
            kind = detect_by_certificate(read_names(certificate))
        except ValueError as exc:
            logger.warning("The certificate of the API server cannot be read: %s", exc)
        else:
            if kind is not None:
                return kind
    version = await cluster.request("GET", "/version")
    return detect_by_version(version) if isinstance(version, Mapping) else None
