"""Waiting for the cluster: until an object meets a condition, until a kind is served.

Place in the flow: :meth:`webop.client.objects.AsyncClient.wait_for` checks each state of
:func:`follow`. Who applies a definition calls :func:`wait_served`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from webop.aio.backoff import Backoff, format_pause
from webop.client.discovery import discover
from webop.client.http.failed_requests import choose_pause, parse_attempt
from webop.client.http.requests import Call, build_selection
from webop.client.http.streams import StreamLimits
from webop.client.watch_events import CHANGES, BrokenStreamError, parse_event
from webop.errors import (
    TRANSIENT_ERRORS,
    APIConnectionError,
    APIGoneError,
    APIStatusError,
    APIUnauthorizedError,
)
from webop.objects.resources import Resource
from webop.objects.status_conditions import find_condition, is_outdated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from webop.client.api import Client

logger = logging.getLogger(__name__)

_SILENCE = 90.0  # seconds; bookmarks come each minute, so the connection is dead then
_POLLING = 0.2  # seconds
_NOT_YET = frozenset({404, 429, 503})
_PAUSES = (0.1, 1.0, 2.0, 5.0, 10.0)  # seconds
_TRANSIENT = (
    *TRANSIENT_ERRORS,
    APIGoneError,
    APIUnauthorizedError,  # the next list waits for other credentials, or fails
    BrokenStreamError,
    TimeoutError,
)


async def follow(
    client: Client,
    resource: Resource,
    namespace: str | None,
    name: str,
    *,
    queue: str,
    timeout: float,
) -> AsyncGenerator[dict[str, Any] | None, None]:
    """Yield the states of one object, beginning with the current one; None while it is absent.

    The queue and the timeout are those of the lists, of which each stream needs one.
    Intermediate states can be missing. Streams that end or break are opened again.

    Raises:
        APIError: the object cannot be read or watched.
    """
    path, selection = resource.get_url(namespace=namespace), build_selection(name)
    params = {**selection, "watch": "true", "allowWatchBookmarks": "true"}
    attempt = parse_attempt("GET", path, params)
    backoff = Backoff(_PAUSES, jitter=0.2)
    while True:
        pause: float | None = 0.0
        try:
            listed = client.list_pages(resource, namespace, selection, queue=queue, timeout=timeout)
            page = [page async for page in listed][-1]
            yield page.items[0] if page.items else None
            limits = StreamLimits(client.options.connect_timeout, silence=_SILENCE)
            since = {"resourceVersion": page.resource_version}
            async with client.stream(path, {**params, **since}, limits=limits) as batches:
                async for lines in batches:
                    for line in lines:
                        kind, raw, _ = await parse_event(line, attempt)
                        backoff.reset()
                        if kind in CHANGES:
                            yield None if kind == "DELETED" else raw
        except _TRANSIENT as exc:
            pause = choose_pause(backoff, exc)
            logger.debug("%s. Retrying %s in %s s.", exc, attempt, format_pause(pause or 0))
        else:
            pause = backoff.next()  # a server that ends each stream at once must not be flooded
        await asyncio.sleep(pause or 0)


async def wait_served(
    client: Client, definition: Mapping[str, Any], timeout: float
) -> set[Resource]:
    """Wait until all versions of a CRD are served; return those that are not in time.

    The condition "Established" of a definition says nothing of new versions, but the discovery
    does. After that, lists can be refused for a second, while the storage begins.
    """
    spec, deadline = definition["spec"], asyncio.get_running_loop().time() + timeout
    group, plural = spec["group"], spec["names"]["plural"]
    served = (one["name"] for one in spec["versions"] if one.get("served"))
    missing = {Resource(group, version, plural) for version in served}
    while True:
        for kind in missing & (await discover(client, {group})).resources:
            try:
                await client.perform(Call("GET", kind.get_url(), {"limit": "1"}, is_retried=False))
            except APIConnectionError:
                continue
            except APIStatusError as exc:  # others are answers, such as a missing permission
                if exc.status in _NOT_YET:
                    continue
            missing.discard(kind)
        if not missing or asyncio.get_running_loop().time() > deadline:
            return missing
        await asyncio.sleep(_POLLING)


def describe(obj: dict[str, Any] | None, wish: str) -> str:
    """Return a text: the current state of an object with regard to a condition."""
    if obj is None:
        return "the object does not exist"
    condition = find_condition(obj, wish.partition("=")[0])
    if condition is None:
        version = obj["metadata"].get("resourceVersion")
        return f"the last state seen has the resource version {version}"
    why = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    age = ", for an older generation" if is_outdated(obj, condition) else ""
    return f"the condition is {condition.get('status')}{age} ({why})"
