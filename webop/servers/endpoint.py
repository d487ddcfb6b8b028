"""The HTTP side of reviews: an ASGI app between a listener and the framework's function.

Flow: :meth:`ReviewEndpoint.__call__` reads the body within its limit, finds the webhook's id in
the path, decodes the JSON, calls the function, and answers. Whatever is wrong with a request is
answered with a 4xx status and a Kubernetes ``Status`` object, which API servers show to the one
who waits for the admission. This is the hot path of admission: no framework in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

import orjson

from webop.errors import ReviewError
from webop.servers.headers import RequestHeaders

if TYPE_CHECKING:
    from webop.servers.base import WebhookFn

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)

#: An object is at most 3 MiB for the API server, and an update comes with both of its states.
MAX_BODY = 7 * 1024 * 1024

#: The key in ``scope["extensions"]`` under which a listener puts the client's certificate.
SSLPEER_EXTENSION = "webop.sslpeer"

# How much of a refused body is taken in, so that a client who is still sending sees the answer.
_REFUSED_BODY_BYTES = 8 * MAX_BODY
_REFUSED_BODY_SECONDS = 1.0


class _DisconnectedError(Exception):
    """The client has gone; there is no one to answer."""


class ReviewEndpoint:
    """An ASGI app that takes AdmissionReviews by POST at ``<path>/`` and ``<path>/<webhook id>``.

    The requests to the root run all handlers that match, the others the named one (manual,
    "Custom servers/tunnels"). The content type does not matter, as ``curl -d`` sets a wrong one.

    Args:
        fn: what judges the reviews.
        path: the root path below which it serves; None or empty is no root path.
        max_body: the largest body that is taken, in bytes.
    """

    def __init__(self, fn: WebhookFn, *, path: str | None = "", max_body: int = MAX_BODY) -> None:
        self._fn = fn
        self._path = normalize_path(path)
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request (ASGI 3)."""
        if scope["type"] != "http":
            raise RuntimeError(f"Only HTTP is served here, not {scope['type']!r}.")
        try:
            answer = await self._review(scope, receive)
        except ReviewError as error:
            logger.warning("Refused a review at %s: %s", scope["path"], error)
            await _refuse(error.status, str(error), receive, send)
        except _DisconnectedError:
            logger.debug("The client of a review at %s has disconnected.", scope["path"])
        except Exception as error:
            logger.exception("Failed to serve a review at %s", scope["path"])
            reason = f"The operator failed: {type(error).__name__}; see its log for details."
            await _refuse(500, reason, receive, send)
        else:
            await _send(200, answer, send)

    async def _review(self, scope: Scope, receive: Receive) -> bytes:
        body = await self._read_body(scope["headers"], receive)
        webhook = self._find_webhook(scope)
        if scope["method"] != "POST":
            raise ReviewError(f"Reviews are sent by POST, not by {scope['method']}.", status=405)
        extensions = scope.get("extensions")
        response = await self._fn(
            decode_review(body),
            webhook=webhook,
            headers=RequestHeaders(scope["headers"]),
            sslpeer=extensions.get(SSLPEER_EXTENSION) if extensions else None,
        )
        return orjson.dumps(response)

    async def _read_body(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> bytes:
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value) > self._max_body:
                raise self._too_large(int(value))
        message = await receive()
        size = len(message.get("body", b""))
        chunks = []
        while message["type"] == "http.request" and size <= self._max_body:
            chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(chunks)
            message = await receive()
            size += len(message.get("body", b""))
        if message["type"] == "http.request":
            raise self._too_large(size)
        raise _DisconnectedError

    def _too_large(self, size: int) -> ReviewError:
        limit = f"{self._max_body} bytes at most"
        return ReviewError(f"The review is too large: {size} bytes or more, {limit}.", status=413)

    def _find_webhook(self, scope: Scope) -> str | None:
        path: str = scope["path"]
        root_path = scope.get("root_path", "")
        if root_path and path.startswith(root_path):  # mounted into another app
            path = path[len(root_path) :]
        if self._path:
            if path != self._path and not path.startswith(f"{self._path}/"):
                raise ReviewError(f"There is nothing at {path}.", status=404)
            path = path[len(self._path) :]
        return path.strip("/") or None


def normalize_path(path: str | None) -> str:
    """Bring a root path to the form "/a/b", or "" if there is none."""
    stripped = (path or "").strip("/")
    return f"/{stripped}" if stripped else ""


def decode_review(body: bytes) -> dict[str, Any]:
    """Decode the JSON of a review.

    Raises:
        ReviewError: this is not JSON, or not an object.
    """
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"The review is not valid JSON: {error}.") from None
    if not isinstance(review, dict):
        raise ReviewError(f"The review must be a JSON object, not {type(review).__name__}.")
    return review


async def _refuse(status: int, reason: str, receive: Receive, send: Send) -> None:
    """Answer with a Kubernetes ``Status`` object (Kubernetes API, meta/v1)."""
    answer = orjson.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": reason,
            "code": status,
        }
    )
    if status == 413:
        await _send(status, answer, send, (b"connection", b"close"), more_body=True)
        await _discard_body(receive)
        await send({"type": "http.response.body", "body": b""})
    elif status == 405:
        await _send(status, answer, send, (b"allow", b"POST"))
    else:
        await _send(status, answer, send)


async def _send(
    status: int,
    body: bytes,
    send: Send,
    *more_headers: tuple[bytes, bytes],
    more_body: bool = False,
) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *more_headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more_body})


async def _discard_body(receive: Receive) -> None:
    """Read on for a moment: a connection closed on unread data takes the answer with it."""
    left = _REFUSED_BODY_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFUSED_BODY_SECONDS):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))
