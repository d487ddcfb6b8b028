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
from webop.servers.decoding import HEAD_SIZE, decode_review, find_request
from webop.servers.hosting import Hosting, get_hosting
from webop.servers.http.requests import (
    RequestHeaders,
    check_content_type,
    compute_budget,
    normalize_path,
    read_timeout,
)
from webop.servers.http.responses import (
    RETRY,
    SSLPEER_EXTENSION,
    Response,
    build_denial,
    build_refusal,
)

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


class _UnreadError(ReviewError):
    """A request that is refused before its whole body was read."""


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
        exchange = _Exchange(send, self._hosting, self._logged, scope.get("client"))
        response: Response | None = None
        webhook: str | None = None
        rejected = 0  # the status, even if the response is a denial
        try:
            webhook = self._find_webhook(scope)
            length = self._check_head(scope)
            exchange.start(read_timeout(scope["query_string"]), webhook)
            result = await self._fn(  # no variable: a slow client would keep it in memory
                await decode_review(
                    await exchange.read_body(receive, length), exchange.hold, exchange.share
                ),
                webhook=webhook,
                headers=RequestHeaders(scope["headers"]),
                sslpeer=scope.get("extensions", {}).get(SSLPEER_EXTENSION),
            )
            response = Response(200, orjson.dumps(result))
        except ReviewError as error:
            response = self._build_refusal(scope, error, exchange.head)
            rejected = error.status
        except _DisconnectedError as error:
            logger.debug("%s (a review at %r)", error, scope["path"])
        except asyncio.CancelledError:
            if not exchange.is_expired:
                if not self._hosting.is_stopping:
                    raise
                reason = "The operator is stopping, and the review took too long."
                response = build_refusal(503, reason, headers=RETRY, closes=True)
                rejected = 503
        except Exception as error:
            if not exchange.is_expired:
                logger.exception("Failed to serve a review at %r", scope["path"][:99])
                reason = f"The operator failed: {type(error).__name__}; see its log for details."
                response = build_refusal(500, reason)
                rejected = 500
        finally:
            exchange.end()
        if rejected:
            self._hosting.counters.reject(webhook, rejected)
        await exchange.finish(response, receive)

    def _check_head(self, scope: Scope) -> int:
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
                raise ReviewError(
                    f"The content encoding {encoding!r} is not supported.", status=415
                )
        return length

    def _build_refusal(self, scope: Scope, error: ReviewError, head: bytes) -> Response:
        # Any client can send garbage: one line a minute for each status.
        level = self._logged.choose_level(error.status)
        extra = {"k8s_request": error.request}
        logger.log(level, "Refused a review at %r: %s", scope["path"][:99], error, extra=extra)
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if error.status == 405:
            headers = ((b"allow", b"POST"),)
        if error.retry_after is not None:
            headers = (*headers, (b"retry-after", b"%d" % error.retry_after))
        # After a 503, the retry must open a new connection, to reach another replica.
        closes = isinstance(error, _UnreadError) or error.status == 503
        if error.status in (400, 413) and (request := find_request(head)) is not None:
            return build_denial(*request, error.status, str(error), closes=closes)
        return build_refusal(error.status, str(error), headers=headers, closes=closes)

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


class _Exchange:
    """One review: its body in memory, its deadline, and its only response.

    At the deadline, the timer sends the response, even if the function ignores its cancellation.
    """

    def __init__(
        self,
        send: Send,
        hosting: Hosting,
        logged: Once,
        client: tuple[str, int] | None,
    ) -> None:
        self._logged = logged
        self._peer = None if client is None else client[0]
        self._send = send
        self._hosting = hosting
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] = asyncio.current_task(self._loop)  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._held = 0  # bytes of the body, or of memory
        self.share = 0  # bytes of memory that it may take
        self.head = b""  # of the body
        self._arrival: float | None = None
        self._is_read = False
        self.is_expired = False

    def start(self, timeout: float | None, webhook: str | None) -> None:
        """Set the deadline: at first for the body, then for the whole review."""
        limits = self._hosting.limits
        self.share = self._hosting.gate.share
        self._timeout = limits.review_timeout if timeout is None else timeout
        self._budget = compute_budget(self._timeout)
        self._webhook = webhook
        self._arrival = self._loop.time()
        due = self._arrival + min(self._budget, limits.read_timeout)
        self._timer = self._loop.call_at(due, self._expire)

    async def read_body(self, receive: Receive, length: int) -> bytes:
        """Read and return the body; what has arrived of it is counted until :meth:`end`.

        One that is announced to be too large is refused as soon as its head is here.
        """
        limits = self._hosting.limits
        chunks: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise _DisconnectedError("The client has disconnected")
            chunk: bytes = message.get("body", b"")
            if len(self.head) < HEAD_SIZE:
                self.head += chunk[: HEAD_SIZE - len(self.head)]
            self._is_read = not message.get("more_body", False)
            size = self._held + len(chunk)
            expected = max(size, length) if length and len(self.head) == HEAD_SIZE else size
            if expected > limits.max_body:
                raise build_too_large(expected, limits.max_body)
            if self._is_read:  # the decoder counts the memory for all of it
                return b"".join(chunks) + chunk if chunks else chunk
            try:
                self.hold(size)
            except ReviewError as error:
                raise _UnreadError(str(error), status=429, retry_after=1) from None
            chunks.append(chunk)

    def hold(self, size: int) -> None:
        """Count so many bytes for the review until :meth:`end`, in place of those until now.

        Raises:
            ReviewError: they do not fit (429).
        """
        self._hosting.gate.hold(size - self._held, self._peer, self.share)
        self._held = size

    def end(self) -> None:
        """Release the body and the deadline, as the response is known."""
        self._hosting.gate.release(self._held, self._peer)
        if self._timer is not None and self._arrival is not None:
            self._timer.cancel()
            self._hosting.counters.add(self._webhook, self._loop.time() - self._arrival)
        if self.is_expired:
            self._task.uncancel()

    async def finish(self, response: Response | None, receive: Receive) -> None:
        """Send the response, unless the deadline has sent one."""
        if self._sending is not None:
            await self._sending
        elif response is None:
            return
        elif response.closes and not self._is_read:
            await self._transmit(response, more_body=True)
            await _discard_body(receive)
            await self._send({"type": "http.response.body", "body": b""})
        else:
            await self._transmit(response)

    def _expire(self) -> None:
        """Respond instead of the function if the deadline has passed; else set the next one."""
        limits = self._hosting.limits
        due = (self._arrival or 0.0) + self._budget
        if self._is_read and due > self._loop.time():
            self._timer = self._loop.call_at(due, self._expire)
            return
        if self._is_read:
            name = "The webhooks" if self._webhook is None else f"The webhook {self._webhook[:99]}"
            reason = (
                f"{name} did not answer within {self._budget:g} s of the {self._timeout:g} s given."
            )
            level = self._logged.choose_level(504)  # any client can send short timeouts
            logger.log(level, "%s Its handlers are cancelled.", reason)
            response = build_refusal(504, reason)
        else:
            seconds = min(self._budget, limits.read_timeout)
            reason = f"The request body was not received within {seconds:g} s."
            response = build_refusal(408, reason, closes=True)
        self._hosting.counters.reject(self._webhook, response.status)
        self.is_expired = True
        self._sending = self._loop.create_task(self._transmit(response))
        self._task.cancel()

    async def _transmit(self, response: Response, *, more_body: bool = False) -> None:
        if self._hosting.is_stopping:
            response = response._replace(closes=True)
        status, body, headers = response.status, response.body, response.list_headers()
        # Our own protocol sends both messages in one call.
        send_at_once = None if more_body else getattr(self._send, "send_at_once", None)
        if send_at_once is None or not send_at_once(status, headers, body):
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body, "more_body": more_body})


def build_too_large(size: int, limit: int) -> ReviewError:
    """Build the refusal of a body beyond ``settings.admission.max_body``."""
    return _UnreadError(
        f"The review is too large: {size} bytes or more; the limit is {limit} bytes "
        "(settings.admission.max_body).",
        status=413,
    )


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
