"""Admission reviews over TLS: the load on a webhook server, on keep-alive connections."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from typing import TYPE_CHECKING

import orjson

from bench.api import GROUP
from bench.model import BenchError
from webop.servers.certificates.certs import KeyPair, build_certificate_self_signed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONNECTIONS = 16
_UID = b"00000000-0000-4000-8000-000000000000"


def find_free_port() -> int:
    """Return a free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def make_certificate(folder: Path) -> KeyPair:
    """Write ``cert.pem`` and ``key.pem`` of a server on this host into a folder."""
    pair = build_certificate_self_signed(["localhost", "127.0.0.1"])
    (folder / "cert.pem").write_bytes(pair.cert)
    (folder / "key.pem").write_bytes(pair.key)
    return pair


def build_review(plural: str, spec: object, *, is_update: bool = False) -> bytes:
    """Return a review as in the manual, with a placeholder for the uid."""
    kind = {"group": GROUP, "version": "v1", "kind": plural.capitalize()}
    resource = {"group": GROUP, "version": "v1", "resource": plural}
    body = {
        "apiVersion": f"{GROUP}/v1",
        "kind": plural.capitalize(),
        "metadata": {"name": "example-1", "namespace": "default", "uid": _UID.decode()},
        "spec": spec,
    }
    request = {
        "uid": _UID.decode(),
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": "example-1",
        "namespace": "default",
        "operation": "UPDATE" if is_update else "CREATE",
        "userInfo": {
            "username": "admin",
            "uid": "admin",
            "groups": ["system:masters", "system:authenticated"],
        },
        "object": body,
        "oldObject": body if is_update else None,
        "dryRun": True,
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return orjson.dumps(review)


class ReviewLoad:
    """Connections to a webhook server; each sends the next review after the response."""

    def __init__(self, port: int, certificate: KeyPair) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cadata=certificate.cert.decode())
        self._numbers = itertools.count(1)

    async def wait_until_served(self, path: str, review: bytes, expected: bytes) -> None:
        """Wait until the response to a review is the expected one of its handler."""
        is_served = False
        while not is_served:
            try:
                await self.send(path, review, expected, count=1, connections=1)
                is_served = True
            except* (OSError, asyncio.IncompleteReadError, BenchError):
                await asyncio.sleep(0.1)

    async def send(
        self,
        path: str,
        review: bytes,
        expected: bytes,
        *,
        count: int,
        connections: int = CONNECTIONS,
    ) -> None:
        """Send reviews with distinct uids; each response must contain the expected text."""
        left = iter(range(count))
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost:{self._port}\r\n"
            "Content-Type: application/json\r\nAccept: application/json\r\n"
            f"User-Agent: kube-apiserver\r\nContent-Length: {len(review)}\r\n\r\n"
        ).encode()
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._send_some(left, head + review, expected))

    async def _send_some(self, left: Iterator[int], request: bytes, expected: bytes) -> None:
        reader, writer = await asyncio.open_connection("localhost", self._port, ssl=self._tls)
        try:
            for _ in left:
                uid = b"%08x-0000-4000-8000-000000000000" % next(self._numbers)
                writer.write(request.replace(_UID, uid))
                response = (await _read_response(reader)).replace(b'": ', b'":')
                if expected not in response or uid not in response:
                    raise BenchError(f"Expected {expected!r} in the response: {response[:300]!r}")
        finally:
            writer.transport.abort()


async def _read_response(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, found, rest = head.partition(b"content-length:")
    if not found:
        raise BenchError(f"A response without Content-Length: {head[:300]!r}")
    return await reader.readexactly(int(rest.split(b"\r\n", 1)[0]))
