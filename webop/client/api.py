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
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import orjson

from webop.backoff import Backoff, Once
from webop.client.decoding import decode
from webop.client.failures import build_connection_error, choose_pause
from webop.client.request_limits import RequestLimits
from webop.client.requests import JSON, JSON_PATCH, MERGE_PATCH, Call, Page, encode_body, parse_page
from webop.client.sessions import FORGIVENESS, NetworkOptions, Session, SessionPool
from webop.client.streams import Deadlines, LineStream, StreamLimits, build_refusal, read_content
from webop.client.transport import build_transport
from webop.counters import RequestCounters
from webop.errors import (
    APIConnectionError,
    APINotFoundError,
    APIServerError,
    APITooManyRequestsError,
    APIUnauthorizedError,
)
from webop.tracing import NOT_TRACED, open_span

if TYPE_CHECKING:
    from webop.client.credentials import Vault
    from webop.client.transport import TransportFactory
    from webop.client.watch import Watcher
    from webop.objects.resources import Resource

logger = logging.getLogger(__name__)

PAGE_SIZE = 500

# Seconds, from and to: the pause after a 401, until the same credentials are tried again.
_SECOND_TRY = (FORGIVENESS, 1.0)

_NO_LIMITS = StreamLimits()

# A 429 only with a Retry-After: the eviction of a pod that others need has none, for example.
_TRANSIENT = (APIConnectionError, APIServerError, APITooManyRequestsError, APIUnauthorizedError)


class ObjectOptions(TypedDict, total=False):
    """How a request about one object is made.

    Attributes:
        is_queued: whether it waits for its turn among the requests about objects of its kind
            (see :mod:`webop.client.request_limits`); by default, it is sent at once.
        is_retried: whether network errors and 5xx are retried; by default, they are.
        keeps_managed_fields: whether the answer keeps its ``metadata.managedFields``; by default,
            it does.
    """

    is_queued: bool
    is_retried: bool
    keeps_managed_fields: bool


class Client:
    """Requests to the API server with the credentials of a vault.

    Guarantees:
        - Network errors, 5xx, and 429 with a pause are retried with ``options.error_backoffs``;
          other errors escalate at once. Each retry blocks only the one who asks.
        - After a 401, the same credentials are tried once more. If all requests with them get a 401
          now, the credentials are excluded, and the request goes on with others. If there are no
          others, it fails with LoginError.
        - Requests do not wait for each other, but for those about objects that are queued.
        - One pool of connections per credentials; a pool is closed after its last request when
          its credentials are not valid any more.

    Caveats:
        A request that is retried can have been done by the first attempt, the answer lost. Thus,
        a creation can end in 409, and a JSON patch with a test in 422.

    Attributes:
        tally: what has been requested.
        lanes: the slots for requests about objects.
        watchers: the watches that run.
        paging_groups: the API groups known to have no streaming lists, so that no watch asks for
            one again. They are told apart, as aggregated groups have servers of their own.
    """

    def __init__(
        self,
        vault: Vault,
        options: NetworkOptions,
        *,
        transport_factory: TransportFactory = build_transport,
    ) -> None:
        self.vault = vault
        self.paging_groups: set[str] = set()
        self._pool = SessionPool(vault, options, transport_factory)
        self.tally = RequestCounters()
        self.lanes = RequestLimits(self.tally.waits)
        self.watchers: set[Watcher] = set()
        self._logged = Once()

    @property
    def options(self) -> NetworkOptions:
        """The time-outs and pauses; others can be set in their place."""
        return self._pool.options

    @options.setter
    def options(self, options: NetworkOptions) -> None:
        self._pool.options = options

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
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

        The path is from the root of the API server, and quoted. The body is anything that JSON can
        hold, mappings of all kinds included. The timeout is for one attempt,
        ``options.request_timeout`` by default.

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
        backoff: Backoff | None = None
        while True:
            try:
                if call.lane is None:
                    return await self._exchange(call)
                if not self.lanes.take(call.lane):
                    await self.lanes.wait(call.lane)
                try:
                    return await self._exchange(call)
                finally:
                    self.lanes.leave(call.lane)
            except _TRANSIENT as exc:
                is_final = isinstance(exc, APITooManyRequestsError) and not exc.retry_after
                if is_final or not call.is_retried:
                    raise
                if backoff is None:
                    backoff = Backoff(self.options.error_backoffs, is_endless=False)
                delay = choose_pause(backoff, exc, is_enforced=self.options.enforce_retry_after)
                if delay is None:
                    raise
                # One line a minute for each kind of request and of trouble, not for each object.
                topic = (call.attempt.verb, call.attempt.resource, type(exc))
                level = self._logged.choose_level(topic)
                logger.log(level, "%s. The next attempt is in %g s.", str(exc).rstrip("."), delay)
            await asyncio.sleep(delay)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        limits: StreamLimits = _NO_LIMITS,
    ) -> AsyncIterator[LineStream]:
        """Open a stream of lines, such as a watch; there are no retries.

        Raises:
            TimeoutError: the server was silent for longer than the limit.
            APIConnectionError: no connection, no answer in time, or the stream was cut.
            APIStatusError: a status of 300 or above.
            LoginError: no credentials.
        """
        call = Call("GET", path, params)
        deadlines = Deadlines(limits)
        session = await self._pool.acquire()
        began, status = time.monotonic(), None
        try:
            try:
                async with deadlines.limit():
                    answer = await session.send(call, limits.connect)
                    status = answer.status
                    if answer.status >= 300:
                        raise build_refusal(call, answer, await read_content(answer))
            except OSError as exc:
                raise build_connection_error(call.attempt, exc) from exc
            finally:
                self.tally.add("WATCH", status, time.monotonic() - began)
            try:
                yield LineStream(call, answer, deadlines)
            finally:
                await answer.aclose()
        except APIUnauthorizedError as exc:
            if session.is_refused:
                await self.vault.invalidate(session.info, error=exc)
            raise
        finally:
            await self._pool.release(session)

    async def get(
        self, resource: Resource, namespace: str | None, name: str, **options: Unpack[ObjectOptions]
    ) -> dict[str, Any]:
        """Read one object."""
        path = resource.get_url(namespace=namespace, name=name)
        return await self._on_object("GET", resource, path, options)

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        limit: int = PAGE_SIZE,
        *,
        is_retried: bool = True,
        selection: Mapping[str, str] | None = None,
        lane: str | None = None,
    ) -> AsyncGenerator[Page, None]:
        """Read all objects, page by page, all as of one moment (API chunking).

        In a lane, each page is a request of it.

        Raises:
            APIGoneError: the reading has lasted too long, and is to be started anew.
            APIError: as for all requests.
        """
        path = resource.get_url(namespace=namespace)
        token = ""
        while True:
            params = {"limit": str(limit), **(selection or {})}
            if token:
                params["continue"] = token
            call = Call("GET", path, params, is_retried=is_retried, lane=lane)
            page, token = parse_page(call, await self.perform(call))
            yield page
            if not token:
                break

    async def create(
        self, resource: Resource, namespace: str | None, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Create an object, return it as it is in the cluster."""
        path = resource.get_url(namespace=namespace)
        result: dict[str, Any] = await self.request("POST", path, body=body)
        return result

    async def replace(
        self, resource: Resource, namespace: str | None, name: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Replace an object; with its ``resourceVersion``, only if it has not changed (409)."""
        path = resource.get_url(namespace=namespace, name=name)
        result: dict[str, Any] = await self.request("PUT", path, body=body)
        return result

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Delete an object, with DeleteOptions if there are some; return it, or a Status."""
        path = resource.get_url(namespace=namespace, name=name)
        result: dict[str, Any] = await self.request("DELETE", path, body=options)
        return result

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        subresource: str | None = None,
        **options: Unpack[ObjectOptions],
    ) -> dict[str, Any] | None:
        """Patch an object, return it as it is then; None if it is gone.

        A mapping is a merge patch (RFC 7396), anything else a JSON patch (RFC 6902).

        Raises:
            APIUnprocessableError: a ``test`` of a JSON patch did not hold.
        """
        path = resource.get_url(namespace=namespace, name=name, subresource=subresource)
        is_merge = isinstance(patch, Mapping)
        content = encode_body(patch if is_merge else list(patch))
        content_type = MERGE_PATCH if is_merge else JSON_PATCH
        try:
            return await self._on_object("PATCH", resource, path, options, content, content_type)
        except APINotFoundError as exc:
            # An object that is gone needs no patching. An absent subresource is another matter.
            if exc.details.get("name"):
                return None
            raise

    async def _on_object(
        self,
        method: str,
        resource: Resource,
        path: str,
        options: ObjectOptions,
        content: bytes | None = None,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        lane = resource.plural_name if options.get("is_queued") else None
        is_retried = options.get("is_retried", True)
        call = Call(method, path, None, content, content_type, is_retried=is_retried, lane=lane)
        result: dict[str, Any] = await self.perform(call)
        if result and not options.get("keeps_managed_fields", True):
            result.get("metadata", {}).pop("managedFields", None)
        return result

    async def _exchange(self, call: Call) -> Any:
        """Send a call; once more if it gets a 401, and again whenever there are other credentials.

        Raises:
            APIUnauthorizedError: two times a 401, and other requests are accepted meanwhile.
        """
        options = self.options
        session: Session | None = None
        is_forgiven = False
        while True:
            session = await self._pool.acquire(session)
            began, status = time.monotonic(), None
            try:
                with open_span(session.describe, call) or NOT_TRACED as span:
                    timeout = call.timeout or options.request_timeout or None
                    async with asyncio.timeout(timeout):
                        answer = await session.send(call, options.connect_timeout)
                        status = answer.status
                        content = await read_content(answer)
                    if span is not None:
                        span.record_response(status)
                if answer.status >= 300:
                    raise build_refusal(call, answer, content)
                return decode(content, lambda: call.attempt) if content else None
            except APIUnauthorizedError as exc:
                if session.is_refused:
                    await self.vault.invalidate(session.info, error=exc)
                elif is_forgiven:
                    raise
                is_forgiven = not session.is_refused
            except (OSError, orjson.JSONDecodeError) as exc:
                raise build_connection_error(call.attempt, exc) from exc
            finally:
                self.tally.add(call.method, status, time.monotonic() - began)
                await self._pool.release(session)
            if is_forgiven:
                await asyncio.sleep(random.uniform(*_SECOND_TRY))  # noqa: S311 - no secret
