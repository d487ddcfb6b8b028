"""The HTTP side of reviews: an ASGI app between a listener and the framework's function.

Flow: :meth:`ReviewEndpoint.__call__` checks the head of the request, reads the body within its
limits, decodes the JSON, calls the function, and answers before the client's deadline. Whatever
is wrong with a request is answered with a 4xx status and a Kubernetes ``Status`` object, which
API servers show to the one who waits for the admission. This is the hot path of admission: no
framework in between, and no messages of ASGI where the protocol below is our own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from webop.errors import ReviewError
from webop.pacing import Once
from webop.servers.decoding import decode_review
from webop.servers.hosting import Hosting, get_hosting
from webop.servers.http.answers import (
    EXCHANGE_EXTENSION,
    SSLPEER_EXTENSION,
    Answer,
    Exchange,
    build_refusal,
)
from webop.servers.http.deadlines import compute_budget, read_timeout
from webop.servers.http.headers import RequestHeaders

if TYPE_CHECKING:
    from webop.servers.base import WebhookFn

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)

# Bodies that are held in memory at once, as a multiple of the largest one.
_HELD_BODIES = 32
# How much of a refused body is taken in, so that a client who is still sending sees the answer.
_REFUSED_BODY_BYTES = 64 * 1024 * 1024
_REFUSED_BODY_SECONDS = 1.0

_JSON_TYPE = re.compile(r"application/(json|[a-z0-9!#$&^_.-]+\+json|x-www-form-urlencoded)")
_CHARSET = re.compile(r'charset\s*=\s*"?([^";\s]*)"?')


class _DisconnectedError(Exception):
    """The client has gone; there is no one to answer."""


class _UnreadError(ReviewError):
    """A request that is refused before its body has come as a whole; it is not read any more."""


class _ExpiredError(Exception):
    """The answer was due before the function has returned; the client has got another one."""


class _Head(NamedTuple):
    """What matters in the head of a request."""

    webhook: str | None
    timeout: float


class ReviewEndpoint:
    """An ASGI app that takes AdmissionReviews by POST at ``<path>/`` and ``<path>/<webhook id>``.

    The requests to the root run all handlers that match, the others the named one (manual,
    "Custom servers/tunnels"). The content type is JSON, or what ``curl -d`` sets.

    Guarantees: an answer leaves before the deadline (``?timeout=`` of the URL, or the setting)
    even if the function ignores its cancellation; what it returns later is dropped.

    Args:
        fn: what judges the reviews.
        path: the root path below which it serves; None or empty is no root path.
        hosting: the limits, and whether the operator is stopping; by default, the current one.
    """

    def __init__(
        self, fn: WebhookFn, *, path: str | None = "", hosting: Hosting | None = None
    ) -> None:
        self._fn = fn
        self._path = normalize_path(path)
        self._hosting = get_hosting() if hosting is None else hosting
        self._held = 0  # bytes of bodies
        self._logged = Once()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request (ASGI 3)."""
        if scope["type"] != "http":
            raise RuntimeError(f"Only HTTP is served here, not {scope['type']!r}.")
        extensions = scope.get("extensions") or {}
        direct: Exchange | None = extensions.get(EXCHANGE_EXTENSION)
        exchange = _ForeignExchange(send) if direct is None else direct
        try:
            body = await self._review(scope, receive, exchange, extensions.get(SSLPEER_EXTENSION))
            answer = Answer(200, body)
        except ReviewError as error:
            extra = {"k8s_request": error.request}
            # Whoever reaches the port can send garbage: one line a minute for each status.
            is_new = self._logged.is_new(error.status, int(time.monotonic() // 60))
            level = logging.WARNING if is_new else logging.DEBUG
            logger.log(level, "Refused a review at %r: %s", scope["path"], error, extra=extra)
            answer = self._refuse(error)
        except (_DisconnectedError, _ExpiredError) as error:
            logger.debug("%s (a review at %r)", error, scope["path"])
            answer = None
        except Exception as error:
            logger.exception("Failed to serve a review at %r", scope["path"])
            reason = f"The operator failed: {type(error).__name__}; see its log for details."
            answer = self._refuse(ReviewError(reason, status=500))
        if answer is not None:
            exchange.respond(answer, is_stopping=self._hosting.is_stopping)
        if isinstance(exchange, _ForeignExchange):
            await exchange.finish(receive)

    async def _review(
        self, scope: Scope, receive: Receive, exchange: Exchange, sslpeer: Any
    ) -> bytes:
        """Return the JSON of the response."""
        head = self._check_head(scope)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        deadline = _Deadline(head, exchange, task, self._hosting)
        held = 0
        try:
            body = exchange.take_body()
            if body is None:
                body = await self._read_body(receive)
            held = len(body)
            self._held += held
            response = await self._fn(
                decode_review(body),
                webhook=head.webhook,
                headers=RequestHeaders(scope["headers"]),
                sslpeer=sslpeer,
            )
            return orjson.dumps(response)
        finally:
            self._held -= held
            deadline.settle()

    def _check_head(self, scope: Scope) -> _Head:
        """Find out what is asked for, before the body is read."""
        webhook = self._find_webhook(scope)
        if scope["method"] != "POST":
            raise ReviewError(f"Reviews are sent by POST, not by {scope['method']}.", status=405)
        length = 0
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value) if value.isdigit() else 0
            elif name == b"content-type":
                check_content_type(value)
            elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
                encoding = value.decode("latin-1")
                raise ReviewError(f"Reviews are not taken in {encoding!r}.", status=415)
        limits = self._hosting.limits
        if length > limits.max_body:
            raise self._too_large(length)
        if self._held + length > _HELD_BODIES * limits.max_body:
            raise self._too_many()
        timeout = read_timeout(scope["query_string"])
        return _Head(webhook, limits.review_timeout if timeout is None else timeout)

    async def _read_body(self, receive: Receive) -> bytes:
        limit = self._hosting.limits.read_timeout
        try:
            async with asyncio.timeout(limit):
                return await self._collect_body(receive)
        except TimeoutError:
            reason = f"The review has not come as a whole within {limit:g} s."
            raise _UnreadError(reason, status=408) from None

    async def _collect_body(self, receive: Receive) -> bytes:
        max_body = self._hosting.limits.max_body
        chunks, size = [], 0
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise _DisconnectedError("The client has disconnected")
                chunk = message.get("body", b"")
                chunks.append(chunk)
                size += len(chunk)
                self._held += len(chunk)
                if size > max_body:
                    raise self._too_large(size)
                if self._held > _HELD_BODIES * max_body:
                    raise self._too_many()
                if not message.get("more_body", False):
                    return b"".join(chunks)
        finally:
            self._held -= size

    def _too_large(self, size: int) -> ReviewError:
        limit = f"{self._hosting.limits.max_body} bytes at most"
        return _UnreadError(f"The review is too large: {size} bytes or more, {limit}.", status=413)

    def _too_many(self) -> ReviewError:
        reason = f"There are too many large reviews at once: {self._held} bytes in memory."
        return _UnreadError(reason, status=429, retry_after=1)

    def _refuse(self, error: ReviewError) -> Answer:
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if error.status == 405:
            headers = ((b"allow", b"POST"),)
        if error.retry_after is not None:
            headers = (*headers, (b"retry-after", b"%d" % error.retry_after))
        # After a 503, the next attempt is to find another replica, by a connection of its own.
        closes = isinstance(error, _UnreadError) or error.status == 503
        return build_refusal(error.status, str(error), headers=headers, closes=closes)

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


class _Deadline:
    """Answers instead of the function when the time of the client runs out, and cancels it.

    The answer goes out from the timer: whatever the function does with its cancellation, the
    client is answered in time.
    """

    __slots__ = ("_exchange", "_head", "_hosting", "_is_over", "_task", "_timer")

    def __init__(
        self, head: _Head, exchange: Exchange, task: asyncio.Task[Any], hosting: Hosting
    ) -> None:
        self._head = head
        self._exchange = exchange
        self._task = task
        self._hosting = hosting
        self._is_over = False
        due = exchange.arrival + compute_budget(head.timeout)
        self._timer = task.get_loop().call_at(due, self._expire)

    def _expire(self) -> None:
        name = "The webhooks" if self._head.webhook is None else f"The webhook {self._head.webhook}"
        budget = compute_budget(self._head.timeout)
        reason = f"{name} did not answer within {budget:g} s of the {self._head.timeout:g} s given."
        logger.warning("%s Its handlers are cancelled.", reason)
        self._is_over = True
        self._exchange.expire(build_refusal(504, reason), is_stopping=self._hosting.is_stopping)
        self._task.cancel()

    def settle(self) -> None:
        """End the watch, with whatever has come of the review; in a ``finally`` clause.

        Raises:
            _ExpiredError: the deadline was first. A cancellation by anyone else goes on.
        """
        self._timer.cancel()
        if self._is_over and self._task.uncancel() == 0:
            raise _ExpiredError("What came after the deadline is dropped")


class _ForeignExchange:
    """A request that comes by the messages of ASGI, from a server that is not ours."""

    def __init__(self, send: Send) -> None:
        self.arrival = asyncio.get_running_loop().time()
        self._send = send
        self._answer: Answer | None = None
        self._is_unread = False  # the body
        self._sending: asyncio.Task[None] | None = None

    def take_body(self) -> bytes | None:
        """Return None: the body is still to be received."""
        return None

    def respond(self, answer: Answer, *, is_stopping: bool = False) -> None:
        """Keep the answer until :meth:`finish`."""
        if self._answer is None:
            self._is_unread = answer.closes
            self._answer = answer._replace(closes=True) if is_stopping else answer

    def expire(self, answer: Answer, *, is_stopping: bool = False) -> None:
        """Send the answer while the request is still being worked on."""
        self.respond(answer, is_stopping=is_stopping)
        self._sending = asyncio.get_running_loop().create_task(self._transmit())

    async def finish(self, receive: Receive) -> None:
        """Send the answer, if there is one and it is not sent yet."""
        if self._sending is not None:
            await self._sending
        elif self._is_unread:
            await self._transmit(more_body=True)
            await _discard_body(receive)
            await self._send({"type": "http.response.body", "body": b""})
        elif self._answer is not None:
            await self._transmit()

    async def _transmit(self, *, more_body: bool = False) -> None:
        assert self._answer is not None  # noqa: S101 - for the type checker
        status, body, headers = self._answer.status, self._answer.body, self._answer.list_headers()
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})


def normalize_path(path: str | None) -> str:
    """Bring a root path to the form "/a/b", or "" if there is none."""
    stripped = (path or "").strip("/")
    return f"/{stripped}" if stripped else ""


@functools.lru_cache(maxsize=64)  # clients send a few different ones
def check_content_type(value: bytes) -> None:
    """Check the Content-Type of a review: JSON in UTF-8, or what ``curl -d`` says.

    Raises:
        ReviewError: it is something else (415).
    """
    text = value.decode("latin-1").strip().lower()
    kind, _, parameters = text.partition(";")
    if kind and not _JSON_TYPE.fullmatch(kind.strip()):
        reason = f"Reviews are sent as application/json, not as {kind.strip()!r}."
        raise ReviewError(reason, status=415)
    charset = _CHARSET.search(parameters)
    if charset is not None and charset[1] not in ("utf-8", "utf8"):
        raise ReviewError(f"Reviews are sent in utf-8, not in {charset[1]!r}.", status=415)


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
