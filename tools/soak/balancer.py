"""A balancer of TCP connections that plays a Service of Kubernetes.

It probes the readiness of its endpoints like a kubelet, and applies changes some time later like
kube-proxies. As in a cluster, existing connections stay with their endpoint, ready or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from tests.kit.forwarder import Forwarder
from tests.kit.operators import open_http

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_PROBING = 0.2  # seconds between two probes of an endpoint


@dataclass(eq=False)
class Endpoint:
    """A replica behind the balancer: the port of its webhooks, and the URL of its readiness."""

    port: int
    probe: str
    is_listed: bool = False


class Balancer(Forwarder):
    """Distributes connections to one port over the ready endpoints."""

    def __init__(self, lag: float) -> None:
        super().__init__()
        self.endpoints: list[Endpoint] = []
        self._lag, self._turns = lag, itertools.count()
        self._probing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Accept connections during a block."""
        async with self.listen():
            try:
                yield
            finally:
                self.endpoints.clear()
                await asyncio.gather(*self._probing)

    def add(self, endpoint: Endpoint) -> None:
        """Add an endpoint, which gets connections while it is ready."""
        self.endpoints.append(endpoint)
        task = asyncio.create_task(self._watch(endpoint))
        self._probing.add(task)
        task.add_done_callback(self._probing.discard)

    def remove(self, endpoint: Endpoint) -> None:
        """Remove an endpoint whose process has ended."""
        self.endpoints.remove(endpoint)

    async def _watch(self, endpoint: Endpoint) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=2, verify=False) as http:
            # Not cancelled: httpx leaks a connection that is cancelled while it is opened.
            while endpoint in self.endpoints:
                is_ready = await _probe(http, endpoint.probe)
                if is_ready != endpoint.is_listed:
                    await asyncio.sleep(self._lag)
                    endpoint.is_listed = is_ready
                await asyncio.sleep(_PROBING)

    def find_server(self) -> tuple[str, int] | None:
        listed = [endpoint for endpoint in self.endpoints if endpoint.is_listed]
        return ("127.0.0.1", listed[next(self._turns) % len(listed)].port) if listed else None


async def _probe(http: httpx.AsyncClient, url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return (await http.get(url)).status_code == 200
    return False


@asynccontextmanager
async def open_service(
    cluster: LocalCluster, namespace: str, lag: float, timeout: float
) -> AsyncIterator[tuple[httpx.AsyncClient, Balancer]]:
    """Run a balancer, and create the Service "webhooks"; give a client of the administrator, too.

    The lag is the time until the balancer applies a change of readiness.
    """
    # httpcore 1.0 leaks a connection if a request times out while it waits for one.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with open_http(cluster, timeout=timeout, limits=limits) as http:
        # The API server resolves Services of this type itself: there are no kube-proxies here.
        spec = {"type": "ExternalName", "externalName": "localhost"}
        service = {"metadata": {"name": "webhooks"}, "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/services"
        (await http.post(path, json=service)).raise_for_status()
        balancer = Balancer(lag)
        async with balancer.serve():
            yield http, balancer
