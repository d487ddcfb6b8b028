"""The state that the reactor keeps in memory for each object.

An object without work has no body in memory, and costs a few hundred bytes.

The dispatcher and the responses to own patches change :class:`Tracked` and its :class:`Phase`. The
worker of the object changes ``work``, its daemons and timers change ``background``.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from webop.backoff import Backoff
from webop.client.events import parse_version
from webop.errors import APIError
from webop.handling.call_options import HandlingStatus
from webop.objects.body import RawEventType
from webop.objects.fields import Snapshot, clone
from webop.objects.patch import Patch, PatchFn, apply_merge_patch, merge_patches
from webop.reactor.background import Background

if TYPE_CHECKING:
    from webop.tracing import SpanContext

Working = Coroutine[Any, Any, Any]
OnEnd = Callable[["Tracked", asyncio.Task[Any]], None]


class ObjectController(Protocol):
    """The owner of tracked objects: it starts their workers."""

    epoch: int

    @property
    def has_indexes(self) -> bool:
        """Whether the objects are indexed."""

    @property
    def is_stopped(self) -> bool:
        """Whether no new work may start."""

    @property
    def is_holding(self) -> bool:
        """Whether handlers must wait for the indexes, or for a list."""

    def check(self, obj: Tracked) -> None:
        """Decide what happens next to an object."""

    def show_events(self, obj: Tracked) -> None:
        """Call the handlers of raw events, when they may run."""

    def run(self, obj: Tracked, work: Working, on_end: OnEnd) -> asyncio.Task[Any]:
        """Start a task for an object; react to its end even if it never ran."""


class Phase(enum.Enum):
    """The state of the work on an object."""

    IDLE = enum.auto()
    """Nothing: there is no body in memory."""
    HELD = enum.auto()
    """It waits until the indexes are filled."""
    WAITING = enum.auto()
    """It waits for a slot; a text is kept instead of the body."""
    WORKING = enum.auto()
    """One task works on it."""
    RESTING = enum.auto()
    """It is processed again when a timer ends, or when it changes."""


class Pending(NamedTuple):
    """Patches that are not written yet.

    Attributes:
        wanted: the changes of handlers.
        own: webop's own records.
        is_denied: whether the API server rejected them for good. Then newer states are handled as
            if they were written.
    """

    wanted: Patch
    own: Patch
    is_denied: bool = False

    def followed_by(self, other: Pending) -> Pending:
        """Merge with later patches."""
        fns: list[PatchFn] = [*self.wanted.fns, *other.wanted.fns]
        wanted = Patch(merge_patches(self.wanted, other.wanted), fns=fns)
        return Pending(wanted, Patch(merge_patches(self.own, other.own)), other.is_denied)


@dataclass(slots=True)
class Cycle:
    """What is in memory of a handling cycle. The rest is in the records on the object.

    Attributes:
        essences: the states that handlers have seen, by their digests, in the order of the calls.
        needs_update: whether a creation has ended whose handlers have seen several states, or a
            change was undone: an update follows.
        call_status: the status of the handlers' calls.
        trace: the span of the first calls, if there is one; later calls continue it.
    """

    essences: dict[str, Any] = field(default_factory=dict)
    needs_update: bool = False
    call_status: HandlingStatus = field(default_factory=HandlingStatus)
    trace: SpanContext | None = None


@dataclass(slots=True)
class Work:
    """The state of the work on an object; it is lost with the process.

    Attributes:
        cycle: the running handling cycle.
        cleanup: the patch to write together with the removal of the finalizer; None until all
            deletion handlers have finished.
        pending: patches that could not be written.
        writing: the lock of all writes, so that an older value never follows a newer one.
        tries: number of attempts to write pending patches that have ended.
        failure: the error of the last attempt; None if there was none.
        recording: webop's own records, such as outcomes, that are being written: until then, their
            handlers must not be called again. None if there are none.
        backoff: the pauses after errors outside of handlers; None if there is no such error.
        paused_until: the end of such a pause, by the clock of the event loop.
        trouble: the type and the text of the last of these errors, to log it once.
    """

    cycle: Cycle | None = None
    cleanup: Patch | None = None
    pending: Pending | None = None
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    tries: int = 0
    failure: APIError | None = None
    recording: Patch | None = None
    backoff: Backoff | None = None
    paused_until: float = 0.0
    trouble: tuple[str, str] = ("", "")

    @property
    def is_released(self) -> bool:
        """Whether all deletion handlers have finished: the finalizer can be removed."""
        return self.cleanup is not None

    @property
    def is_denied(self) -> bool:
        """Whether the API server rejected the pending patches for good."""
        return self.pending is not None and self.pending.is_denied

    def add_records(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the state of the object when all records are written."""
        for own in (self.recording, self.pending and self.pending.own):
            raw = apply_merge_patch(raw, own) if own else raw
        return raw

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to remember."""
        is_blank = self.cycle is None and self.pending is None and self.backoff is None
        return is_blank and not self.is_released and not self.writing.locked()


NOTHING = Work()
"""The work of objects without work; do not modify it."""


class Tracked:
    """One object of one watched resource.

    Attributes:
        phase: what currently happens to it.
        since: since when it waits or is processed, by the monotonic clock; 0 if neither.
        raw: the newest known state; None when there is nothing to do.
        text: kept instead of ``raw`` while the object waits; empty if it must be read again.
        event_type: the type of the event that brought the newest state.
        version: the newest known resource version as a number; 0 if it is not a number.
        epoch: the listing (by its count) during which ``version`` came from a patch of our own.
        seen: the last listing in which the object was.
        needs_resume: whether the object was there before the operator and must still be resumed.
        is_dirty: whether a newer state arrived since the work on it began.
        suspected_deleted: whether the API server has said that it is gone, but no event has: it is
            read before any other work on it.
        is_unindexed: whether the newest state is not in the indexes yet.
        indexing: the lock that is held while the indexes are updated.
        was_indexed: whether a state was indexed since the last work. Then the work comes first if
            it can start now: states can arrive faster than they can be indexed.
        is_shown: whether event handlers have got it, but not its deletion.
        daemons_started: whether the daemons for the newest state were started; daemons that end
            later are started again only after another event.
        work: the state of the work, if there is any.
        events: queued raw events for event handlers.
        event_task: the task that calls these.
        background: its daemons and timers, if it has any.
        timer: when it is processed again.
    """

    __slots__ = (
        "background",
        "controller",
        "daemons_started",
        "epoch",
        "event_task",
        "event_type",
        "events",
        "indexing",
        "is_dirty",
        "is_shown",
        "is_unindexed",
        "name",
        "namespace",
        "needs_resume",
        "phase",
        "raw",
        "seen",
        "since",
        "suspected_deleted",
        "text",
        "timer",
        "uid",
        "version",
        "was_indexed",
        "work",
    )

    def __init__(
        self, controller: ObjectController, uid: str, raw: dict[str, Any], *, needs_resume: bool
    ) -> None:
        self.controller = controller
        self.uid = uid
        self.namespace: str | None = raw["metadata"].get("namespace")
        self.name: str = raw["metadata"]["name"]
        self.needs_resume = needs_resume
        self.phase = Phase.IDLE
        self.since = 0.0
        self.raw: dict[str, Any] | None = None
        self.text: bytes | None = None
        self.event_type: RawEventType = None
        self.version = 0
        self.epoch = -1
        self.seen = -1
        self.is_dirty = False
        self.suspected_deleted = False
        self.is_unindexed = False
        self.indexing: asyncio.Lock | None = None
        self.was_indexed = False
        self.daemons_started = False
        self.is_shown = False
        self.work: Work | None = None
        self.events: deque[tuple[RawEventType, bytes]] | None = None
        self.event_task: asyncio.Task[None] | None = None
        self.background: Background | None = None
        self.timer: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def accept(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Accept a newer state."""
        raw = self.complete(raw)
        self.event_type = event_type
        self.raw = raw
        self.version = parse_version(raw)
        self.is_dirty = True
        self.daemons_started = False
        if self.background is not None and self.background.tasks:
            self.background.show(clone(raw))  # a copy that handlers may modify

    def complete(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return a state with the records that the API server has denied; the same if none are."""
        work = self.work or NOTHING
        if work.pending is not None and work.is_denied:
            return apply_merge_patch(raw, work.pending.own)
        return raw

    def accept_own(self, raw: dict[str, Any]) -> None:
        """Accept the response to an own request, unless a newer state is already known."""
        if self.is_gone:  # the response was late
            return
        version = parse_version(raw)
        if version > self.version or (not version and raw != self.raw):
            self.accept("MODIFIED", raw)
            self.is_unindexed = self.controller.has_indexes
            self.epoch = self.controller.epoch
            self.controller.check(self)

    def wake(self) -> None:
        """Process the object again, after one of its daemons or timers ended.

        Right after a pause, its state is outdated: the listing that follows processes it anyway.
        """
        if not self.is_gone:
            background = self.background
            if background is not None and not self.version and parse_version(background.raw):
                return
            if background is not None and self.raw is None and self.text is None:
                self.raw = self.complete(background.raw)
            self.is_dirty = True
        self.controller.check(self)

    @property
    def is_being_indexed(self) -> bool:
        """Whether the newest state is not in the indexes yet, or is being indexed."""
        return self.is_unindexed or (self.indexing is not None and self.indexing.locked())

    @property
    def is_view(self) -> bool:
        """Whether ``raw`` is the body of its daemons, which these can have modified."""
        return self.background is not None and self.raw is self.background.raw

    @property
    def has_background(self) -> bool:
        """Whether it has daemons or timers that have not ended."""
        return self.background is not None and bool(self.background.tasks)

    @property
    def call_statuses(self) -> Iterator[HandlingStatus]:
        """The statuses of its handlers; errors of webop itself have an empty id."""
        if self.work is not None:
            if self.work.cycle is not None:
                yield self.work.cycle.call_status
            if error := self.work.trouble[0]:
                attempts = 1 if self.work.backoff is None else self.work.backoff.failures
                yield HandlingStatus(failures={"": (attempts, error)})
        if self.background is not None:
            yield self.background.standing

    @property
    def has_pending(self) -> bool:
        """Whether it has patches that could not be written."""
        return self.work is not None and self.work.pending is not None

    @property
    def is_retrying(self) -> bool:
        """Whether it must first write patches that could not be written, in another attempt."""
        return self.has_pending and not (self.work or NOTHING).is_denied

    @property
    def has_unwritten(self) -> bool:
        """Whether it has patches or records that could not be written, or are being written."""
        return self.has_pending or (self.work is not None and self.work.recording is not None)

    @property
    def is_gone(self) -> bool:
        """Whether it is known to be deleted; then nothing is written for it."""
        return self.event_type == "DELETED"

    def restore(self, snapshot: Snapshot) -> None:
        """Undo changes that handlers made in place, if the state is still the newest one."""
        if self.raw is snapshot.document:
            self.raw = snapshot.restore()

    def get_freshest(self) -> dict[str, Any] | None:
        """Return the newest known state; None if there is none in memory, or it is gone."""
        if self.is_gone:
            return None
        if self.raw is None and self.background is not None:
            return self.background.raw or None
        return self.raw

    def build_tombstone(self) -> dict[str, Any]:
        """Return a minimal body, for a deletion that no event showed."""
        metadata = {"name": self.name, "uid": self.uid}
        if self.namespace:
            metadata["namespace"] = self.namespace
        return {"metadata": metadata}

    def open_work(self) -> Work:
        """Return the state of the work on it; create it if there is none."""
        if self.work is None:
            self.work = Work()
        return self.work

    def leave_work(self) -> None:
        """Forget the work on it, except which states handlers have seen: others can continue it."""
        cycle = (self.work or NOTHING).cycle
        self.work = None if cycle is None else Work(Cycle(cycle.essences))

    def keep_pending(self, pending: Pending) -> None:
        """Keep patches that could not be written, before those kept meanwhile."""
        work = self.open_work()
        work.pending = pending if work.pending is None else pending.followed_by(work.pending)
        if pending.is_denied and self.raw is not None:
            self.raw = apply_merge_patch(self.raw, pending.own)

    def backoff_left(self) -> float:
        """Return the remaining seconds of the pause after an error; 0 if there is none."""
        if self.work is None or not self.work.paused_until:
            return 0
        return max(0, self.work.paused_until - asyncio.get_running_loop().time())


def measure_phases(objects: Collection[Tracked]) -> dict[Phase, tuple[int, float]]:
    """Return the number of objects in each phase, and the longest time of one there (seconds)."""
    busy: dict[Phase, list[float]] = {phase: [] for phase in Phase}
    for obj in [obj for obj in objects if obj.phase is not Phase.IDLE]:  # quick if most are idle
        busy[obj.phase].append(obj.since)
    moment = time.monotonic()
    measured = {
        phase: (len(times), moment - min(filter(None, times), default=moment))
        for phase, times in busy.items()
    }
    idle = len(objects) - sum(map(len, busy.values()))
    return {**measured, Phase.IDLE: (idle, 0.0)}
