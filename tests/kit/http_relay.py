"""An HTTP relay between an operator and the API server, which answers as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx
import orjson

from tests.kit.operators import open_http
from tests.kit.scripted_server import ScriptedServer, answer_by
from webop.client.auth.vault import ConnectionInfo

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_KEPT = {"accept", "content-type", "user-agent"}

Meddler = Callable[[httpx.Request], Awaitable[httpx.Response | None]]


class Relay:
    """What goes through one port.

    Args:
        upstream: sends requests to the API server.
        keeps_user: whether they are those of the client itself, not of the administrator.

    Attributes:
        hidden: API groups that the discovery does not show.
        is_locked: whether nobody is let in: every request is answered by 401.
        discoveries: how often ``/apis`` was asked for.
        requests: what was asked for, other than watches.
        answers: what the API server has answered, each with its request.
        meddle: called with each of the requests; returns the answer, or None to pass it on.
        watch: called with each watch, if it is set; sends what is to come of it.
    """

    def __init__(self, upstream: httpx.AsyncClient, *, keeps_user: bool = False) -> None:
        self.hidden: set[str] = set()
        self.is_locked = False
        self.discoveries = 0
        self.requests: list[httpx.Request] = []
        self.answers: list[httpx.Response] = []
        self.meddle: Meddler | None = None
        self.watch: Callable[[httpx.Request], AsyncIterator[bytes]] | None = None
        self.server = ScriptedServer(answer_by(self._answer))
        self._upstream = upstream
        self._kept = _KEPT | {"authorization"} if keeps_user else _KEPT
        self._sending: set[asyncio.Task[httpx.Response]] = set()

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
        return ConnectionInfo(server=self.server.url, token=secrets.token_hex(8))

    def lock(self) -> None:
        """Let nobody in any more, and cut all connections."""
        self.is_locked = True
        self.server.cut()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_locked:
            return httpx.Response(401, json={"kind": "Status", "code": 401})
        if request.url.params.get("watch") == "true":
            if self.watch is not None:
                return httpx.Response(200, content=self.watch(request))
            found = await self._send(request, stream=True)
            return httpx.Response(found.status_code, content=_read(found))
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
        async for data in _read(await self._send(request, stream=True)):
            yield data

    async def close(self) -> None:
        """End what goes through it."""
        await self.server.stop()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """Ask the API server, to the end: a connect that is cancelled is lost by httpx."""
        headers = {key: value for key, value in request.headers.items() if key in self._kept}
        new = self._upstream.build_request(
            request.method, request.url.raw_path.decode(), headers=headers, content=request.content
        )
        task = asyncio.create_task(self._upstream.send(new, stream=stream))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        answer = await asyncio.shield(task)
        self.answers.append(answer)
        return answer


async def _read(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for data in response.aiter_bytes():
            yield data
    finally:
        await response.aclose()


def fail(status: int, headers: dict[str, str] | None = None, **details: Any) -> httpx.Response:
    """Return an answer of the API server that refuses a request."""
    body = {"kind": "Status", "code": status, "message": f"injected {status}", "details": details}
    return httpx.Response(status, json=body, headers=headers)


@contextlib.asynccontextmanager
async def relay(cluster: LocalCluster, *, keeps_user: bool = False) -> AsyncIterator[Relay]:
    async with open_http(cluster, timeout=None) as upstream:
        upstream.headers["Accept-Encoding"] = "identity"
        relayed = Relay(upstream, keeps_user=keeps_user)
        await relayed.server.start()
        try:
            yield relayed
        finally:
            await relayed.close()
