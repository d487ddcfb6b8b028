"""Decide which messages about objects become Kubernetes Events, and when. No I/O, no clock.

Flow: :mod:`webop.posting` passes every message to :meth:`Correlator.take_in`, and gets the Events
to send from :meth:`Correlator.pick`, one by one.

The rules are like those of client-go (``tools/record/events_cache.go``):

- A message that repeats one of the same object within ``posting.aggregation_interval`` raises the
  count of its Event instead of making another one. Repetitions share one update while it waits.
- Beyond ``posting.aggregation_limit`` different messages of one type and reason about an object,
  the others share one combined Event, which shows the last of them.
- An object may cause ``posting.object_burst`` requests at once for each type of Events, then one
  in every ``posting.object_interval``. Updates wait until then, so that the count is right in the
  end; new Events are not posted.
- All objects together may cause ``posting.burst`` requests at once, then ``posting.rate`` a second.
  At most ``posting.queue_limit`` requests wait for that.

Requests keep the order of messages. All times but ``moment`` are of a monotonic clock, in seconds.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from webop.backoff import Backoff
from webop.objects.body import ObjectReference
from webop.settings import PostingSettings

_TYPES = frozenset({"Normal", "Warning", "Error"})
_RECHECK = 1.0  # seconds, at least, between checks for space in the queue
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


class Loss(enum.Enum):
    """Why messages are not posted; the values are what is reported."""

    OBJECT = "over the limits of their objects (posting.object_burst)"
    QUEUE = "because too many were waiting (posting.rate, posting.queue_limit)"
    NAMESPACE = "in namespaces that are deleted"
    FAILURE = "failed"


class TokenBucket:
    """Permits that come at a rate, and are saved up to a burst."""

    __slots__ = ("_moment", "_tokens")

    def __init__(self, burst: float, now: float) -> None:
        self._tokens = float(burst)
        self._moment = now

    def compute_pause(self, rate: float, burst: float, now: float) -> float:
        """Return the seconds until there is a permit; 0 if there is one."""
        self._tokens = min(burst, self._tokens + (now - self._moment) * rate)
        self._moment = now
        return max(0.0, (1 - self._tokens) / rate)

    def take(self) -> None:
        """Use a permit up."""
        self._tokens -= 1


@dataclass(slots=True, eq=False)
class Stream:
    """The recent Events of one type about one object."""

    reference: ObjectReference
    bucket: TokenBucket
    entries: dict[int, Entry] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Entry:
    """One Kubernetes Event, as it should be in the cluster."""

    stream: Stream
    type: str
    reason: str
    text: str
    first: float  # the moment of the first message, Unix time
    last: float  # the moment of the last message, Unix time
    seen: float  # the same by the monotonic clock
    is_combined: bool = False  # whether it is shared by different messages
    count: int = 1  # how many messages it stands for
    name: str = ""  # empty until the first request
    is_posted: bool = False  # whether the Event is in the cluster, as far as is known
    is_waiting: bool = False  # whether a request for it waits to be picked
    backoff: Backoff | None = None  # of the last message


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
        """Whether there are other losses than for deleted namespaces and limits of objects."""
        return bool(self._counts.keys() - {Loss.NAMESPACE, Loss.OBJECT})

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


class Correlator:
    """Turns messages into Events.

    Guarantees:
        - ``queue_limit`` and ``memory_limit`` bound the memory.
        - :attr:`losses` counts all messages that never become part of an Event.

    Caveats:
        Not thread-safe: the caller must lock. Changed settings apply at the next call.
    """

    def __init__(self, settings: PostingSettings, now: float) -> None:
        self.losses = Losses()
        self._settings = settings
        self._bucket = TokenBucket(settings.burst, now)
        self._streams: dict[tuple[str, str], Stream] = {}  # the least recently used come first
        self._remembered = 0  # entries in all streams
        self._queue: deque[Entry] = deque()
        self._held: list[tuple[float, int, Entry]] = []  # a heap by the time of the next look
        self._serial = itertools.count()

    def take_in(self, message: Message, now: float) -> None:
        """Decide on a message: it is a new Event, a repetition, or lost."""
        kind = message.type if message.type in _TYPES else ""
        identity = (message.reference["uid"], kind)
        if identity not in self._streams and not self._has_place(message.type):
            self.losses.note(Loss.QUEUE, now)
            return
        stream = self._recall_stream(identity, message.reference, now)
        key = hash((message.type, message.reason, message.text))
        entry = stream.entries.get(key)
        if entry is None or self._is_old(entry, now):
            for old in [key for key, each in stream.entries.items() if self._is_old(each, now)]:
                del stream.entries[old]
                self._remembered -= 1
            alike = (message.type, message.reason)
            similar = [e for e in stream.entries.values() if (e.type, e.reason) == alike]
            if len(similar) >= self._settings.aggregation_limit:
                key = _build_combined_key(message)
            entry = stream.entries.get(key)
        if entry is None:
            self._add(stream, key, message, now)
            return
        entry.count += 1
        entry.last, entry.seen = message.moment, now
        entry.text = message.text  # the same, unless it is a combined Event
        entry.backoff = message.backoff
        if not entry.is_waiting:
            self._enqueue(entry, now)

    def pick(self, now: float) -> Entry | None:
        """Return the next Event to be sent, new or with another count; None if none is due."""
        while self._held and self._held[0][0] <= now:
            self._enqueue(heapq.heappop(self._held)[2], now)
        if not self._queue or self._compute_throttle(now) > 0:
            return None
        self._bucket.take()
        entry = self._queue.popleft()
        entry.is_waiting = False
        return entry

    def put_back(self, entry: Entry, until: float | None = None) -> None:
        """Queue an Event again that could not be sent: as the next one, or for a later time."""
        if entry.is_waiting:  # an update of it waits already
            self._queue = deque(item for item in self._queue if item is not entry)
            self._held = [item for item in self._held if item[2] is not entry]
            heapq.heapify(self._held)
        entry.is_waiting = True
        if until is None:
            self._queue.appendleft(entry)
        else:
            heapq.heappush(self._held, (until, next(self._serial), entry))

    def compute_pause(self, now: float) -> float | None:
        """Return the seconds until :meth:`pick` has something; None if not before a message."""
        if self._queue:
            return self._compute_throttle(now)
        return max(0.0, self._held[0][0] - now) if self._held else None

    @property
    def has_waiting(self) -> bool:
        """Whether an Event waits only for the limit of the operator."""
        return bool(self._queue)

    def _recall_stream(
        self, identity: tuple[str, str], reference: ObjectReference, now: float
    ) -> Stream:
        stream = self._streams.pop(identity, None)
        if stream is None:
            stream = Stream(reference, TokenBucket(self._settings.object_burst, now))
        self._streams[identity] = stream
        limit = self._settings.memory_limit
        while len(self._streams) > limit or (self._remembered > limit and len(self._streams) > 1):
            oldest = self._streams.pop(next(iter(self._streams)))
            self._remembered -= len(oldest.entries)
        return stream

    def _is_old(self, entry: Entry, now: float) -> bool:
        return not entry.is_waiting and now - entry.seen > self._settings.aggregation_interval

    def _add(self, stream: Stream, key: int, message: Message, now: float) -> None:
        """Queue a new Event, if the queue is not full and the object has a permit."""
        if not self._has_place(message.type):
            self.losses.note(Loss.QUEUE, now)
        elif self._compute_hold(stream, now) > 0:
            self.losses.note(Loss.OBJECT, now)
        else:
            stream.bucket.take()
            _, kind, reason, text, moment, backoff = message
            entry = Entry(stream, kind, reason, text, moment, moment, now, backoff=backoff)
            entry.is_combined = key == _build_combined_key(message)
            entry.is_waiting = True
            stream.entries[key] = entry
            self._remembered += 1
            self._queue.append(entry)

    def _enqueue(self, entry: Entry, now: float) -> None:
        """Queue an update, now or later."""
        hold = self._compute_hold(entry.stream, now)
        entry.is_waiting = True
        if hold <= 0 and self._has_place(entry.type):
            entry.stream.bucket.take()
            self._queue.append(entry)
        elif len(self._held) < self._settings.memory_limit:
            # The more of them wait, the more rarely each is checked.
            hold = max(hold, _RECHECK, len(self._held) / self._settings.rate)
            heapq.heappush(self._held, (now + hold, next(self._serial), entry))
        else:
            entry.is_waiting = False
            self.losses.note(Loss.QUEUE, now)

    def _has_place(self, kind: str) -> bool:
        """Return whether the queue has space; Normal Events can use only half of it."""
        limit = self._settings.queue_limit
        return len(self._queue) < (limit if kind != "Normal" else (limit + 1) // 2)

    def _compute_hold(self, stream: Stream, now: float) -> float:
        settings = self._settings
        rate = 1 / settings.object_interval
        return stream.bucket.compute_pause(rate, settings.object_burst, now)

    def _compute_throttle(self, now: float) -> float:
        return self._bucket.compute_pause(self._settings.rate, self._settings.burst, now)


def _build_combined_key(message: Message) -> int:
    return hash((message.type, message.reason))
