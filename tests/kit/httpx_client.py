"""The client over httpx's transports, such as ``httpx.MockTransport``, and answers to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import httpx
import orjson

from tests.kit.client_options import Networking
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.http.transport import Request, TransportError, TransportFactory
from webop.settings.groups import NetworkingSettings
from webop.testing import apiserver

Answer = Callable[[], httpx.Response]


def connect(
    handle: Callable[[httpx.Request], Any],
    networking: NetworkingSettings | None = None,
    vault: Vault | None = None,
) -> Client:
    """Return a client whose requests a function answers."""
    return Client(
        vault or Vault({"test": ConnectionInfo(server="https://fake.cluster", token="secret")}),
        networking or Networking(),
        transport_factory=answer_by(handle),
    )


def answer_json(body: object, status: int = 200, **headers: str) -> Answer:
    content = orjson.dumps(body)
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda: httpx.Response(status, content=content, headers=names)


def answer_status(code: int, reason: str = "", message: str = "", **headers: str) -> Answer:
    return answer_json(apiserver.Refusal(code, reason, message).build_status(), code, **headers)


def build_request(request: httpx.Request, user: str = "admin") -> apiserver.Request:
    """Return a request as one to the API server in memory."""
    url, headers = request.url, dict(request.headers)
    return apiserver.Request(
        request.method, url.path, dict(url.params), headers, request.content, user
    )


def build_response(response: apiserver.Response) -> httpx.Response:
    return httpx.Response(response.status, headers=response.headers, content=response.encode())


def answer_by(handler: Callable[[httpx.Request], Any]) -> TransportFactory:
    return lambda info: HTTPXTransport(httpx.MockTransport(handler), info.server)


class HTTPXTransport:
    """A transport of httpx as one of the client's.

    Args:
        transport: what the requests go to.
        server: the URL of the API server.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, server: str) -> None:
        self._transport = transport
        self._server = httpx.URL(server)

    async def send(self, request: Request) -> HTTPXAnswer:
        """Send a request (see :class:`webop.client.http.transport.Transport`)."""
        lines = request.headers.split(b"\r\n")[:-1]
        sent = httpx.Request(
            request.method,
            self._server.join(request.target),
            headers=[cast("tuple[bytes, bytes]", tuple(line.split(b": ", 1))) for line in lines],
            content=request.content,
            extensions={"timeout": {"connect": request.connect_timeout}},
        )
        try:
            return HTTPXAnswer(await self._transport.handle_async_request(sent))
        except httpx.HTTPError as exc:
            raise TransportError(str(exc) or repr(exc)) from exc

    async def aclose(self) -> None:
        await self._transport.aclose()


class HTTPXAnswer:
    """A response of httpx as an answer."""

    is_complete = False

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.raw}
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._chunks = aiter(self._stream)

    async def receive(self) -> bytes:
        """Wait for a piece of the content (see :class:`webop.client.http.transport.Response`)."""
        try:
            async for chunk in self._chunks:
                if chunk:
                    return chunk
        except httpx.HTTPError as exc:
            raise TransportError(str(exc) or repr(exc)) from exc
        return b""

    async def aclose(self) -> None:
        await self._stream.aclose()
