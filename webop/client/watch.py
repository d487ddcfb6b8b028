"""The watch of one resource: a stream of events that survives all failures of the server.

Place in the flow: the stream of the reactor consumes :func:`watch`, one per resource and
namespace, and so keeps its memory of the cluster up to date.

States (the idea is of kube-rs)::

    EMPTY ──> LISTING ──> WATCHING <──┐ disconnected: resume after the last version seen
      ^           │           │ └─────┘
      └───────────┴───────────┘ the version is too old (410), or in doubt: list again

Listings come in the stream itself, or in pages before it, which takes twice as long.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webop.client.http.failed_requests import parse_attempt
from webop.client.http.requests import Selection, cut_object
from webop.client.http.streams import LineStream, StreamLimits
from webop.client.watch_events import BOOKMARK, CHANGES, BrokenStreamError, WatchEvent, parse_event
from webop.client.watch_recovery import Recovery, State, WatchOptions, WatchStatus
from webop.errors import APIStatusError, APIUnauthorizedError, WebopError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager

    from webop.client.api import Client
    from webop.objects.resources import Resource

__all__ = ["State", "WatchItem", "WatchOptions", "WatchStatus", "watch"]

logger = logging.getLogger(__name__)

# Seconds. A stream that ends earlier without anything new counts as failed.
_SHORT_STREAM = 1.0

# Seconds. A server ignores the request for a streaming list if its end is missing: there are no
# data for so long, or there are still changes before the end after so long.
_LIST_SILENCE = 10.0
_LIST_LIMIT = 300.0

# The statuses with which servers refuse parameters that they do not know or have switched off.
_UNKNOWN_PARAMETERS = frozenset({400, 422})

_EVERYTHING = Selection()
_END_ANNOTATION = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class ListingStarted:
    """All existing objects follow, of type None. Forget the unfinished listing, if there is one."""


@dataclass(frozen=True, slots=True)
class ListingFinished:
    """All existing objects have been yielded; others that were known before are gone."""

    resource_version: str


WatchItem = WatchEvent | ListingStarted | ListingFinished


async def watch(
    client: Client,
    resource: Resource,
    namespace: str | None,
    options: WatchOptions,
    status: WatchStatus | None = None,
    selection: Selection = _EVERYTHING,
) -> AsyncGenerator[WatchItem, None]:
    """Yield all objects of a resource, and then their changes, forever.

    Flow: ListingStarted, (None, object)…, ListingFinished, ("ADDED"|"MODIFIED"|"DELETED", object)…;
    then again from ListingStarted whenever changes were lost.

    The stream begins with the existing objects (Kubernetes API concepts: "Streaming lists").
    Otherwise they are read in pages of 500 before it: if the server has no streaming lists, or none
    at the moment, if the last one broke, or if ``options.streaming_list`` is off. Changes during
    the listing come after its objects: those in a streaming list before ListingFinished, as of type
    None or "DELETED".

    Guarantees:
        - No error ends it, unless ``status.gives_up``. Each error is logged once, and followed by a
          pause of 0.8 to 30 seconds, which grows while the error persists.
        - After a disconnect, the stream continues after the last change seen. If the changes since
          then are lost, everything is listed again.
        - At most one page of a list is in memory; of a streaming list, only the buffers of the
          connection.
        - ``metadata.managedFields`` are removed from the objects, unless the options keep them.

    Caveats:
        A listing can be interrupted and started again: what was yielded since the previous
        ListingStarted does not show which objects are gone. The consumer must handle that, cancel
        the watch when the resource is gone, and close the generator (:func:`contextlib.aclosing`).

    The watch updates ``status``, a new one. Objects that leave the selection come as "DELETED".
    """
    status = status or WatchStatus()
    watcher = Watcher(client, resource, namespace, options, status, selection)
    client.watches[status] = resource
    try:
        while True:
            try:
                if status.state is State.EMPTY:
                    watcher.begin_listing()
                    yield ListingStarted()
                if watcher.needs_pages:
                    async with aclosing(watcher.list_pages()) as objects:
                        async for event in objects:
                            yield event
                    yield watcher.finish_listing()
                async with watcher.open_stream() as batches:
                    watcher.begin(batches)
                    async for lines in batches:
                        for line in lines:
                            item = watcher.accept(*await parse_event(line, watcher.attempt))
                            if item is not None:
                                yield item
                watcher.end()
            except Exception as exc:  # noqa: BLE001 - a watch must survive all of them
                watcher.fail(exc)
            await asyncio.sleep(watcher.pause)
    finally:
        client.watches.pop(status, None)


class _NoStreamingListError(WebopError):
    """The server ignores the request for a streaming list."""


class Watcher:
    """The state of one watch across its streams, and its decisions."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str | None,
        options: WatchOptions,
        status: WatchStatus,
        selection: Selection,
    ) -> None:
        self._client = client
        self.resource = resource
        self._namespace = namespace
        self._options = options
        self._path = resource.get_url(namespace=namespace)
        self.attempt = parse_attempt("GET", self._path, {"watch": "true"})
        self._recovery = Recovery(self.attempt, options, status)
        self._is_healthy = False
        self._is_streaming = False
        self._stream: LineStream | None = None
        self._began_with = ""
        self.status = status
        self.selection = selection
        self.pause = 0.0

    @property
    def needs_pages(self) -> bool:
        """Whether the objects must be listed before the next stream, not in it."""
        return self.status.state is State.LISTING and not self._is_streaming

    def begin_listing(self) -> None:
        """Choose how to list: after a broken streaming list, in pages."""
        self.status.state = State.LISTING
        self._is_streaming = (
            self._options.streaming_list
            and not self.status.prefers_pages
            and self.resource.group not in self._client.paging_groups
        )

    async def list_pages(self) -> AsyncGenerator[WatchEvent, None]:
        """Yield all existing objects; remember the version of the list."""
        version = ""
        # The watch itself pauses, and reports failures in its status; so no retries here.
        reading = self._client.list_pages(
            self.resource, self._namespace, self.selection, is_retried=False
        )
        async with aclosing(reading) as pages:
            async for page in pages:
                version = page.resource_version
                objects = [item for item in page.items if _has_name(item)]
                skipped = len(page.items) - len(objects)
                if skipped:
                    text = "%s: skipped %d objects without a name."
                    logger.warning(text, self._path, skipped)
                # Release each object as soon as the consumer has it, not with the whole page.
                page.items.clear()
                objects.reverse()
                while objects:
                    yield None, self._strip(objects.pop())
        self.status.version = version

    def finish_listing(self) -> ListingFinished:
        """Note that all objects were yielded, as of the version in the status."""
        self.status.state = State.WATCHING
        self.status.prefers_pages = False
        if self._stream is not None:
            self._stream.limit(self._build_limits())
            self._recovery.has_watched = True
        return ListingFinished(self.status.version)

    def open_stream(self) -> AbstractAsyncContextManager[LineStream]:
        """Open a stream after the last version seen, or with a list first."""
        params = {"watch": "true", "allowWatchBookmarks": "true", **self.selection.params}
        if self.status.state is State.LISTING:
            # No version means the newest state, as for a list in pages.
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            params["resourceVersion"] = self.status.version
        if self._options.server_timeout is not None:
            params["timeoutSeconds"] = str(math.ceil(self._options.server_timeout))
        is_partial = self.selection.is_partial
        limits = self._build_limits()
        return self._client.stream(self._path, params, limits=limits, is_partial=is_partial)

    def begin(self, stream: LineStream) -> None:
        """Note that the server has accepted the stream."""
        self._stream = stream
        self.status.opened_at = asyncio.get_running_loop().time()
        self._began_with = self.status.version
        self._is_healthy = False
        if self.status.state is State.LISTING:
            silences = (self._options.inactivity_timeout, _LIST_SILENCE)
            silence = min(limit for limit in silences if limit is not None)
            stream.limit(StreamLimits(silence=silence))
        else:
            self._recovery.has_watched = True

    def accept(self, kind: Any, raw: dict[str, Any], version: str) -> WatchItem | None:
        """Return the item in a line of the stream; None if there is none."""
        if self.status.state is State.LISTING:
            return self._accept_listed(kind, raw, version)
        if version:
            self.status.version = version
        if not self._is_healthy:
            # Only a stale cache sends the version after which the stream begins.
            is_news = self.status.version != self._began_with or not version
            if is_news or kind == BOOKMARK:
                self._heal()
        return (kind, self._strip(raw)) if kind in CHANGES else None

    def _accept_listed(self, kind: Any, raw: dict[str, Any], version: str) -> WatchItem | None:
        """Return the item in a line of a streaming list; None if there is none.

        Changes during the list come in it, too. The versions mean nothing before the end, because
        the objects are not sorted by them.
        """
        if kind == BOOKMARK:
            annotations = raw["metadata"].get("annotations")
            is_end = isinstance(annotations, dict) and annotations.get(_END_ANNOTATION) == "true"
            if is_end and version:
                self.status.version = version
                return self.finish_listing()
        if kind == BOOKMARK or self.status.get_age() > _LIST_LIMIT:
            raise _NoStreamingListError("the list does not end")
        if kind not in CHANGES:
            return None
        return ("DELETED" if kind == "DELETED" else None), self._strip(raw)

    def end(self) -> None:
        """Note that the server ended the stream."""
        is_listing = self.status.state is State.LISTING
        if is_listing or (self.status.get_age() < _SHORT_STREAM and not self._is_healthy):
            end = "the stream ended before the list was complete"
            what = end if is_listing else "the server ended the stream at once"
            self.fail(BrokenStreamError(f"Cannot {self.attempt}: {what}"))
        else:
            self._heal()
            self._close()
            self._client.counters.restarts[self.resource.plural_name, "ended"] += 1
            self.pause = self._options.reconnect_backoff

    def fail(self, exc: Exception) -> None:
        """Note a failure: choose the pause, and whether to list again; raise it if it is final."""
        is_streaming = self.status.state is State.LISTING and self._is_streaming
        if is_streaming and self._is_declined(exc):
            self._turn_to_pages(exc)
            return
        if self._recovery.is_final(exc):
            raise exc
        self.status.prefers_pages = is_streaming and self._stream is not None
        self.pause = self._recovery.fail(exc, self.status.get_age())
        self._close()
        self._client.counters.restarts[self.resource.plural_name, "failed"] += 1

    def _is_declined(self, exc: Exception) -> bool:
        """Return whether the server refuses only the streaming list, not all lists.

        For example, it sends only pages (429) while it prepares its cache of a new kind.
        """
        if self._stream is None:
            is_refused = isinstance(exc, APIUnauthorizedError)
            return isinstance(exc, APIStatusError) and not is_refused
        return isinstance(exc, _NoStreamingListError | TimeoutError)

    def _turn_to_pages(self, exc: Exception) -> None:
        """List in pages at once; in all watches of the API group if its server has only pages."""
        reason = str(exc) or "it does not end"
        logger.debug("No streaming list of %s: %s. Reading pages.", self._path, reason)
        if self._stream is not None:
            self.status.state = State.EMPTY  # some objects may have been yielded
            self.status.prefers_pages = True
        if not isinstance(exc, APIStatusError) or exc.status in _UNKNOWN_PARAMETERS:
            self._client.paging_groups.add(self.resource.group)
        self._is_streaming = False
        self._close()
        self.pause = 0.0

    def _heal(self) -> None:
        self._is_healthy = True
        self._recovery.heal()

    def _close(self) -> None:
        """Note that there is no stream now."""
        self._stream = None
        self.status.opened_at = None

    def _strip(self, raw: dict[str, Any]) -> dict[str, Any]:
        if self.selection.is_partial:
            raw = cut_object(raw, self.resource)
        if not self._options.managed_fields:
            raw["metadata"].pop("managedFields", None)
        return raw

    def _build_limits(self) -> StreamLimits:
        options, networking = self._options, self._client.options
        connects = (options.connect_timeout, networking.connect_timeout, networking.request_timeout)
        return StreamLimits(
            connect=next((limit for limit in connects if limit is not None), None),
            silence=options.inactivity_timeout,
            total=options.client_timeout,
        )


def _has_name(raw: Any) -> bool:
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    return isinstance(metadata, dict) and bool(metadata.get("name"))
