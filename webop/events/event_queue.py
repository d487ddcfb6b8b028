"""The Kubernetes Events that wait to be sent: repetitions are counted. No I/O, no clock.

Flow: :mod:`webop.events.loggers` adds every message with :meth:`EventQueue.add`, sends the Event
that :meth:`EventQueue.get` returns, and reports it with :meth:`EventQueue.done`.

The rules, as in client-go (``tools/record``) but without a limit for each object:

- A message that repeats one about the same object, with the same type, reason and text, within
  ``posting.aggregation_interval`` raises the count of its Event instead of making another one.
  Repetitions share one request while it waits.
- All Events together may cause ``posting.burst`` requests at once, then ``posting.rate`` a second.
- Up to ``posting.queue_limit`` Events wait; further messages are dropped and counted.

All times but ``moment`` and ``first`` are of a monotonic clock, in seconds.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from webop.aio.backoff import Backoff
from webop.objects.body import ObjectReference
from webop.settings.groups import PostingSettings

_REPORT_DELAY = 1.0  # seconds from a loss to its report, as more can follow at once
_REPORT_INTERVAL = 60.0  # seconds


class Message(NamedTuple):
    """A message about an object.

    Attributes:
        moment: in seconds of the Unix time.
        backoff: the pauses between the attempts to post it; None for the usual ones.
    """

    reference: ObjectReference
    type: str
    reason: str
    text: str
    moment: float
    backoff: Backoff | None = None


@dataclass(slots=True, eq=False)
class CountedEvent:
    """One Kubernetes Event, as it should be in the cluster."""

    message: Message  # the last one
    first: float  # the moment of the first message, Unix time
    seen: float  # when the last message was added
    count: int = 0  # how many messages it stands for
    sent: int = 0  # the count in the last request
    name: str = ""  # empty until the first request
    is_posted: bool = False  # whether the Event is in the cluster, as far as is known
    is_waiting: bool = False  # whether a request for it waits or runs


class Loss(enum.Enum):
    """Why messages are not posted; the values are what is reported."""

    QUEUE = "because too many were waiting (posting.rate, posting.queue_limit)"
    NAMESPACE = "in namespaces that are deleted"
    FAILURE = "failed"


class Losses:
    """Counts what is not posted, and reports it once a minute."""

    def __init__(self) -> None:
        self._counts: dict[Loss, int] = {}
        self._failure = ""
        self._due = 0.0
        self._next = 0.0

    def note(self, loss: Loss, now: float, failure: str = "") -> None:
        """Count a lost message; keep the reason for the report, if there is one."""
        if not self._counts:
            self._due = max(now + _REPORT_DELAY, self._next)
        self._counts[loss] = self._counts.get(loss, 0) + 1
        self._failure = failure or self._failure

    def compute_pause(self, now: float) -> float | None:
        """Return the seconds until there is something to report; None if there is nothing."""
        return max(0.0, self._due - now) if self._counts else None

    @property
    def is_alarming(self) -> bool:
        """Whether there are other losses than for deleted namespaces."""
        return bool(self._counts.keys() - {Loss.NAMESPACE})

    def pop_report(self, now: float) -> str:
        """Return the report of losses since the last one; empty if there are none."""
        if not self._counts:
            return ""
        total = sum(self._counts.values())
        parts = ", ".join(f"{self._counts[key]} {key.value}" for key in Loss if key in self._counts)
        noun = "Kubernetes Event was" if total == 1 else "Kubernetes Events were"
        text = f"{total} {noun} not posted: {parts}."
        if self._failure:
            text += f" The last failure: {self._failure}"
        self._counts, self._failure, self._next = {}, "", now + _REPORT_INTERVAL
        return text


class EventQueue:
    """Turns messages into Events, in the order of the messages.

    Guarantees:
        - ``queue_limit`` and ``memory_limit`` bound the memory.
        - :attr:`losses` counts all messages that never become part of an Event.

    Caveats:
        Not thread-safe: the caller must lock. Changed settings apply at the next call.
    """

    def __init__(self, settings: PostingSettings, now: float) -> None:
        self.losses = Losses()
        self._settings = settings
        self._permits = float(settings.burst)  # requests that can be sent at once
        self._moment = now  # when the permits were counted
        self._known: dict[tuple[str, ...], CountedEvent] = {}  # the least recent ones come first
        self._queue: deque[CountedEvent] = deque()
        self._postponed = 0

    def add(self, message: Message, now: float) -> None:
        """Count a message: it is a new Event, a repetition, or dropped."""
        self._forget(now)
        key = (message.reference["uid"], message.type, message.reason, message.text)
        event = self._known.get(key)
        if event is None or not event.is_waiting:
            if not self._has_place(message.type):
                self.losses.note(Loss.QUEUE, now)
                return
            if event is None:
                event = CountedEvent(message, message.moment, now)
            event.is_waiting = True
            self._queue.append(event)
        event.count += 1
        event.message, event.seen = message, now
        self._known.pop(key, None)
        self._known[key] = event
        while len(self._known) > self._settings.memory_limit:
            del self._known[next(iter(self._known))]

    def _forget(self, now: float) -> None:
        """Forget the Events that count no repetitions any more."""
        known, oldest = self._known, now - self._settings.aggregation_interval
        while known and known[key := next(iter(known))].seen < oldest:
            del known[key]

    def get(self, now: float) -> CountedEvent | None:
        """Return the Event to send now; None if none is due.

        It stays the first one, so that nothing is lost, until it is done or postponed.
        """
        if self.compute_pause(now) != 0:
            return None
        self._permits -= 1
        event = self._queue[0]
        event.sent = event.count
        return event

    def compute_pause(self, now: float) -> float | None:
        """Return the seconds until :meth:`get` has something; None if nothing waits."""
        rate, burst = self._settings.rate, self._settings.burst
        self._permits = min(burst, self._permits + (now - self._moment) * rate)
        self._moment = now
        return max(0.0, (1 - self._permits) / rate) if self._queue else None

    def done(self, event: CountedEvent) -> None:
        """Remove the first Event, which was sent or given up; repetitions since then wait again."""
        self._queue.popleft()
        event.is_waiting = event.count > event.sent
        if event.is_waiting:
            self._queue.append(event)

    def postpone(self) -> None:
        """Remove the first Event until :meth:`resume`; meanwhile it keeps its place."""
        self._queue.popleft()
        self._postponed += 1

    def resume(self, event: CountedEvent) -> None:
        """Queue an Event again that was postponed."""
        self._postponed -= 1
        self._queue.append(event)

    def _has_place(self, kind: str) -> bool:
        """Return whether the queue has space; Normal Events can use only half of it."""
        limit = self._settings.queue_limit
        waiting = len(self._queue) + self._postponed
        return waiting < (limit if kind != "Normal" else (limit + 1) // 2)
