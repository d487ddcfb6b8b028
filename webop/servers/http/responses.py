"""HTTP responses to reviews.

Refusals are Kubernetes ``Status`` objects; API servers show their messages to the user
(Kubernetes API, meta/v1 Status).
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

#: The key in ``scope["extensions"]`` under which our protocol puts the client's certificate.
SSLPEER_EXTENSION = "webop.sslpeer"

Headers = tuple[tuple[bytes, bytes], ...]

#: For clients that should retry soon.
RETRY: Headers = ((b"retry-after", b"1"),)

_JSON = (b"content-type", b"application/json")


class Response(NamedTuple):
    """An HTTP response with JSON; its headers are those besides the ones of the content."""

    status: int
    body: bytes
    headers: Headers = ()
    closes: bool = False

    def list_headers(self) -> list[tuple[bytes, bytes]]:
        """Return all headers in the form of ASGI."""
        headers = [_JSON, (b"content-length", b"%d" % len(self.body)), *self.headers]
        return [*headers, (b"connection", b"close")] if self.closes else headers


def build_refusal(
    status: int, reason: str, *, headers: Headers = (), closes: bool = False
) -> Response:
    """Build a response that says why a request is refused, and may close the connection."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": reason,
        "code": status,
    }
    return Response(status, orjson.dumps(body), headers, closes)


def build_denial(
    api_version: str, uid: str, code: int, reason: str, *, closes: bool = False
) -> Response:
    """Build the response to a review that denies its request (Kubernetes API, admission/v1).

    The code and the reason are for the user of the API server.
    """
    response = {"uid": uid, "allowed": False, "status": {"message": reason, "code": code}}
    body = {"apiVersion": api_version, "kind": "AdmissionReview", "response": response}
    return Response(200, orjson.dumps(body), closes=closes)
