"""The client of the API server: requests with retries, streams, and verbs over resources.

All requests to the cluster pass here. A request takes credentials from the
:class:`~webop.client.auth.vault.Vault`, and uses the pooled connections of these credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import orjson

from webop.aio.backoff import Backoff, Once, format_pause
from webop.client.deep_json import decode
from webop.client.http.failed_requests import (
    build_connection_error,
    choose_pause,
    may_be_executed,
)
from webop.client.http.requests import (
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    PARTIAL_LIST,
    PARTIAL_OBJECT,
    Call,
    Page,
    Selection,
    cut_object,
    encode_body,
    parse_page,
)
from webop.client.http.sessions import (
    FORGIVENESS,
    NetworkOptions,
    Session,
    SessionPool,
    build_transport,
)
from webop.client.http.streams import (
    LineStream,
    StreamLimits,
    build_refusal,
    read_content,
)
from webop.client.http.transport import TransportError, UntrustedServerError
from webop.errors import (
    TRANSIENT_ERRORS,
    APIConnectionError,
    APIGoneError,
    APINotFoundError,
    APIStatusError,
    APITooManyRequestsError,
    APIUnauthorizedError,
)
from webop.telemetry.counters import RequestCounters
from webop.telemetry.tracing import NOT_TRACED, open_span

if TYPE_CHECKING:
    from webop.client.auth.vault import Vault
    from webop.client.http.transport import TransportFactory
    from webop.client.watch_recovery import WatchStatus
    from webop.objects.resources import Resource

logger = logging.getLogger(__name__)

_PAGE_SIZE = 500

# How many requests of a queue are in flight at once. Each connection costs a TLS handshake and some
# 40 to 100 KB, and more requests at once gain nothing.
_IN_FLIGHT = 16

# Seconds, from and to: the pause after a 401 before the request is sent with the same credentials.
_SECOND_TRY = (FORGIVENESS, 1.0)

_NO_LIMITS = StreamLimits()
_EVERYTHING = Selection()

_UNKNOWN = (
    "It is unknown whether the request was executed, so it is not repeated: look at the object "
    "before you send it again."
)
_MAYBE_OWN = "An earlier attempt of this request failed, but can have been executed."

# A 429 is transient only with Retry-After: that of a forbidden eviction has none, for example.
_TRANSIENT = (*TRANSIENT_ERRORS, APIUnauthorizedError)


class ObjectOptions(TypedDict, total=False):
    """Options of a request about one object.

    Attributes:
        is_queued: whether it waits for its turn among the requests about objects of its kind; by
            default, it is sent at once.
        is_retried: whether network errors and 5xx are retried; by default, they are.
        keeps_managed_fields: whether the response keeps its ``metadata.managedFields``; by default,
            it does.
        timeout: of one attempt, in seconds; by default ``options.request_timeout``.
        is_partial: whether the response has only the metadata; by default, it has all.
    """

    is_queued: bool
    is_retried: bool
    keeps_managed_fields: bool
    timeout: float
    is_partial: bool


class Client:
    """Requests to the API server with the credentials of a vault.

    Guarantees:
        - Network errors, 5xx, and 429 with ``Retry-After`` are retried with
          ``options.error_backoffs``; other errors are raised at once. A retry delays only its own
          request.
        - A request that may have been executed is sent again only if that does no harm
          (:meth:`Call.is_repeatable`). Then a creation can end in 409, and a JSON patch with a test
          in 422, because of the first attempt; the error says so.
        - After a 401, the request is sent again with the same credentials. If all requests with
          them get a 401 now, the credentials are excluded, and the request continues with others.
          Without others, it fails with LoginError.
        - Of each queue (a kind of objects, or a sort of handlers), 16 requests are in flight; the
          others wait in the order of their arrival. Requests without a queue (Leases, peering,
          discovery, logins, Events, watches) never wait: a burst of objects delays nothing that
          keeps the operator alive.
        - Each credentials have one pool of connections. When the credentials are no longer valid,
          the pool is closed after its last request.

    Attributes:
        options: the timeouts and pauses; they can be replaced.
        counters: counters of the requests.
        watches: the resources of the running watches, by their status.
        paging_groups: the API groups known to have no streaming lists, so that no watch requests
            one again. They differ by group because aggregated groups have separate servers.
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
        self.options = options
        self._pool = SessionPool(vault, lambda: self.options.trust_env, transport_factory)
        self.counters = RequestCounters()
        self._queues: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_IN_FLIGHT)
        )
        self.watches: dict[WatchStatus, Resource] = {}
        self._logged = Once()

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
        """Send a request, return the decoded JSON of the response (None if it is empty).

        The path starts at the root of the API server and is quoted. The body is anything that JSON
        can represent, including mappings of all types. The timeout is for one attempt, in seconds;
        by default ``options.request_timeout``.

        Raises:
            APIConnectionError: no usable response after all retries.
            APIStatusError: a status of 300 or above (for 5xx, after all retries).
            TypeError: JSON cannot represent the body.
        """
        content = None if body is None else encode_body(body)
        return await self.perform(
            Call(method, path, params, content, content_type or JSON, timeout=timeout)
        )

    async def perform(self, call: Call) -> Any:
        """Send a prepared call with retries; see :meth:`request`."""
        backoff: Backoff | None = None
        is_in_doubt = False  # whether an earlier attempt may have been executed
        while True:
            try:
                if call.queue is None:
                    return await self._exchange(call)
                async with self._queues[call.queue]:
                    return await self._exchange(call)
            except _TRANSIENT as exc:
                is_final = isinstance(exc, APITooManyRequestsError) and not exc.retry_after
                if is_final or not call.is_retried:
                    raise
                is_in_doubt |= call.method != "GET" and may_be_executed(exc)
                if is_in_doubt and not call.is_repeatable():
                    exc.args = (f"{str(exc).rstrip('.')}. {_UNKNOWN}",)
                    raise
                if backoff is None:
                    backoff = Backoff(self.options.error_backoffs, is_endless=False)
                delay = choose_pause(backoff, exc, is_enforced=self.options.enforce_retry_after)
                if delay is None:
                    raise
                # One line a minute for each kind of request and of error, not for each object.
                topic = (call.attempt.verb, call.attempt.resource, type(exc))
                level = self._logged.choose_level(topic)
                logger.log(
                    level, "%s. Retrying in %s s.", str(exc).rstrip("."), format_pause(delay)
                )
            except APIStatusError as exc:
                if is_in_doubt:
                    exc.args = (f"{str(exc).rstrip('.')}. {_MAYBE_OWN}",)
                raise
            await asyncio.sleep(delay)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        limits: StreamLimits = _NO_LIMITS,
        is_partial: bool = False,
    ) -> AsyncIterator[LineStream]:
        """Open a stream of lines, such as a watch, without retries; of metadata only if partial.

        Raises:
            TimeoutError: the server sent nothing for longer than the limit.
            APIConnectionError: no connection, no response in time, or the stream was cut.
            APIStatusError: a status of 300 or above.
        """
        call = Call("GET", path, params, accept=PARTIAL_OBJECT if is_partial else JSON)
        lines = LineStream(call, limits)
        session = self._pool.take() or await self._pool.open()
        now = asyncio.get_running_loop().time
        began, status, response = now(), None, None
        try:
            try:
                async with lines.waiting():
                    request = session.build_request(call, limits.connect)
                    response = lines.response = await session.transport.send(request)
                    status = response.status
                    session.note(status, began)
                    if status >= 300:
                        raise build_refusal(call, response, await read_content(response))
                    coding = response.headers.get(b"content-encoding", b"identity").decode(
                        "latin-1"
                    )
                    if coding.lower() not in ("", "identity"):  # else lines of logs are garbled
                        raise TransportError(f"a proxy has compressed the response ({coding})")
            except OSError as exc:
                raise self._explain(call, session, exc) from exc
            finally:
                method = "WATCH" if call.attempt.verb == "watch" else "GET"
                self.counters.add(method, status, now() - began)
            yield lines
        except APIUnauthorizedError as exc:
            if session.is_refused:
                await self.vault.invalidate(session.info, error=exc)
            raise
        finally:
            try:
                if response is not None:
                    await response.aclose()
            finally:
                if self._pool.release(session):
                    await self._pool.close_outdated()

    async def get(
        self, resource: Resource, namespace: str | None, name: str, **options: Unpack[ObjectOptions]
    ) -> dict[str, Any]:
        """Read one object."""
        path = resource.get_url(namespace=namespace, name=name)
        call = _build_call("GET", resource, path, options)
        return _trim(await self.perform(call), resource, options)

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        selection: Selection = _EVERYTHING,
        *,
        is_retried: bool = True,
        queue: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Page, None]:
        """Yield all objects, page by page, all as of one moment (API chunking).

        With a queue, each page is one of its requests. The timeout is for one attempt of one page.
        After an APIGoneError, reading took too long, and must start again.
        """
        path = resource.get_url(namespace=namespace)
        query, token = {"limit": str(_PAGE_SIZE), **selection.params}, ""
        while True:
            if token:
                query = {**query, "continue": token}
            call = Call(
                "GET",
                path,
                query,
                accept=PARTIAL_LIST if selection.is_partial else JSON,
                timeout=timeout,
                is_retried=is_retried,
                queue=queue,
            )
            page, token = parse_page(call, await self.perform(call))
            if selection.is_partial:
                page.items[:] = [cut_object(raw, resource) for raw in page.items]
            yield page
            if not token:
                break

    async def list_to_the_end(
        self, resource: Resource, namespace: str | None, selection: Selection, **options: Any
    ) -> AsyncGenerator[Page, None]:
        """Yield pages as :meth:`list_pages`; if they expire, the rest is of a later moment."""
        params = selection.params
        while True:
            part = selection._replace(params=params)
            try:
                async with contextlib.aclosing(
                    self.list_pages(resource, namespace, part, **options)
                ) as pages:
                    async for page in pages:
                        yield page
            except APIGoneError as exc:
                if not (token := exc.details.get("continue")):
                    raise
                params = {**selection.params, "continue": str(token)}
            else:
                return

    async def create(
        self,
        resource: Resource,
        namespace: str | None,
        body: Mapping[str, Any],
        **options: Unpack[ObjectOptions],
    ) -> dict[str, Any]:
        """Create an object, return it as stored."""
        path = resource.get_url(namespace=namespace)
        call = _build_call("POST", resource, path, options, encode_body(body))
        return _trim(await self.perform(call), resource, options)

    async def delete(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        """Delete an object; return it, or a Status."""
        path = resource.get_url(namespace=namespace, name=name)
        result: dict[str, Any] = await self.request("DELETE", path)
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
        """Patch an object, return its new state; None if it does not exist.

        A mapping is a merge patch (RFC 7396), anything else is a JSON patch (RFC 6902).

        Raises:
            APIUnprocessableError: a ``test`` of a JSON patch failed.
            APINotFoundError: something else does not exist: the subresource, the kind, or what a
                webhook has looked for.
        """
        path = resource.get_url(namespace=namespace, name=name, subresource=subresource)
        is_merge = isinstance(patch, Mapping)
        content = encode_body(patch if is_merge else list(patch))
        content_type = MERGE_PATCH if is_merge else JSON_PATCH
        call = _build_call("PATCH", resource, path, options, content, content_type)
        try:
            return _trim(await self.perform(call), resource, options)
        except APINotFoundError as exc:
            missing = exc.details.get("name"), exc.details.get("kind", resource.plural)
            if missing in {(name, resource.plural), (name, resource.kind)}:
                return None  # a deleted object needs no patch
            raise

    async def _exchange(self, call: Call) -> Any:
        """Send a call; again after a 401, and again whenever there are other credentials."""
        options, now = self.options, asyncio.get_running_loop().time
        session: Session | None = None
        is_forgiven = False
        while True:
            session = self._pool.take(session) or await self._pool.open()
            began, status = now(), None
            try:
                with open_span(session.describe, call) or NOT_TRACED as span:
                    async with asyncio.timeout(call.timeout or options.request_timeout or None):
                        request = session.build_request(call, options.connect_timeout)
                        response = await session.transport.send(request)
                        status = response.status
                        session.note(status, began)
                        content = await read_content(response)
                    if span is not None:
                        span.record_response(status)
                if status >= 300 and not (call.etag and status == 304):
                    raise build_refusal(call, response, content)
                found = await decode(content, lambda: call.attempt)
                return found if call.etag is None else (response.headers.get(b"etag", b""), found)
            except APIUnauthorizedError as exc:
                if session.is_refused:
                    await self.vault.invalidate(session.info, error=exc)
                elif is_forgiven:
                    raise
                is_forgiven = not session.is_refused
            except orjson.JSONDecodeError as exc:
                raise build_connection_error(call.attempt, exc) from exc
            except OSError as exc:
                raise self._explain(call, session, exc) from exc
            finally:
                self.counters.add(call.method, status, now() - began)
                if self._pool.release(session):
                    await self._pool.close_outdated()
            if is_forgiven:
                await asyncio.sleep(random.uniform(*_SECOND_TRY))  # noqa: S311 - no secret

    def _explain(self, call: Call, session: Session, exc: Exception) -> APIConnectionError:
        """Return the error of a request without a usable response; maybe it needs a new login."""
        if isinstance(exc, UntrustedServerError):
            self.vault.ask_for_login(session.info, error=exc)
        return build_connection_error(call.attempt, exc)


def _build_call(
    method: str,
    resource: Resource,
    path: str,
    options: ObjectOptions,
    content: bytes | None = None,
    content_type: str = JSON,
) -> Call:
    accept = PARTIAL_OBJECT if options.get("is_partial") else JSON
    queue = resource.plural_name if options.get("is_queued") else None
    timeout, is_retried = options.get("timeout"), options.get("is_retried", True)
    return Call(method, path, None, content, content_type, accept, timeout, is_retried, queue)


def _trim(found: dict[str, Any], resource: Resource, options: ObjectOptions) -> dict[str, Any]:
    """Remove from an object what the options exclude."""
    if found and options.get("is_partial"):
        found = cut_object(found, resource)
    if found and not options.get("keeps_managed_fields", True):
        found.get("metadata", {}).pop("managedFields", None)
    return found
