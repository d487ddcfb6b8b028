"""What the tests of the webhook servers share: a review, a function that records, clients."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

import webop
from webop.keymaterial import load_key_material
from webop.servers.certificates.certs import KeyPair
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.listener import Listener
from webop.servers.limits import Hosting

REVIEW = {
    "kind": "AdmissionReview",
    "apiVersion": "admission.k8s.io/v1",
    "request": {"uid": "1ca13837-ad60-4c9e-abb8-86f29d6c0e84", "operation": "CREATE"},
}
RESPONSE = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "response": {"uid": "1"},
}


BODY = json.dumps(REVIEW).encode()
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
REQUEST = HEAD + BODY


@dataclass
class Call:
    request: Mapping[str, Any]
    webhook: str | None
    headers: Mapping[str, str]
    sslpeer: Mapping[str, Any] | None


@dataclass
class Recorder:
    """A ``WebhookFn`` that remembers its calls, and does what it is told to."""

    calls: list[Call] = field(default_factory=list)
    response: Any = field(default_factory=lambda: RESPONSE)
    error: BaseException | None = None
    #: Set when it is called; with ``gate``, it waits there.
    called: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event | None = None

    async def __call__(
        self,
        request: Mapping[str, Any],
        *,
        webhook: str | None = None,
        headers: Mapping[str, str] | None = None,
        sslpeer: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        self.calls.append(Call(request, webhook, headers or {}, sslpeer))
        self.called.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        response: dict[str, Any] = self.response
        return response


def trust(
    cas: bytes, *, client: KeyPair | None = None, checks_hostname: bool = True
) -> ssl.SSLContext:
    """Make a client's context that trusts only these cas, as an API server does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_hostname
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by default
    context.load_verify_locations(cadata=cas.decode())
    if client is not None:
        load_key_material(context, client.cert, client.key)
    return context


async def post(
    url: str, context: ssl.SSLContext | None = None, *, auth: tuple[str, str] | None = None
) -> httpx.Response:
    async with httpx.AsyncClient(verify=context or False, auth=auth, trust_env=False) as client:
        return await client.post(url, json=REVIEW)


@contextlib.asynccontextmanager
async def serve(
    server: webop.WebhookServerProtocol, fn: webop.WebhookFn
) -> AsyncIterator[webop.WebhookClientConfig]:
    """Run a server until its first config, and close it afterwards."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(server, contextlib.AbstractAsyncContextManager):
            server = await stack.enter_async_context(server)
        async for config in server(fn):
            yield config
            break


@contextlib.asynccontextmanager
async def collect(
    server: webop.WebhookServerProtocol, fn: webop.WebhookFn
) -> AsyncIterator[asyncio.Queue[webop.WebhookClientConfig]]:
    """Run a server as an operator does: in a task that is cancelled at the end."""
    configs: asyncio.Queue[webop.WebhookClientConfig] = asyncio.Queue()

    async def iterate() -> None:
        async for config in server(fn):
            configs.put_nowait(config)

    task = asyncio.create_task(iterate())
    try:
        yield configs
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def get_url(config: webop.WebhookClientConfig) -> str:
    assert config["url"] is not None
    return config["url"]


def get_port(config: webop.WebhookClientConfig) -> int:
    return urlsplit(get_url(config)).port or 0


def get_bundle(config: webop.WebhookClientConfig) -> bytes:
    assert config["caBundle"] is not None
    return base64.b64decode(config["caBundle"])


async def open_connection(
    port: int, context: ssl.SSLContext | None = None, hostname: str = "localhost"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=hostname if context else None
    )


@contextlib.asynccontextmanager
async def connect(
    port: int, context: ssl.SSLContext | None = None, hostname: str = "localhost"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection without any HTTP client in between, and close it."""
    reader, writer = await open_connection(port, context, hostname)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


async def read_answer(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Read a response; return its head and its body."""
    head = await read_head(reader)
    return head, await reader.readexactly(int(head.split("content-length: ")[1].split()[0]))


def build_context(pair: KeyPair) -> ssl.SSLContext:
    """Make the context of a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_key_material(context, pair.cert, pair.key)
    return context


@contextlib.asynccontextmanager
async def listen(
    fn: webop.WebhookFn, hosting: Hosting | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Listener]:
    """Serve reviews at a free port."""
    hosting = hosting or Hosting()
    endpoint = ReviewEndpoint(fn, hosting=hosting)
    get_context = None if tls is None else lambda: tls
    async with Listener(
        endpoint, "127.0.0.1", 0, ssl_context=get_context, hosting=hosting
    ) as listener:
        yield listener


def save(pair: KeyPair, folder: Path, stem: str = "server") -> tuple[Path, Path]:
    certfile, pkeyfile = folder / f"{stem}-cert.pem", folder / f"{stem}-key.pem"
    certfile.write_bytes(pair.cert)
    pkeyfile.write_bytes(pair.key)
    return certfile, pkeyfile
