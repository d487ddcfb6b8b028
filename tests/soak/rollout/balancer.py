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
from dataclasses import dataclass, field

import httpx

_CHUNK = 65536
_PROBING = 0.2  # seconds between two probes of an endpoint


@dataclass(eq=False)
class Endpoint:
    """A replica behind the balancer: the port of its webhooks, and the URL of its readiness."""

    port: int
    probe: str
    is_listed: bool = False


@dataclass
class Balancer:
    """Distributes connections to one port over the ready endpoints."""

    lag: float
    port: int = 0
    refused: int = 0
    endpoints: list[Endpoint] = field(default_factory=list)
    _turns: itertools.count[int] = field(default_factory=itertools.count)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _probing: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Accept connections during a block."""
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0, backlog=1000)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            self.endpoints.clear()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._probing, *self._tasks, return_exceptions=True)

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
                    await asyncio.sleep(self.lag)
                    endpoint.is_listed = is_ready
                await asyncio.sleep(_PROBING)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # else streams log a traceback
                await self._connect(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listed = [endpoint for endpoint in self.endpoints if endpoint.is_listed]
        if not listed:
            self.refused += 1
            return
        endpoint = listed[next(self._turns) % len(listed)]
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        except OSError:
            self.refused += 1
            return
        try:
            await asyncio.gather(_pipe(reader, back_writer), _pipe(back_reader, writer))
        finally:
            back_writer.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction to its end; reset the other side too if one side is reset."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


async def _probe(http: httpx.AsyncClient, url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return (await http.get(url)).status_code == 200
    return False
