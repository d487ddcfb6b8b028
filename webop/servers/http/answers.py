"""What is answered to reviews over HTTP, and how it looks on the wire.

Refusals are Kubernetes ``Status`` objects: API servers show their message to the one who waits
for the admission (Kubernetes API, meta/v1 Status). Both the endpoint and the protocol below it
answer; what they share is here.
"""

from __future__ import annotations

import http
from typing import NamedTuple, Protocol

import orjson

#: The key in ``scope["extensions"]`` under which a listener puts the client's certificate.
SSLPEER_EXTENSION = "webop.sslpeer"

#: The key in ``scope["extensions"]`` of an :class:`Exchange`; only our own protocol puts it there.
EXCHANGE_EXTENSION = "webop.exchange"

Headers = tuple[tuple[bytes, bytes], ...]

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
_JSON = (b"content-type", b"application/json")


class Answer(NamedTuple):
    """An HTTP response with JSON.

    Attributes:
        status: the HTTP status.
        body: the JSON.
        headers: besides those of the content.
        closes: whether the connection is closed after it.
    """

    status: int
    body: bytes
    headers: Headers = ()
    closes: bool = False

    def list_headers(self) -> list[tuple[bytes, bytes]]:
        """Return all headers, as ASGI wants them."""
        headers = [_JSON, (b"content-length", b"%d" % len(self.body)), *self.headers]
        return [*headers, (b"connection", b"close")] if self.closes else headers


class Exchange(Protocol):
    """One request and its answer within our own protocol, without the messages of ASGI."""

    #: When the first byte of the request came, in the time of the event loop.
    arrival: float

    def take_body(self) -> bytes | None:
        """Return the whole body, once; None if it is still on its way."""

    def respond(self, answer: Answer, *, is_stopping: bool = False) -> None:
        """Send the answer at once; not if there is one already, or the client has gone.

        Args:
            answer: what to send.
            is_stopping: the connection is closed when there is no other request on it.
        """

    def expire(self, answer: Answer, *, is_stopping: bool = False) -> None:
        """Send the answer in place of the one that is still being worked on."""


def build_refusal(
    status: int, reason: str, *, headers: Headers = (), closes: bool = False
) -> Answer:
    """Build an answer that says why a request is not served.

    Args:
        status: the HTTP status, 4xx or 5xx.
        reason: what API servers show to their users.
        headers: besides those of the content.
        closes: whether the connection is closed after it.
    """
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": reason,
        "code": status,
    }
    return Answer(status, orjson.dumps(body), headers, closes)


def build_status_line(status: int) -> bytes:
    """Return the first line of a response (RFC 9112, 4)."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def encode_answer(answer: Answer, *, closes: bool, has_body: bool = True) -> bytes:
    """Return an answer as it is sent.

    Args:
        answer: what to send.
        closes: whether the connection is closed after it.
        has_body: False for the method HEAD.
    """
    parts = [
        build_status_line(answer.status),
        *[b"%b: %b\r\n" % header for header in answer.headers],
        b"connection: close\r\n" if closes else b"",
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer.body),
        answer.body if has_body else b"",
    ]
    return b"".join(parts)
