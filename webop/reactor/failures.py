"""Failed requests about objects: what they mean, and what follows for the object and its kind.

The API server is *away* (no response, 5xx, 429, 401, permissions that may come back): the object
waits, and nothing is lost. It *denies* a write: the changes of handlers are dropped. The object is
*gone*: it rests until an event or a list. It was *outdated*: it is read, and written again.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from webop.aio.backoff import Backoff, format_pause
from webop.client.http.failed_requests import choose_pause, is_policy
from webop.errors import APIConflictError, APIError, APIStatusError
from webop.reactor.entry import Entry
from webop.reactor.queue import WorkQueue
from webop.settings.groups import OperatorSettings

logger = logging.getLogger(__name__)

_TRANSIENT: Final = frozenset({401, 408, 425, 429})
_PATIENCE: Final = 6  # attempts; then missing permissions are assumed to stay so
_IN_NAMESPACE: Final = 50  # objects that cannot be written; then no handlers begin in a namespace
_IN_KIND: Final = 100  # the same for all namespaces of a kind
_TRIALS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds between objects that begin nevertheless


class Failure(enum.Enum):
    """The meaning of a failed request."""

    GONE = enum.auto()
    """The object is gone, or another one has its name now."""
    DENIED = enum.auto()
    """The API server rejects it for good."""
    OUTDATED = enum.auto()
    """The object has changed meanwhile."""
    AWAY = enum.auto()
    """The API server is not available."""


class DeniedError(APIError):
    """The API server rejects a patch for good."""


class NotStoredError(DeniedError):
    """The API server has accepted a patch, and silently dropped a part of it."""


def classify(exc: BaseException, attempts: int = 0) -> Failure:
    """Return what a failed request means, after so many failed attempts of the object."""
    if isinstance(exc, DeniedError):
        return Failure.DENIED
    if not isinstance(exc, APIStatusError):
        return Failure.AWAY
    causes = exc.details.get("causes")
    fields = [cause.get("field") for cause in causes] if isinstance(causes, list) else []
    if exc.status == 404:  # what a webhook has looked for; or an absent subresource or kind
        return Failure.DENIED if exc.details.get("name") else Failure.AWAY
    if exc.status == 422 and "metadata.uid" in fields:
        return Failure.GONE
    if exc.status == 403 and not is_policy(str(exc)):
        return Failure.DENIED if attempts >= _PATIENCE else Failure.AWAY
    if exc.status == 409:
        return Failure.OUTDATED
    is_final = 400 <= exc.status < 500 and exc.status not in _TRANSIENT
    return Failure.DENIED if is_final else Failure.AWAY


@dataclass(slots=True, eq=False)
class Place:
    """A namespace of a kind, or the whole kind without its closed namespaces.

    Handlers begin in it unless at least ``limit`` of its objects cannot be written, and more of its
    writes have failed than succeeded since: unwritten outcomes would pile up in memory. A hold of
    the queue keeps the other objects then. One of them begins after each of some pauses, since the
    reason can be in some objects only.

    Attributes:
        name: for the log.
        limit: the number of objects.
        away: the objects that cannot be written.
        balance: the failed minus the succeeded writes since there are so many.
        is_closed: whether no handlers begin.
        chosen: the object that begins nevertheless.
    """

    name: str
    limit: int
    away: set[Entry] = field(default_factory=set)
    balance: int = 0
    is_closed: bool = False
    chosen: Entry | None = None
    _pauses: Backoff = field(default_factory=lambda: Backoff(_TRIALS))
    _trial: asyncio.TimerHandle | None = None

    def note(self, obj: Entry, exc: Exception | None, queue: WorkQueue) -> None:
        """Record a write that the API server could not answer, or one that it has answered."""
        if exc is None:
            self.away.discard(obj)
            self._pauses.reset()
        else:
            self.away.add(obj)
        is_many = len(self.away) >= self.limit
        change = 1 if exc else -1
        self.balance = max(-self.limit, self.balance + change) if is_many else 0
        if self.is_closed and self.balance <= 0:
            self.is_closed = False
            if self._trial is not None:
                self._trial.cancel()
            queue.unhold(self)
            logger.info("Can write %s again.", self.name)
        elif not self.is_closed and self.balance > 0:
            self.is_closed = True
            queue.hold(self)
            self._schedule(queue)
            text = "Cannot write %s. Their handlers wait until a write succeeds. The last error: %s"
            logger.warning(text, self.name, exc)

    def _schedule(self, queue: WorkQueue) -> None:
        pause = self._pauses.next() or 0.0
        self._trial = asyncio.get_running_loop().call_later(pause, self._choose, queue)

    def _choose(self, queue: WorkQueue) -> None:
        self.chosen = queue.release(self)
        self._schedule(queue)


class Outages:
    """The places of one kind, by namespace; the empty name is the whole kind."""

    def __init__(self, name: str, queue: WorkQueue) -> None:
        self._name = name
        self._queue = queue
        self._kind = Place(name, _IN_KIND)
        self._places: dict[str, Place] = {}

    def note(self, obj: Entry, exc: Exception | None) -> None:
        """Record a write that the API server could not answer, or one that it has answered."""
        namespace = obj.namespace or ""
        place = self._places.get(namespace)
        if place is None:
            if exc is None:
                return
            text = f"{self._name} in {namespace}" if namespace else self._name
            place = self._places[namespace] = Place(text, _IN_NAMESPACE)
        was_closed = place.is_closed
        place.note(obj, exc, self._queue)
        if place.is_closed or not namespace:
            if not was_closed:
                self._kind.away -= place.away
            return
        self._kind.note(obj, exc, self._queue)
        if not place.away and not place.is_closed:
            del self._places[namespace]

    def find_hold(self, obj: Entry) -> Place | None:
        """Return the place whose hold keeps handlers of an object from beginning, if any."""
        for place in (self._places.get(obj.namespace or ""), self._kind):
            if place is not None and place.is_closed:
                if place.chosen is not obj:
                    return place
                place.chosen = None
        return None


def fail(
    obj: Entry, exc: Exception, settings: OperatorSettings, level: int, extra: dict[str, Any]
) -> float | None:
    """Begin the pause of an object after a failure, which is logged; return its seconds.

    None is for no retry before its next change.

    After failures of the API server, the pauses of ``settings.networking`` come first, as for all
    requests, then those of ``settings.batching``, of which the last one repeats.
    """
    is_expected = isinstance(exc, APIError)
    is_away = is_expected and classify(exc) is not Failure.DENIED
    if obj.backoff is None:
        first = settings.networking.error_backoffs if is_away else ()
        phases = Backoff(first, is_endless=False), Backoff(settings.batching.error_delays)
        pauses = chain.from_iterable(iter(phase.next, None) for phase in phases)
        obj.backoff = Backoff(pauses, is_endless=False)
    is_enforced = settings.networking.enforce_retry_after
    delay = choose_pause(obj.backoff, exc, is_enforced=is_enforced)
    obj.not_before = asyncio.get_running_loop().time() + (delay or 0.0)
    known, obj.error = obj.error, (type(exc).__name__, repr(exc))
    if isinstance(exc, APIConflictError) or obj.error == known:
        level = logging.DEBUG
    elif not is_away:
        level = logging.WARNING if isinstance(exc, NotStoredError) else logging.ERROR
    what = exc if is_expected else " ".join([f"{exc!r}.", *getattr(exc, "__notes__", ())])
    text = "No retry before its next change."
    if delay is not None:
        text = f"Retrying in {format_pause(delay)} s."
    logger.log(level, "%s %s", what, text, exc_info=None if is_expected else exc, extra=extra)
    return delay
