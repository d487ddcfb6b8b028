"""HTTP/1.1 for webhooks: what stands between a connection and an ASGI app.

Made for API servers, which keep connections for long and call again and again: small, with a
limit on everything that a client may hold, and with ends that lose no request. It works in
uvicorn, too::

    uvicorn --http webop.servers.listener:HTTPProtocol webop.app:app

Flow: :meth:`HTTPProtocol.data_received` feeds the parser, which makes an :class:`HTTPExchange` of
each request; its app starts when the request is there as a whole (or is large), and the earlier
ones on the connection are answered.

Guarantees:
    - A request that has come before the connection is told to end is answered.
    - A connection ends with the end of our side only, at first: what the client sends meanwhile
      is read and dropped for a moment, so that it never meets a reset in place of an answer.
    - Heads, numbers of pending requests, times to send a request and to be idle are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from webop.servers.hosting import Hosting, get_hosting
from webop.servers.http.answers import (
    SSLPEER_EXTENSION,
    Answer,
    build_refusal,
    encode_answer,
)
from webop.servers.http.exchange import HTTPExchange
from webop.servers.http.parsing import RefusedError, RequestParser
from webop.servers.http.tls import MAX_DROPPED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

_SMALL_BODY = 64 * 1024  # bytes; apps of requests up to there start when all has come
_LINGER_SECONDS = 1.0  # for clients to close their side, too
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class HTTPProtocol(asyncio.Protocol):
    """One connection. The arguments are those that uvicorn gives.

    Args:
        config: has the app (``loaded_app``) and the ``root_path``.
        server_state: has the sets of ``connections`` and ``tasks``, maybe the ``hosting``.
        app_state: of the lifespan of the app.
        _loop: not used.
    """

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: dict[str, Any] | None = None,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app: Callable[..., Awaitable[None]] = config.loaded_app
        self._root_path: str = config.root_path
        self._state = server_state
        self._app_state = app_state or {}
        self._hosting: Hosting = getattr(server_state, "hosting", None) or get_hosting()
        self._loop = asyncio.get_running_loop()
        self.default_headers: list[tuple[bytes, bytes]] = server_state.default_headers
        self._transport: asyncio.Transport
        self._parser: RequestParser
        self._can_write: asyncio.Event | None = None  # while the client is slow
        self._idle_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._exchanges: deque[HTTPExchange] = deque()  # parsed, not answered; the first one runs
        self._is_retiring = False
        self._is_half_closed = False  # by the client
        self._is_ended = False  # our side is closed
        self._is_deaf = False  # what comes is dropped
        self._is_paused = False
        self._since = self._loop.time()  # when it was made, or has answered
        self.has_served = False
        self._dropped = 0  # bytes

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection (after the TLS handshake, if there is any)."""
        # Not asserted: the transports of uvloop are of no class of asyncio.
        self._transport = cast("asyncio.Transport", transport)
        self._state.connections.add(self)
        # It is empty for a certificate that the context was not told to verify.
        peer = transport.get_extra_info("peercert") or None
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "server": _get_address(transport.get_extra_info("sockname")),
            "client": _get_address(transport.get_extra_info("peername")),
            "root_path": self._root_path,
            "state": self._app_state,
            "extensions": {} if peer is None else {SSLPEER_EXTENSION: peer},
        }
        self._parser = RequestParser(self, scope, self._root_path)
        self._idle_timer = self._loop.call_later(
            self._hosting.limits.idle_timeout, self._check_idle
        )

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        if self._is_deaf:
            self._drop(len(data))
            return
        try:
            if not self._parser.feed(data):
                self._stop_parsing()
        except RefusedError as error:
            self._refuse_rest(error.answer)
        self._proceed()
        self._watch_reading()

    def eof_received(self) -> bool:
        """Hear that the client sends no more; what is complete is still answered."""
        if self._is_ended or self._parser.is_partial or not self._exchanges:
            return False
        self._is_retiring = self._is_half_closed = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - it is asyncio's
        """End the service of a connection."""
        self._state.connections.discard(self)
        self._forget()
        self.resume_writing()

    def pause_writing(self) -> None:
        """Hear that the client does not read as fast as we write."""
        self._can_write = asyncio.Event()

    def resume_writing(self) -> None:
        """Hear that the client has caught up."""
        if self._can_write is not None:
            self._can_write.set()
            self._can_write = None
            self._proceed()

    # What the parser tells.

    def begin(self, exchange: HTTPExchange) -> None:
        """Take a request of which the head has come."""
        self._exchanges.append(exchange)

    # What exchanges need.

    def write(self, data: bytes) -> None:
        """Send."""
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has taken some of what is sent."""
        while self._can_write is not None:
            await self._can_write.wait()

    def is_ending(self) -> bool:
        """Tell whether there will be no other request after those that have come."""
        is_stopping = (
            self._is_retiring
            or self._hosting.is_stopping
            or getattr(self._state, "is_stopping", False)  # uvicorn's state has none
        )
        return is_stopping and len(self._exchanges) <= 1 and not self._parser.is_in_head

    def retire(self) -> None:
        """End when the requests that have come are answered."""
        self._is_retiring = True

    def go_on(self) -> None:
        """Let more of the request come: the app has taken what was there."""
        self._watch_reading()

    def finish(self, exchange: HTTPExchange) -> None:
        """Go on after a response."""
        self.has_served = True
        self._since = self._loop.time()
        self._exchanges.popleft()
        if not exchange.is_kept or (self._is_deaf and not self._exchanges):
            self._end()
        elif self._exchanges or self._is_paused:
            self._proceed()
            self._watch_reading()

    # What a server needs.

    def is_idle(self) -> bool:
        """Tell whether there is no request, not even a part of one."""
        return not self._exchanges and not self._parser.is_in_head

    def get_idle_time(self) -> float:
        """Return the seconds since the last answer, or since the connection was made."""
        return self._loop.time() - self._since

    def shutdown(self) -> None:
        """Close: at once if there is no request, else after the last one that has come."""
        self._is_retiring = True
        if self.is_idle():
            self._end()

    def cut(self) -> None:
        """Answer what has no answer yet in place of the app; clients may try elsewhere."""
        if self._exchanges:
            reason = "The operator is stopping, and the review has taken too long."
            retry = ((b"retry-after", b"1"),)
            self._exchanges[0].respond(build_refusal(503, reason, headers=retry, closes=True))
        self._end()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # In between.

    def _proceed(self) -> None:
        """Start the app for the first request if it can be started."""
        if self._is_ended or not self._exchanges or self._can_write is not None:
            return
        exchange = self._exchanges[0]
        if exchange.task is None and self._is_ready(exchange):
            exchange.task = self._loop.create_task(self._run(exchange))
            self._state.tasks.add(exchange.task)

    def _is_ready(self, exchange: HTTPExchange) -> bool:
        if exchange.is_complete or exchange.is_expecting:
            return True
        length = self._parser.length  # of the latest request; as this one is not complete, it is it
        return length is None or length > _SMALL_BODY

    async def _run(self, exchange: HTTPExchange) -> None:
        """Run the app for a request."""
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except Exception:
            logger.exception("The app has failed at %r", exchange.scope["path"])
        finally:
            self._state.tasks.discard(exchange.task)
            if exchange.has_begun and not exchange.is_answered:
                self.abort()
            exchange.respond(_APP_FAILED)
            exchange.release()

    def _watch_reading(self) -> None:
        """Read no more than can be worked on; cut what does not come in time."""
        incoming = self._parser.incoming
        has_enough = len(self._exchanges) > 1 or (incoming is not None and incoming.is_full())
        if has_enough != self._is_paused and not self._is_ended:
            self._is_paused = has_enough
            if has_enough:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        is_awaited = self._parser.is_partial and not has_enough and not self._is_ended
        if is_awaited and self._read_timer is None:
            limit = self._hosting.limits.read_timeout
            self._read_timer = self._loop.call_at(
                self._parser.arrival + limit, self._cut_reading, limit
            )
        elif not is_awaited and self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _cut_reading(self, limit: float) -> None:
        reason = f"The request has not come as a whole within {limit:g} s."
        refusal = build_refusal(408, reason, closes=True)
        self._refuse_rest(None if self._parser.is_in_head else refusal)

    def _check_idle(self) -> None:
        limit = self._hosting.limits.idle_timeout
        left = limit - self.get_idle_time()
        if self._can_write is not None and left <= 0:  # the client does not read its answers
            self.abort()
        elif self.is_idle() and left <= 0:
            self._end()
        else:
            self._idle_timer = self._loop.call_later(max(left, limit / 10), self._check_idle)

    def _stop_parsing(self) -> HTTPExchange | None:
        """Take no more requests; answer those that have come as a whole, return the other one."""
        self._is_retiring = self._is_deaf = True
        return self._parser.stop()

    def _refuse_rest(self, refusal: Answer | None) -> None:
        """Answer what has come as a whole; if that is nothing, say what is wrong with the rest."""
        incoming = self._stop_parsing()
        if incoming is not None and incoming is not self._exchanges[0]:
            self._exchanges.pop()
        elif incoming is not None and refusal is not None:
            incoming.respond(refusal)
            self._end()
        elif not self._exchanges:
            if refusal is not None:
                self.write(encode_answer(refusal, closes=True))
            self._end()

    def _end(self) -> None:
        """Close our side, read on for a moment, close."""
        if self._is_ended:
            return
        self._forget()
        if self._is_half_closed or not self._transport.can_write_eof():  # as TLS of asyncio
            self._transport.close()
            return
        with contextlib.suppress(OSError):  # the client has gone at this moment
            self._transport.write_eof()
        if self._is_paused:
            self._transport.resume_reading()
        self._since = self._loop.time()
        self._idle_timer = self._loop.call_later(_LINGER_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Close the connection of a client that does not; unless it still reads an answer."""
        has_time = self.get_idle_time() < self._hosting.limits.read_timeout
        if self._transport.get_write_buffer_size() and has_time:
            self._idle_timer = self._loop.call_later(_LINGER_SECONDS, self._give_up)
        else:
            self.abort()

    def _drop(self, size: int) -> None:
        """Take what nobody wants, so that the client sees the answer; but not for ever."""
        self._dropped += size
        if self._dropped > MAX_DROPPED:
            self.abort()

    def _forget(self) -> None:
        self._is_ended = self._is_deaf = True
        self._cancel_timers()
        for exchange in self._exchanges:
            exchange.leave()
        self._exchanges.clear()
        self._parser.stop()

    def _cancel_timers(self) -> None:
        for timer in (self._idle_timer, self._read_timer):
            if timer is not None:
                timer.cancel()


_APP_FAILED = build_refusal(500, "The app has failed; see its log.", closes=True)


def _get_address(address: Any) -> tuple[str, int | None] | None:
    """Return host and port, as ASGI wants them; None for sockets that have none."""
    return (str(address[0]), int(address[1])) if isinstance(address, (tuple, list)) else None
