"""The watch of one resource: a stream of events that survives whatever happens to the server.

Place in the flow: the dispatcher of the reactor consumes :func:`watch`, one per resource and
namespace, and keeps its memory of the cluster equal to the cluster by it.

States (the idea is of kube-rs)::

    EMPTY ──> LISTING ──> WATCHING <──┐ disconnected: resume after the last version seen
      ^           │           │ └─────┘
      └───────────┴───────────┘ the version is too old (410), or it is in doubt: list anew
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import math
import random
from typing import TYPE_CHECKING, Any, Literal, Protocol

import orjson

from webop.client.failures import build_event_error, parse_attempt
from webop.client.streams import LineStream, StreamLimits
from webop.errors import (
    APIConnectionError,
    APIForbiddenError,
    APIGoneError,
    APINotFoundError,
    APIStatusError,
    APITooManyRequestsError,
    APIUnauthorizedError,
    LoginError,
    WebopError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from webop.client.api import Client
    from webop.objects.resources import Resource

logger = logging.getLogger(__name__)

WatchType = Literal["ADDED", "MODIFIED", "DELETED"] | None
WatchEvent = tuple[WatchType, dict[str, Any]]
_TYPES = frozenset({"ADDED", "MODIFIED", "DELETED"})

# Seconds. The pauses after failures: from the first one, doubled each time, up to the limit.
_FIRST_BACKOFF = 0.8
_BACKOFF_LIMIT = 30.0

# After so many failures in a row of a server that does answer, the resource version itself is
# suspected: after a restore of etcd from a backup, for example, no event ever comes after it.
_DOUBTS_LIMIT = 3

# Seconds. A stream that ends earlier with nothing in it has failed, whatever it says.
_SHORT_STREAM = 1.0

# Characters of a broken line that get into the logs.
_QUOTE_LIMIT = 200


class WatchOptions(Protocol):
    """What a watch needs to know, in seconds; ``settings.watching`` satisfies it. Read live."""

    @property
    def server_timeout(self) -> float | None:
        """After how long the server is asked to end each stream."""

    @property
    def client_timeout(self) -> float | None:
        """After how long the client ends each stream itself."""

    @property
    def connect_timeout(self) -> float | None:
        """The limit for the TCP handshake; by default, as for other requests."""

    @property
    def reconnect_backoff(self) -> float:
        """The pause between two streams when nothing is wrong."""

    @property
    def inactivity_timeout(self) -> float | None:
        """After how much silence the connection is considered dead."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListingStarted:
    """All existing objects follow, of type None. Forget the unfinished listing, if there is one."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListingFinished:
    """All existing objects have been yielded; others that were known before are gone."""

    resource_version: str


WatchItem = WatchEvent | ListingStarted | ListingFinished


class State(enum.Enum):
    """What a watch does at the moment."""

    EMPTY = "empty"
    LISTING = "listing"
    WATCHING = "watching"


@dataclasses.dataclass(slots=True)
class WatchStatus:
    """How a watch is doing: written by the watch, read by probes and metrics.

    Attributes:
        state: what it does.
        is_connected: whether its stream is open now. For some moments in between, and in
            outages, it is not.
        failures: how many in a row, up to the last event or bookmark (one comes each minute).
        error: the last one of them, in words; empty when all is well.
        version: the resource version that has been reached; empty until the first listing ends.
    """

    state: State = State.EMPTY
    is_connected: bool = False
    failures: int = 0
    error: str = ""
    version: str = ""


async def watch(
    client: Client,
    resource: Resource,
    namespace: str | None,
    options: WatchOptions,
    status: WatchStatus | None = None,
) -> AsyncGenerator[WatchItem, None]:
    """Yield all objects of a resource, and then their changes, for ever.

    Flow: ListingStarted, (None, object)…, ListingFinished, ("ADDED"|"MODIFIED"|"DELETED", object)…;
    then again from ListingStarted whenever the changes in between are lost.

    Guarantees:
        - No error ends it. Each trouble is logged once, and followed by a pause of 0.8 to 30
          seconds, growing while it lasts.
        - After any disconnect, the stream continues with the changes after the last one seen;
          if they are lost, everything is listed anew.
        - ``metadata.managedFields`` are dropped from the objects.

    Caveats:
        A listing can be broken off and started again: what was yielded since the previous
        ListingStarted says nothing about what has vanished. It is up to the consumer to notice
        that, to cancel the watch when the resource is gone, and to close the generator
        (:func:`contextlib.aclosing`).

    Args:
        client: where to.
        resource: what to watch.
        namespace: where to watch; None for the whole cluster.
        options: time-outs and pauses.
        status: where to tell how it is going.
    """
    watcher = _Watcher(client, resource, namespace, options, status or WatchStatus())
    while True:
        try:
            if watcher.status.state is not State.WATCHING:
                watcher.status.state = State.LISTING
                yield ListingStarted()
                async for raw in watcher.list_objects():
                    yield None, raw
                watcher.status.state = State.WATCHING
                yield ListingFinished(watcher.status.version)
            async with watcher.open_stream() as batches:
                watcher.begin()
                async for lines in batches:
                    for line in lines:
                        event = watcher.parse(line)
                        if event is not None:
                            yield event
            watcher.end()
        except Exception as exc:  # noqa: BLE001 - a watch has to survive all of them
            watcher.fail(exc)
        await asyncio.sleep(watcher.pause)


class _BrokenStreamError(WebopError):
    """The server has answered with something that is not a stream of events."""


class _Watcher:
    """The memory of one watch between its streams, and its decisions."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str | None,
        options: WatchOptions,
        status: WatchStatus,
    ) -> None:
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._options = options
        self._path = resource.get_url(namespace=namespace)
        self._attempt = parse_attempt("GET", self._path, {"watch": "true"})
        self._doubts = 0
        self._is_refused = False
        self._is_gone = False
        self._is_healthy = False
        self._began_at: float | None = None
        self.status = status
        self.pause = 0.0

    async def list_objects(self) -> AsyncIterator[dict[str, Any]]:
        """Yield all existing objects; remember the version of the list."""
        # The pauses are up to the watch, and it tells how it is going; hence no retries here.
        pages = self._client.list_pages(self._resource, self._namespace, is_retried=False)
        version = ""
        async for page in pages:
            version = page.resource_version
            objects = [item for item in page.items if _has_name(item)]
            if len(objects) < len(page.items):
                skipped = len(page.items) - len(objects)
                logger.warning("%s: %d objects without a name are skipped.", self._path, skipped)
            # Each object is let go as soon as the consumer has it, not with the whole page.
            page.items.clear()
            objects.reverse()
            while objects:
                raw = objects.pop()
                raw["metadata"].pop("managedFields", None)
                yield raw
        self.status.version = version

    def open_stream(self) -> AbstractAsyncContextManager[LineStream]:
        """Open the next stream, after the last version seen."""
        options, networking = self._options, self._client.options
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.status.version,
        }
        if options.server_timeout is not None:
            params["timeoutSeconds"] = str(math.ceil(options.server_timeout))
        connects = (options.connect_timeout, networking.connect_timeout, networking.request_timeout)
        limits = StreamLimits(
            connect=next((limit for limit in connects if limit is not None), None),
            silence=options.inactivity_timeout,
            total=options.client_timeout,
        )
        # A server that starts, or an authentication webhook that stumbles, can refuse good
        # credentials once. They are blamed when it happens again after the pause.
        return self._client.stream(
            self._path, params, limits=limits, is_trusting=not self._is_refused
        )

    def begin(self) -> None:
        """Take note that the server has accepted the stream."""
        self._began_at = asyncio.get_running_loop().time()
        self._is_healthy = False
        self.status.is_connected = True

    def parse(self, line: bytes) -> WatchEvent | None:
        """Return the event of a line; None if it brings no object.

        Raises:
            APIStatusError: it is an event of type ERROR.
            _BrokenStreamError: it is not an event.
        """
        try:
            data = orjson.loads(line)
            kind, raw = data["type"], data["object"]
            if kind == "ERROR":
                raise build_event_error(self._attempt, raw)
            metadata = raw["metadata"]
            version = metadata.get("resourceVersion")
            if kind in _TYPES:
                metadata["name"]  # it must be there
                metadata.pop("managedFields", None)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            message = f"Cannot {self._attempt}: the server has sent no event, but {_quote(line)}"
            raise _BrokenStreamError(message) from exc
        if version:
            self.status.version = version
        if not self._is_healthy:
            self._heal()
        return (kind, raw) if kind in _TYPES else None

    def end(self) -> None:
        """Take note that the stream has ended as it should."""
        if not self._is_healthy and self._get_duration() < _SHORT_STREAM:
            message = f"Cannot {self._attempt}: the server ends the stream at once"
            self.fail(_BrokenStreamError(message))
        else:
            self._heal()
            self._began_at = None
            self.status.is_connected = False
            self.pause = self._options.reconnect_backoff

    def fail(self, exc: Exception) -> None:
        """Take note of a failure: decide how long to pause, and whether to list anew."""
        status = self.status
        if self._get_duration() > _BACKOFF_LIMIT and not isinstance(exc, TimeoutError):
            self._heal()  # it was fine in between, although nothing happened
        self._began_at = None
        status.is_connected = False
        self.pause = self._select_pause(exc)
        self._is_refused = isinstance(exc, APIUnauthorizedError)
        self._is_gone = self._is_gone or isinstance(exc, APIGoneError)
        self._doubts += not isinstance(exc, _NO_DOUBT)
        if isinstance(exc, APIGoneError | APINotFoundError) or self._doubts >= _DOUBTS_LIMIT:
            status.state = State.EMPTY
            self._doubts = 0
        status.failures += 1
        self._log(exc)

    def _get_duration(self) -> float:
        """Return for how long the stream has lasted; 0 if there was none."""
        now = asyncio.get_running_loop().time()
        return 0.0 if self._began_at is None else now - self._began_at

    def _select_pause(self, exc: Exception) -> float:
        if isinstance(exc, APIGoneError) and not self._is_gone:
            return self._options.reconnect_backoff  # the server is fine: list anew at once
        ceiling = min(_BACKOFF_LIMIT, 2 * _FIRST_BACKOFF * 2 ** min(self.status.failures, 10))
        pause = random.uniform(ceiling / 2, ceiling)  # noqa: S311 - not for cryptography
        if isinstance(exc, APIStatusError) and exc.retry_after is not None:
            return max(pause, min(exc.retry_after, _BACKOFF_LIMIT))
        return pause

    def _heal(self) -> None:
        if self.status.error:
            logger.info("Back to normal: %s.", self._attempt)
        self._is_healthy = True
        self._is_refused = False
        self._is_gone = False
        self._doubts = 0
        self.status.failures = 0
        self.status.error = ""

    def _log(self, exc: Exception) -> None:
        message = str(exc).rstrip(".")
        if isinstance(exc, TimeoutError):
            silence = self._options.inactivity_timeout
            message = f"Cannot {self._attempt}: the server has been silent for {silence} s"
        how = "continuing" if self.status.state is State.WATCHING else "listing anew"
        is_known = isinstance(exc, WebopError | TimeoutError)
        is_usual = isinstance(exc, APIGoneError | TimeoutError | APIConnectionError)
        level = logging.INFO if is_usual and self.status.failures == 1 else logging.WARNING
        if message == self.status.error:
            level = logging.DEBUG
        self.status.error = message
        logger.log(
            level, "%s; %s in %.1f s.", message, how, self.pause, exc_info=None if is_known else exc
        )


# Failures that say nothing about the version from which the stream is to be continued.
_NO_DOUBT = (
    APIConnectionError,
    APIForbiddenError,
    APITooManyRequestsError,
    APIUnauthorizedError,
    LoginError,
)


def _has_name(raw: Any) -> bool:
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    return isinstance(metadata, dict) and bool(metadata.get("name"))


def _quote(line: bytes) -> str:
    text = line[:_QUOTE_LIMIT].decode("utf-8", "replace")
    return repr(text) + ("..." if len(line) > _QUOTE_LIMIT else "")
