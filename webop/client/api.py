"""The client of the API server: requests with retries, streams, and verbs over resources.

Place in the flow: everything that webop reads from or writes to the cluster passes here.
A request takes credentials from the :class:`~webop.client.credentials.Vault`, goes through the
pooled connections of these credentials, and ends as decoded JSON or as one of the exceptions of
:mod:`webop.errors`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

import orjson

from webop.client.calls import (
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    Call,
    Page,
    build_selection,
    encode_body,
    parse_page,
)
from webop.client.failures import CONNECTION_ERRORS, build_connection_error
from webop.client.sessions import Session, SessionPool
from webop.client.streams import (
    Deadlines,
    LineStream,
    StreamLimits,
    build_refusal,
    open_response,
    read_content,
)
from webop.client.transport import build_transport
from webop.errors import (
    APIConnectionError,
    APINotFoundError,
    APIServerError,
    APIStatusError,
    APIUnauthorizedError,
)
from webop.pacing import Once

if TYPE_CHECKING:
    from types import TracebackType

    import httpx

    from webop.client.credentials import Vault
    from webop.client.transport import TransportFactory
    from webop.objects.resources import Resource

logger = logging.getLogger(__name__)

PAGE_SIZE = 500

# Seconds. The server's wish for a longer pause is respected up to here: a proxy's "come back
# tomorrow" must not put an object to sleep.
_RETRY_AFTER_LIMIT = 60.0

_NO_LIMITS = StreamLimits()


class NetworkOptions(Protocol):
    """What the client needs to know; read at each call, so that live changes count.

    All times are in seconds; None means no limit. ``settings.networking`` satisfies it.
    """

    @property
    def request_timeout(self) -> float | None:
        """The limit for a whole regular request with its response."""

    @property
    def connect_timeout(self) -> float | None:
        """The limit for the TCP handshake; within the limit of the request anyway."""

    @property
    def error_backoffs(self) -> float | Iterable[float]:
        """The pauses between the attempts: one attempt more than pauses."""

    @property
    def enforce_retry_after(self) -> bool:
        """Whether the pause that the server asks for counts also when it is a shorter one."""

    @property
    def trust_env(self) -> bool:
        """Whether proxies are taken from the environment; read when a connection is opened."""


class Client:
    """Requests to the API server with the credentials of a vault.

    Guarantees:
        - Network errors and 5xx are retried with ``options.error_backoffs``; other errors escalate
          at once. Each retry blocks only the one who asks.
        - A 401 excludes the credentials for good; the request goes on with others, when there are
          some. If there are none, it fails with LoginError.
        - One pool of connections per credentials; a pool is closed after its last request when
          its credentials are not valid any more.

    Caveats:
        A request that is retried can have been done by the first attempt, the answer lost. Thus,
        a creation can end in 409, and a JSON patch with a test in 422.

    Attributes:
        paging_groups: the API groups known to have no streaming lists, so that no watch asks for
            one again. They are told apart, as aggregated groups have servers of their own.

    Args:
        vault: where to take credentials from.
        options: the time-outs and pauses, such as ``settings.networking``.
        transport_factory: makes a transport for credentials.
    """

    def __init__(
        self,
        vault: Vault,
        options: NetworkOptions,
        *,
        transport_factory: TransportFactory = build_transport,
    ) -> None:
        self.vault = vault
        self.options = options
        self.paging_groups: set[str] = set()
        self._pool = SessionPool(vault, options, transport_factory)
        self._logged = Once()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Requests in flight fail."""
        await self._pool.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send a request, return the decoded JSON of the answer (None if it is empty).

        Args:
            method: an HTTP method in upper case.
            path: from the root of the API server, such as "/version"; already quoted.
            params: the query.
            body: anything that JSON can hold, mappings of all kinds included.
            content_type: of the body; JSON by default.
            timeout: in seconds, for one attempt; ``options.request_timeout`` by default.

        Raises:
            APIConnectionError: no usable answer, also after the retries.
            APIStatusError: a status of 300 or above (for 5xx, also after the retries).
            LoginError: no credentials.
            TypeError: the body is not for JSON.
        """
        content = None if body is None else encode_body(body)
        return await self.perform(
            Call(method, path, params, content, content_type or JSON, timeout=timeout)
        )

    async def perform(self, call: Call) -> Any:
        """Send a prepared call with retries; see :meth:`request`."""
        backoffs: Iterator[float] | None = None
        while True:
            try:
                return await self._exchange(call)
            except (APIConnectionError, APIServerError) as exc:
                if not call.is_retried:
                    raise
                if backoffs is None:
                    backoffs = _iterate(self.options.error_backoffs)
                backoff = next(backoffs, None)
                if backoff is None:
                    raise
                delay = _adjust(backoff, exc, self.options)
                # One line a minute for each kind of request and of trouble, not for each object.
                topic = (call.attempt.verb, call.attempt.resource, type(exc))
                is_new = self._logged.is_new(topic, int(time.monotonic() // 60))
                level = logging.WARNING if is_new else logging.DEBUG
                logger.log(level, "%s. The next attempt is in %g s.", str(exc).rstrip("."), delay)
            await asyncio.sleep(delay)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        limits: StreamLimits = _NO_LIMITS,
        is_trusting: bool = False,
    ) -> AsyncIterator[LineStream]:
        """Open a stream of lines, such as a watch; there are no retries.

        Args:
            path: from the root of the API server.
            params: the query.
            limits: of the connect, of silence, and in total.
            is_trusting: do not hold a 401 against the credentials.

        Raises:
            TimeoutError: the server was silent for longer than the limit.
            APIConnectionError: no connection, no answer in time, or the stream was cut.
            APIStatusError: a status of 300 or above.
            LoginError: no credentials.
        """
        call = Call("GET", path, params)
        deadlines = Deadlines(limits)
        session = await self._pool.acquire()
        try:
            async with open_response(session, call, limits.connect, deadlines) as response:
                yield LineStream(call, response, deadlines)
        except APIUnauthorizedError as exc:
            if not is_trusting:
                await self.vault.invalidate(session.info, error=exc)
            raise
        finally:
            await self._pool.release(session)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        """Read one object."""
        return await self._on_object("GET", resource, namespace, name)

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        limit: int = PAGE_SIZE,
        *,
        is_retried: bool = True,
        is_trusting: bool = False,
        name: str | None = None,
    ) -> AsyncGenerator[Page, None]:
        """Read all objects, page by page, all as of one moment (API chunking).

        Args:
            resource: what to read.
            namespace: where; None for the whole cluster.
            limit: how many objects there are on a page, at most.
            is_retried: whether network errors and 5xx are retried, as in all requests.
            is_trusting: do not hold a 401 against the credentials.
            name: of the only object to be read; None for all of them.

        Raises:
            APIGoneError: the reading has lasted too long, and is to be started anew.
            APIError: as for all requests.
        """
        path = resource.get_url(namespace=namespace)
        token = ""
        while True:
            params = {"limit": str(limit)} | build_selection(name)
            if token:
                params["continue"] = token
            call = Call("GET", path, params, is_retried=is_retried, is_trusting=is_trusting)
            page, token = parse_page(call, await self.perform(call))
            yield page
            if not token:
                break

    async def create(
        self, resource: Resource, namespace: str | None, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Create an object, return it as it is in the cluster."""
        return await self._on_object("POST", resource, namespace, body=body)

    async def replace(
        self, resource: Resource, namespace: str | None, name: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Replace an object; with its ``resourceVersion``, only if it has not changed (409)."""
        return await self._on_object("PUT", resource, namespace, name, body=body)

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Delete an object, with DeleteOptions if there are some; return it, or a Status."""
        return await self._on_object("DELETE", resource, namespace, name, body=options)

    async def patch_merge(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any],
        subresource: str | None = None,
    ) -> dict[str, Any] | None:
        """Apply a merge patch (RFC 7396), return the patched object; None if it is gone."""
        path = resource.get_url(namespace=namespace, name=name, subresource=subresource)
        return await self._patch(Call("PATCH", path, None, encode_body(patch), MERGE_PATCH))

    async def patch_json(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Iterable[Mapping[str, Any]],
        subresource: str | None = None,
    ) -> dict[str, Any] | None:
        """Apply a JSON patch (RFC 6902), return the patched object; None if it is gone.

        Raises:
            APIUnprocessableError: a ``test`` of the patch did not hold.
        """
        path = resource.get_url(namespace=namespace, name=name, subresource=subresource)
        return await self._patch(Call("PATCH", path, None, encode_body(list(patch)), JSON_PATCH))

    async def _on_object(
        self,
        method: str,
        resource: Resource,
        namespace: str | None,
        name: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        path = resource.get_url(namespace=namespace, name=name)
        content = None if body is None else encode_body(body)
        result: dict[str, Any] = await self.perform(Call(method, path, None, content))
        return result

    async def _patch(self, call: Call) -> dict[str, Any] | None:
        try:
            result: dict[str, Any] = await self.perform(call)
        except APINotFoundError as exc:
            # An object that is gone needs no patching. An absent subresource is another matter.
            if exc.details.get("name"):
                return None
            raise
        return result

    async def _exchange(self, call: Call) -> Any:
        """Send a call once; again only when the credentials are refused, and there are others."""
        while True:
            session = await self._pool.acquire()
            try:
                response, content = await self._send(session, call)
                if response.status_code >= 300:
                    raise build_refusal(call, response, content)
                return orjson.loads(content) if content else None
            except APIUnauthorizedError as exc:
                if call.is_trusting:
                    raise
                await self.vault.invalidate(session.info, error=exc)
            except (*CONNECTION_ERRORS, orjson.JSONDecodeError) as exc:
                raise build_connection_error(call.attempt, exc) from exc
            finally:
                await self._pool.release(session)

    async def _send(self, session: Session, call: Call) -> tuple[httpx.Response, bytes]:
        options = self.options
        request = session.build_request(call, options.connect_timeout)
        async with session.gate, asyncio.timeout(call.timeout or options.request_timeout or None):
            response = await session.transport.handle_async_request(request)
            return response, await read_content(response)


def _iterate(backoffs: float | Iterable[float]) -> Iterator[float]:
    return iter(backoffs) if isinstance(backoffs, Iterable) else iter((backoffs,))


def _adjust(backoff: float, exc: Exception, options: NetworkOptions) -> float:
    """Return the seconds to wait: what is set, or what the server asks for."""
    wish = exc.retry_after if isinstance(exc, APIStatusError) else None
    if wish is None:
        return backoff
    return wish if options.enforce_retry_after else max(backoff, min(wish, _RETRY_AFTER_LIMIT))
