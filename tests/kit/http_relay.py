"""An HTTP relay between an operator and the API server, which answers as a test wants."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx
import orjson

import webop
from tests.kit.fake_server import read_request, send_response
from tests.kit.operators import operate
from webop.client.auth.vault import ConnectionInfo

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


Meddler = Callable[[httpx.Request], Awaitable[httpx.Response | None]]


class Relay:
    """What goes through one port.

    Attributes:
        hidden: API groups that the discovery does not show.
        is_locked: whether nobody is let in: every request is answered by 401.
        discoveries: how often ``/apis`` was asked for.
        requests: what was asked for, other than watches.
        meddle: called with each of them; returns the answer, or None to pass it on.
        watch: called with each watch; sends what is to come of it.
        url: where it listens.
    """

    def __init__(self, upstream: httpx.AsyncClient) -> None:
        self.hidden: set[str] = set()
        self.is_locked = False
        self.discoveries = 0
        self.requests: list[httpx.Request] = []
        self.meddle: Meddler | None = None
        self.watch: Callable[[httpx.Request], AsyncIterator[bytes]] = self.pass_watch_on
        self.url = ""
        self._upstream = upstream
        self._writers: set[asyncio.StreamWriter] = set()
        self._sending: set[asyncio.Task[httpx.Response]] = set()
        self.tasks: set[asyncio.Task[None] | None] = set()

    def list_requests(self, method: str, name: str) -> list[httpx.Request]:
        """Return the requests about an object, or about its status."""
        return [
            request
            for request in self.requests
            if request.method == method and name in request.url.path.split("/")
        ]

    @property
    def info(self) -> ConnectionInfo:
        """New credentials for the relay, which acts as the administrator then."""
        return ConnectionInfo(server=self.url, token=secrets.token_hex(8))

    def lock(self) -> None:
        """Let nobody in any more, and cut all connections."""
        self.is_locked = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, as ``asyncio.start_server`` calls it."""
        self.tasks.add(asyncio.current_task())
        self._writers.add(writer)
        try:
            while True:
                request = await read_request(reader)
                await send_response(writer, await self._answer(request))
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)
            self.tasks.discard(asyncio.current_task())

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_locked:
            return httpx.Response(401, json={"kind": "Status", "code": 401})
        if request.url.params.get("watch") == "true":
            return httpx.Response(200, content=self.watch(request))
        self.requests.append(request)
        answer = None if self.meddle is None else await self.meddle(request)
        return await self.pass_on(request) if answer is None else answer

    async def pass_on(self, request: httpx.Request) -> httpx.Response:
        """Return the answer of the API server."""
        found = await self._send(request)
        if request.url.path != "/apis":
            return httpx.Response(found.status_code, content=found.content)
        self.discoveries += 1
        answer = orjson.loads(found.content)
        shown = [i for i in answer["items"] if i["metadata"]["name"] not in self.hidden]
        return httpx.Response(200, content=orjson.dumps(answer | {"items": shown}))

    async def pass_watch_on(self, request: httpx.Request) -> AsyncIterator[bytes]:
        """Send what the API server sends to a watch."""
        found = await self._send(request, stream=True)
        try:
            async for data in found.aiter_bytes():
                yield data
        finally:
            await found.aclose()

    async def close(self) -> None:
        """End what goes through it."""
        for task in [task for task in self.tasks if task is not None]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """Ask the API server, to the end: a connect that is cancelled is lost by httpx."""
        task = asyncio.create_task(self._upstream.send(self._readdress(request), stream=stream))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return await asyncio.shield(task)

    def _readdress(self, request: httpx.Request) -> httpx.Request:
        headers = {
            key: value
            for key, value in request.headers.items()
            if key in ("accept", "content-type", "user-agent")
        }
        target = request.url.raw_path.decode()
        return self._upstream.build_request(
            request.method, target, headers=headers, content=request.content
        )


def fail(status: int, headers: dict[str, str] | None = None, **details: Any) -> httpx.Response:
    """Return an answer of the API server that refuses a request."""
    body = {"kind": "Status", "code": status, "message": f"injected {status}", "details": details}
    return httpx.Response(status, json=body, headers=headers)


@contextlib.asynccontextmanager
async def relay(cluster: LocalCluster) -> AsyncIterator[Relay]:
    """Run a relay to a cluster."""
    context = ssl.create_default_context(cadata=base64.b64decode(cluster.ca_data).decode())
    headers = {"Authorization": f"Bearer {cluster.token}", "Accept-Encoding": "identity"}
    async with httpx.AsyncClient(
        base_url=cluster.server, headers=headers, verify=context, timeout=None, trust_env=False
    ) as upstream:
        relayed = Relay(upstream)
        listener = await asyncio.start_server(relayed.serve, "127.0.0.1", 0)
        relayed.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield relayed
        finally:
            listener.close()
            await relayed.close()


@contextlib.asynccontextmanager
async def operate_behind(
    cluster: LocalCluster,
    meddle: Meddler,
    registry: webop.OperatorRegistry,
    namespace: str,
    settings: webop.OperatorSettings | None = None,
) -> AsyncIterator[None]:
    """Run an operator for a namespace behind a relay, which answers as a function wants."""
    async with relay(cluster) as relayed:
        relayed.meddle = meddle
        run = operate(relayed.info, registry, settings, beside=True, namespaces=[namespace])
        async with run:
            yield
