"""Between webop's client and an API server in memory: requests and answers of both."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from webop.client.http import transport
from webop.testing.apiserver import Request, Response

JSON = {b"content-type": b"application/json"}


class Answer:
    """A response of the server that is complete, as the client takes it."""

    is_complete = True

    def __init__(self, response: Response) -> None:
        self.status = response.status
        extra = {name.lower().encode(): text.encode() for name, text in response.headers.items()}
        self.headers: Mapping[bytes, bytes] = JSON | extra
        self._content = response.encode()

    async def receive(self) -> bytes:
        """Return the content, then nothing."""
        content, self._content = self._content, b""
        return content

    async def aclose(self) -> None:
        """There is nothing to close."""


def parse_request(request: transport.Request, user: str) -> Request:
    """Return a request of the client as the server takes it."""
    path, query = _parse_target(request.target)
    headers = {**_parse_headers(request.headers)}
    return Request(request.method, path, {**query}, headers, request.content, user)


@functools.lru_cache(256)
def _parse_target(target: str) -> tuple[str, Mapping[str, str]]:
    parts = urlsplit(target)
    return parts.path, dict(parse_qsl(parts.query, keep_blank_values=True))


@functools.lru_cache(256)
def _parse_headers(block: bytes) -> Mapping[str, str]:
    lines = (line.partition(": ") for line in block.decode().split("\r\n"))
    return {name.lower(): value for name, _, value in lines}
