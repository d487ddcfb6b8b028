"""Requests, responses and refusals of the API server in memory. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

Json = dict[str, Any]


@dataclass(slots=True)
class Request:
    """An HTTP request.

    Attributes:
        method: in upper case.
        path: from the root of the server, quoted or not.
        query: the parameters, decoded.
        headers: their names in lower case.
        body: as it came.
        user: who asks; access control is not simulated.
    """

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    user: str = "admin"

    @property
    def is_watch(self) -> bool:
        """Whether it asks for a watch."""
        return self.query.get("watch") in {"true", "1"}


@dataclass(slots=True)
class Response:
    """An HTTP response. Its body is shared with the store: never modify it.

    Attributes:
        text: the content in place of a JSON body; the server says some things in plain text.
    """

    status: int
    body: Json
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None

    def encode(self) -> bytes:
        """Return the content for the wire; 304 (not modified) has none."""
        if self.status == 304:
            return b""
        return orjson.dumps(self.body) if self.text is None else self.text.encode()


class Refusal(Exception):  # noqa: N818  not an error: an answer of the server
    """A request that is refused, with what its Status says (Kubernetes API, meta/v1).

    Returned by a hook for admission, it means that the webhook could not be called.
    """

    def __init__(self, status: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.details = details
        self.token = ""

    def build_status(self) -> Json:
        """Return the object of kind Status."""
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.token} if self.token else {},
            "status": "Failure",
            "message": str(self),
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.status
        return status

    def build_response(self) -> Response:
        """Return the HTTP response."""
        headers = {"content-type": "application/json"}
        if self.details and "retryAfterSeconds" in self.details:
            headers["retry-after"] = str(self.details["retryAfterSeconds"])
        return Response(self.status, self.build_status(), headers)


class NoSuchPathError(Exception):
    """Nothing is served there: the answer is plain text, no Status."""

    def build_response(self) -> Response:
        """Return the HTTP response."""
        headers = {"content-type": "text/plain; charset=utf-8"}
        return Response(404, {}, headers, "404 page not found\n")


def refuse_body(message: str) -> Refusal:
    """Return the refusal of a body or of a parameter that means nothing."""
    return Refusal(400, "BadRequest", message)
