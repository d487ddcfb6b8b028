"""The HTTP side of reviews: an ASGI app between a server and the framework's function.

Flow: :meth:`ReviewEndpoint.__call__` checks the head of the request, reads the body within its
limits, decodes the JSON, calls the function, and responds before the client's deadline. A wrong
request gets a 4xx response with a Kubernetes ``Status`` object, which API servers show to the user.
For API servers, a 4xx is a failed call, which ``failure_policy="Ignore"`` allows. So what is wrong
with the content of a review, such as its size, denies the request with 200 if its uid is known.
This is the hot path of admission, so it uses no web framework.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import orjson

from webop.aio.backoff import Once
from webop.errors import ReviewError
from webop.servers.decoding import HEAD_SIZE, decode_review, find_request, restore
from webop.servers.http.responses import (
    RETRY,
    SSLPEER_EXTENSION,
    Headers,
    Response,
    build_denial,
    build_refusal,
)
from webop.servers.http.review_head import (
    RequestHeaders,
    check_content_type,
    compute_budget,
    normalize_path,
    read_timeout,
)
from webop.servers.limits import Hosting, get_hosting

if TYPE_CHECKING:
    from webop.servers.base import WebhookFn

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)

# How much of a refused body is read, so that a client that is still sending sees the response.
_REFUSED_BODY_BYTES = 64 * 1024 * 1024
_REFUSED_BODY_SECONDS = 1.0


class _DisconnectedError(Exception):
    """The client has disconnected."""


class ReviewEndpoint:
    """An ASGI app for AdmissionReviews by POST to ``<path>/`` and ``<path>/<webhook id>``.

    Requests to the root call all handlers that match, the others the named one (manual,
    "Custom servers/tunnels"). The content type is JSON, or the one that ``curl -d`` sets.

    Guarantees: the response is sent before the deadline (``?timeout=`` of the URL, or the setting)
    even if the function ignores its cancellation. A later result is dropped.

    Args:
        fn: the function for reviews.
        path: the root path; None or empty for none.
        hosting: the limits, and whether the operator is stopping; by default, the current one.
    """

    def __init__(
        self, fn: WebhookFn, *, path: str | None = "", hosting: Hosting | None = None
    ) -> None:
        self._fn = fn
        self._path = normalize_path(path)
        self._hosting = get_hosting() if hosting is None else hosting
        self._logged = Once()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request (ASGI 3)."""
        if scope["type"] != "http":
            raise RuntimeError(f"This app serves HTTP only, not {scope['type']!r}.")
        exchange = _Exchange(scope, receive, send, self._hosting, self._logged)
        response: Response | None = None
        deep: dict[bytes, bytes] = {}
        try:
            webhook = exchange.webhook = self._find_webhook(scope)
            length = _check_head(scope)
            exchange.start(read_timeout(scope["query_string"]))
            result = await self._fn(  # no variable: a slow client would keep it in memory
                await decode_review(
                    await exchange.read_body(length), exchange.hold, exchange.share, deep
                ),
                webhook=webhook,
                headers=RequestHeaders(scope["headers"]),
                sslpeer=scope.get("extensions", {}).get(SSLPEER_EXTENSION),
            )
            response = Response(200, restore(orjson.dumps(result), deep))
        except ReviewError as error:
            response = exchange.refuse(error)
        except _DisconnectedError as error:
            logger.debug("%s (a review at %r)", error, scope["path"])
        except asyncio.CancelledError:
            if exchange.timely is None:
                if not self._hosting.is_stopping:
                    raise
                reason = "The operator is stopping, and the review took too long."
                response = exchange.reject(503, reason, headers=RETRY, closes=True)
        except Exception as error:
            if exchange.timely is None:
                logger.exception("Failed to serve a review at %r", scope["path"][:99])
                reason = f"The operator failed: {type(error).__name__}; see its log for details."
                response = exchange.reject(500, reason)
        finally:
            exchange.end()
        if exchange.timely is not None:
            await exchange.timely
        elif response is not None:
            await exchange.send(response)

    def _find_webhook(self, scope: Scope) -> str | None:
        path: str = scope["path"]
        root_path = scope.get("root_path", "")
        if root_path and path.startswith(root_path):  # mounted into another app
            path = path[len(root_path) :]
        if self._path:
            if path != self._path and not path.startswith(f"{self._path}/"):
                raise ReviewError(f"No webhooks are served at {path[:99]!r}.", status=404)
            path = path[len(self._path) :]
        return path.strip("/") or None


def _check_head(scope: Scope) -> int:
    """Refuse what is wrong with the head of a request, before its body is read.

    Returns:
        The size of the body if it is announced, else 0.
    """
    if scope["method"] != "POST":
        raise ReviewError(f"Send reviews by POST, not by {scope['method']}.", status=405)
    length = 0
    for name, value in scope["headers"]:
        if name == b"content-length" and len(value) > 5:  # else it is small
            length = int(value[:20]) if value.isdigit() else 0
        elif name == b"content-type":
            check_content_type(value)
        elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            encoding = value[:99].decode("latin-1")
            raise ReviewError(f"The content encoding {encoding!r} is not supported.", status=415)
    return length


class _Exchange:
    """One review in its task: its body in memory, its deadline, and its only response.

    At the deadline, the timer sends the response, even if the function ignores its cancellation.

    Order of the calls: :meth:`start` unless the head is refused, :meth:`read_body` and
    :meth:`hold`, then :meth:`end` in any case, and :meth:`send` last.
    """

    webhook: str | None = None
    head = b""  # of the body
    share = 0  # bytes of memory that it may take
    timely: asyncio.Task[None] | None = None  # sends the response of the deadline
    _held = 0  # bytes of the body, or of memory
    _is_read = False
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, hosting: Hosting, logged: Once
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._hosting, self._logged = hosting, logged
        self._peer = client[0] if (client := scope.get("client")) else None

    def start(self, timeout: float | None) -> None:
        """Set the deadline: at first for the body, then for the whole review."""
        limits, loop = self._hosting.limits, asyncio.get_running_loop()
        self.share = self._hosting.gate.share
        self._timeout = limits.review_timeout if timeout is None else timeout
        self._budget = compute_budget(self._timeout)
        self._task: asyncio.Task[Any] = asyncio.current_task(loop)  # type: ignore[assignment]
        self._loop, self._began = loop, loop.time()
        due = self._began + min(self._budget, limits.read_timeout)
        self._timer = loop.call_at(due, self._expire)

    async def read_body(self, length: int) -> bytes:
        """Read and return the body; what has arrived of it is counted until :meth:`end`.

        One that is announced to be too large is refused as soon as its head is here.
        """
        limit = self._hosting.limits.max_body
        chunks: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise _DisconnectedError("The client has disconnected")
            chunk: bytes = message.get("body", b"")
            if len(self.head) < HEAD_SIZE:
                self.head += chunk[: HEAD_SIZE - len(self.head)]
            self._is_read = not message.get("more_body", False)
            size = self._held + len(chunk)
            expected = max(size, length) if length and len(self.head) == HEAD_SIZE else size
            if expected > limit:
                text = f"The review is too large: {expected} bytes or more; the limit is {limit}"
                raise ReviewError(f"{text} bytes (settings.admission.max_body).", status=413)
            if self._is_read:  # the decoder counts the memory for all of it
                return b"".join(chunks) + chunk if chunks else chunk
            self.hold(size)
            chunks.append(chunk)

    def hold(self, size: int) -> None:
        """Count so many bytes for the review until :meth:`end`, in place of those until now."""
        self._hosting.gate.hold(size - self._held, self._peer, self.share)
        self._held = size

    def _expire(self) -> None:
        """Respond to a review that is not done, unless its body has just moved the deadline."""
        due = self._began + self._budget
        if not self._is_read:
            seconds = min(self._budget, self._hosting.limits.read_timeout)
            reason = f"The request body was not received within {seconds:g} s."
            response = self.reject(408, reason, closes=True)
        elif due > self._loop.time():
            self._timer = self._loop.call_at(due, self._expire)
            return
        else:
            name = "The webhooks" if self.webhook is None else f"The webhook {self.webhook[:99]}"
            given = f"{self._budget:g} s of the {self._timeout:g} s given"
            reason = f"{name} did not answer within {given}."
            level = self._logged.choose_level(504)  # any client can send short timeouts
            logger.log(level, "%s Its handlers are cancelled.", reason)
            response = self.reject(504, reason)
        self.timely = self._loop.create_task(self.send(response))
        self._task.cancel()

    def refuse(self, error: ReviewError) -> Response:
        """Build the response to a request that is refused; it is logged and counted."""
        path, status, is_cut = self._scope["path"][:99], error.status, not self._is_read
        # Any client can send garbage: one line a minute for each status.
        level = self._logged.choose_level(status)
        extra = {"k8s_request": error.request}
        logger.log(level, "Refused a review at %r: %s", path, error, extra=extra)
        headers: Headers = ((b"allow", b"POST"),) if status == 405 else ()
        if error.retry_after is not None:
            headers = (*headers, (b"retry-after", b"%d" % error.retry_after))
        # After a 503, the retry must open a new connection, to reach another replica.
        closes = status == 503 or (status in (413, 429) and is_cut)
        response = self.reject(status, str(error), headers=headers, closes=closes)
        if status in (400, 413) and (request := find_request(self.head)) is not None:
            response = build_denial(*request, status, str(error), closes=closes)
        return response

    def reject(
        self, status: int, reason: str, *, headers: Headers = (), closes: bool = False
    ) -> Response:
        """Build the response of a failure, and count it."""
        self._hosting.counters.reject(self.webhook, status)
        return build_refusal(status, reason, headers=headers, closes=closes)

    def end(self) -> None:
        """Release the body and the deadline, as the response is known."""
        self._hosting.gate.release(self._held, self._peer)
        if self._timer is not None:
            self._timer.cancel()
            self._hosting.counters.add(self.webhook, self._loop.time() - self._began)
        if self.timely is not None:
            self._task.uncancel()

    async def send(self, response: Response) -> None:
        """Send the only response."""
        is_cut = response.closes and not self._is_read and self.timely is None
        if self._hosting.is_stopping:
            response = response._replace(closes=True)
        status, body, headers = response.status, response.body, response.list_headers()
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": is_cut})
        if is_cut:
            await _discard_body(self._receive)
            await self._send({"type": "http.response.body", "body": b""})


async def _discard_body(receive: Receive) -> None:
    """Read the rest for a moment: closing on unread data would lose the response."""
    left = _REFUSED_BODY_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFUSED_BODY_SECONDS):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))
