"""Where nothing can be written: handlers begin there when a write has succeeded.

A hold of the queue keeps the objects of such a place. :mod:`webop.reactor.failures` tells what a
failure means for one object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from webop.aio.backoff import Backoff
from webop.reactor.entry import Entry
from webop.reactor.queue import WorkQueue

logger = logging.getLogger(__name__)

_IN_NAMESPACE: Final = 50  # objects that cannot be written; then no handlers begin in a namespace
_IN_KIND: Final = 100  # the same for all namespaces of a kind
_TRIALS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds between turns in what is closed


@dataclass(slots=True, eq=False)
class Place:
    """A namespace of a kind, or the whole kind without its closed namespaces.

    It closes when at least ``limit`` of its objects cannot be written, and more of its writes have
    failed than succeeded since: unwritten outcomes would pile up in memory, and attempts would keep
    the workers from other places. A hold of the queue keeps its objects then. After each of some
    pauses, one of them has its turn; the first write that succeeds opens the place.

    Attributes:
        name: for the log.
        limit: the number of objects.
        away: the objects that cannot be written.
        balance: the failed minus the succeeded writes since there are so many.
        chosen: the object that has its turn nevertheless.
    """

    name: str
    limit: int
    away: set[Entry] = field(default_factory=set)
    balance: int = 0
    chosen: Entry | None = None
    _pauses: Backoff = field(default_factory=lambda: Backoff(_TRIALS))
    _trial: asyncio.TimerHandle | None = None

    @property
    def is_closed(self) -> bool:
        """Whether objects wait until it opens."""
        return self._trial is not None

    def note(self, obj: Entry, exc: Exception | None, outages: Outages) -> None:
        """Record a write that the API server could not answer, or one that it has answered."""
        if exc is None:
            self.away.discard(obj)
            self._open(outages)
        else:
            self.away.add(obj)
        is_many = len(self.away) >= self.limit
        change = 1 if exc else -1
        self.balance = max(-self.limit, self.balance + change) if is_many else 0
        if self.balance > 0 and not self.is_closed:
            outages.queue.hold(self)
            text = "Cannot write %s. Their handlers wait until a write succeeds. The last error: %s"
            logger.warning(text, self.name, exc)
            self._schedule(outages)

    def leave(self, obj: Entry, outages: Outages) -> None:
        """Forget an object of which nothing must be written."""
        self.away.discard(obj)
        if len(self.away) < self.limit:
            self._open(outages)
        elif obj is self.chosen:
            self._choose(outages)

    def _schedule(self, outages: Outages) -> None:
        pause = self._pauses.next() or 0.0
        self._trial = asyncio.get_running_loop().call_later(pause, self._try, outages)

    def _try(self, outages: Outages) -> None:
        self._choose(outages)
        self._schedule(outages)

    def _choose(self, outages: Outages) -> None:
        self.chosen = outages.queue.release(self)
        if self.chosen is not None:
            self.chosen.not_before = 0.0
            outages.start()

    def _open(self, outages: Outages) -> None:
        if self._trial is not None:
            self._trial.cancel()
            self._trial, self.chosen = None, None
            self.balance = -self.limit  # it closes again only if most writes fail
            self._pauses.reset()
            outages.queue.unhold(self)
            outages.start()
            logger.info("Can write %s again.", self.name)


class Outages:
    """The places of one kind, by namespace.

    Args:
        name: of the kind, for the log.
        queue: its objects.
        start: starts workers.
    """

    def __init__(self, name: str, queue: WorkQueue, start: Callable[[], None]) -> None:
        self.queue = queue
        self.start = start
        self._kind = Place(name, _IN_KIND)
        self._places: dict[str, Place] = {}

    def note(self, obj: Entry, exc: Exception | None) -> None:
        """Record a write that the API server could not answer, or one that it has answered."""
        namespace = obj.namespace or ""
        place = self._places.get(namespace)
        if place is None and exc is not None:
            name = f"{self._kind.name} in {namespace}" if namespace else self._kind.name
            place = self._places[namespace] = Place(name, _IN_NAMESPACE)
        if place is not None:
            place.note(obj, exc, self)
            if place.is_closed:
                for each in place.away & self._kind.away:  # they do not count for the kind
                    self._kind.leave(each, self)
                return
            if not place.away:
                del self._places[namespace]
        self._kind.note(obj, exc, self)

    def leave(self, obj: Entry) -> None:
        """Forget an object of which nothing must be written."""
        self._kind.leave(obj, self)
        if (place := self._places.get(namespace := obj.namespace or "")) is not None:
            place.leave(obj, self)
            if not place.away:
                del self._places[namespace]

    def find_hold(self, obj: Entry) -> Place | None:
        """Return the place whose hold keeps an object from its turn, if any."""
        for place in (self._places.get(obj.namespace or ""), self._kind):
            if place is not None and place.is_closed and place.chosen is not obj:
                return place
        return None
