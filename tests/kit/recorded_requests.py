"""What an operator asks the API server for as its service account, and how it is answered."""

from __future__ import annotations

import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_KEPT = ("Authorization", "Accept", "Content-Type")


@dataclass(frozen=True)
class Asked:
    """A request, and the status of the answer."""

    method: str
    target: str
    headers: dict[str, str] = field(compare=False)
    body: bytes = field(compare=False)
    status: int

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def is_watch(self) -> bool:
        return "watch" in parse_qs(urlsplit(self.target).query)

    def __str__(self) -> str:
        return f"{'WATCH' if self.is_watch else self.method} {self.path}"


@dataclass
class Recorder:
    """A proxy between an operator and the API server.

    Attributes:
        url: where it listens, without TLS.
        requests: what went through it.
        meddle: called with the method and the path of each request before it is sent on.
    """

    url: str = ""
    requests: list[Asked] = field(default_factory=list)
    meddle: Callable[[str, str], Awaitable[None]] | None = None


def build_tls(cluster: LocalCluster) -> ssl.SSLContext:
    """Return what trusts a cluster."""
    return ssl.create_default_context(cadata=base64.b64decode(cluster.ca_data).decode())


@contextlib.asynccontextmanager
async def recording(cluster: LocalCluster) -> AsyncIterator[Recorder]:
    """Run a recorder in front of a cluster."""
    recorder = Recorder()
    connector = aiohttp.TCPConnector(ssl=build_tls(cluster), limit=0)
    async with aiohttp.ClientSession(
        cluster.server,
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("Content-Type",),
    ) as session:

        async def pass_on(request: web.BaseRequest) -> web.StreamResponse:
            body, target = await request.read(), request.path_qs
            headers = {key: request.headers[key] for key in _KEPT if key in request.headers}
            if recorder.meddle is not None:
                await recorder.meddle(request.method, request.path)
            async with session.request(request.method, target, data=body, headers=headers) as found:
                asked = Asked(request.method, target, headers, body, found.status)
                recorder.requests.append(asked)
                kind = {"Content-Type": found.headers.get("Content-Type", "")}
                response = web.StreamResponse(status=found.status, headers=kind)
                with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                    await response.prepare(request)
                    async for chunk in found.content.iter_any():
                        await response.write(chunk)
                    await response.write_eof()
                return response

        server = web.Server(pass_on)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        recorder.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield recorder
        finally:
            await runner.cleanup()
