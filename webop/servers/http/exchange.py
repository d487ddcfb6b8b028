"""One HTTP request and its response: for ASGI apps by messages, for our endpoint at once."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from webop.servers.http.answers import Answer, build_status_line, encode_answer

if TYPE_CHECKING:
    from webop.servers.http.protocol import HTTPProtocol

_HIGH_WATER = 256 * 1024  # bytes of a body that the app has not taken yet
_NO_BODY = (204, 304)


class HTTPExchange:
    """What the app sees of a request, and how it answers.

    Args:
        protocol: the connection.
        scope: the scope of ASGI.
        arrival: when the first byte has come, in the time of the event loop.
        is_kept: whether the client wants the connection to be kept after the response.
    """

    __slots__ = (
        "_body",
        "_changed",
        "_head",
        "_is_chunked",
        "_is_taken",
        "_protocol",
        "_size",
        "arrival",
        "has_begun",
        "is_answered",
        "is_complete",
        "is_expecting",
        "is_gone",
        "is_kept",
        "scope",
        "task",
    )

    def __init__(
        self, protocol: HTTPProtocol, scope: dict[str, Any], arrival: float, *, is_kept: bool
    ) -> None:
        self._protocol = protocol
        self._body: list[bytes] = []
        self._changed: asyncio.Event | None = None
        self._head = b""  # of the response; it leaves together with the first part of its body
        self._is_chunked = False
        self._is_taken = False  # the body
        self._size = 0
        self.scope = scope
        self.arrival = arrival
        self.task: asyncio.Task[None] | None = None
        self.is_kept = is_kept
        self.is_expecting = False  # the client waits for a "100 Continue" before it sends more
        self.is_complete = False  # the request
        self.is_gone = False  # the client
        self.has_begun = False  # the response
        self.is_answered = False

    # The side of the connection.

    def feed(self, data: bytes) -> None:
        """Take a part of the body."""
        if not self.is_answered:
            self._body.append(data)
            self._size += len(data)
            self._wake()

    def complete(self) -> None:
        """Take note of the end of the request."""
        self.is_complete = True
        self._wake()

    def leave(self) -> None:
        """Take note that the client has gone."""
        self.is_gone = True
        self._wake()

    def is_full(self) -> bool:
        """Tell whether the app must take some of the body first."""
        return self._size > _HIGH_WATER

    def release(self) -> None:
        """Let the scope go, which refers to this object: reference counting is enough then."""
        self.scope = {}

    # The side of our endpoint.

    def take_body(self) -> bytes | None:
        """Return the whole body, once; None if it is still on its way."""
        if not self.is_complete or self.is_gone:
            return None
        self._is_taken = True
        return self._take()

    def respond(self, answer: Answer, *, is_stopping: bool = False) -> None:
        """Send the answer at once; not if there is one already, or the client has gone."""
        if self.has_begun or self.is_gone:
            return
        if is_stopping:
            self._protocol.retire()
        self.has_begun = self.is_answered = True
        self.is_kept = self.is_kept and not answer.closes
        has_body = self.scope["method"] != "HEAD"
        self._protocol.write(encode_answer(answer, closes=self._is_last(), has_body=has_body))
        self._wake()
        self._protocol.finish(self)

    def expire(self, answer: Answer, *, is_stopping: bool = False) -> None:
        """Send the answer in place of the one that is still being worked on."""
        self.respond(answer, is_stopping=is_stopping)

    # The side of ASGI apps.

    async def receive(self) -> dict[str, Any]:
        """Wait for the next part of the body, or for the end of everything (ASGI)."""
        if self.is_expecting and not self.has_begun and not self.is_gone:
            self.is_expecting = False
            self._protocol.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._has_news():
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            await self._changed.wait()
        if self.is_gone or self.is_answered:
            return {"type": "http.disconnect"}
        body = self._take()
        self._is_taken = self.is_complete
        self._protocol.go_on()
        return {"type": "http.request", "body": body, "more_body": not self.is_complete}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send the head or a part of the body of the response (ASGI).

        Raises:
            RuntimeError: the messages are out of order.
        """
        await self._protocol.drain()
        kind = message["type"]
        if self.is_gone:
            return
        if kind == "http.response.start" and not self.has_begun:
            self._head = self._build_head(message["status"], message.get("headers", ()))
            self.has_begun = True
        elif kind == "http.response.body" and self.has_begun and not self.is_answered:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        elif not self.is_answered:
            raise RuntimeError(f"The message {kind!r} of ASGI is out of order.")

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._is_chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body += b"0\r\n\r\n" if is_last else b""
        head, self._head = self._head, b""
        self._protocol.write(head + body)
        if is_last:
            self.is_answered = True
            self._wake()
            self._protocol.finish(self)

    def _build_head(self, status: int, headers: Any) -> bytes:
        lines = [build_status_line(status)]
        names = set()
        for name, value in (*self._protocol.default_headers, *headers):
            lowered = bytes(name).lower()
            if lowered == b"connection":
                self.is_kept = self.is_kept and b"close" not in value.lower()
            elif b"\r" in value or b"\n" in value:
                raise RuntimeError(f"The header {lowered!r} has more than one line.")
            elif lowered != b"transfer-encoding":
                names.add(lowered)
                lines.append(b"%b: %b\r\n" % (lowered, value))
        has_body = self.scope["method"] != "HEAD" and status not in _NO_BODY
        self._is_chunked = has_body and b"content-length" not in names
        if self._is_chunked and self.scope["http_version"] == "1.0":
            self._is_chunked = self.is_kept = False  # its end is the end of the connection
        elif self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if self._is_last():
            lines.append(b"connection: close\r\n")
        return b"".join(lines) + b"\r\n"

    def _is_last(self) -> bool:
        """Tell whether the connection ends after this response; decided when it begins."""
        self.is_kept = self.is_kept and self.is_complete and not self._protocol.is_ending()
        return not self.is_kept

    def _has_news(self) -> bool:
        """Tell whether there is anything to receive."""
        has_body = bool(self._body) or (self.is_complete and not self._is_taken)
        return has_body or self.is_gone or self.is_answered

    def _take(self) -> bytes:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body, self._size = [], 0
        return body

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
