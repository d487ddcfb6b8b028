"""The state that the reactor keeps in memory for each object.

An object without work has no body in memory, and costs a few hundred bytes.

The controller and the responses to own patches change :class:`Tracked` and its :class:`State`. The
worker of the object changes ``work``, its daemons and timers change ``daemons``.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from webop.backoff import Backoff
from webop.client.events import parse_version
from webop.errors import APIError
from webop.handling.call_options import HandlingStatus
from webop.handling.handlers import Reason
from webop.objects.body import RawEventType
from webop.objects.fields import Snapshot, clone
from webop.objects.patch import Patch, PatchFn, apply_merge_patch, merge_patches

if TYPE_CHECKING:
    from webop.reactor.daemons import Daemons
    from webop.tracing import SpanContext


class ObjectController(Protocol):
    """The owner of known objects (:class:`webop.reactor.controller.Controller`)."""

    listing: int

    @property
    def has_indexes(self) -> bool:
        """Whether the objects are indexed."""

    @property
    def is_stopped(self) -> bool:
        """Whether no new work may start, because of a pause or of the end."""

    @property
    def is_held(self) -> bool:
        """Whether handlers must wait, or may not start any more."""

    def enqueue(self, obj: Tracked) -> None:
        """Process an object soon."""

    def begin(self, obj: Tracked) -> None:
        """Start the work on an object, if there is any: its turn has come."""

    def begin_indexing(self, obj: Tracked) -> None:
        """Start to index an object, and do no other work on it."""

    def describe_state(self, obj: Tracked) -> str:
        """Return the state of an object in the words of the metrics."""

    def mark_gone(self, obj: Tracked) -> None:
        """Forget an object: the API server has answered that it is gone."""


class State(enum.Enum):
    """The state of the work on an object."""

    IDLE = enum.auto()
    """Nothing: there is no body in memory."""
    QUEUED = enum.auto()
    """It waits for its turn, for the end of a delay, or until handlers may run."""
    RUNNING = enum.auto()
    """One task works on it."""


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
    """A running handling cycle. No handler misses a change that arrives meanwhile (D-67).

    Attributes:
        reason: why the handlers are called.
        essence: the newest state of the object that the cycle is about; it is stored as handled
            when the cycle ends. A creation keeps the state at its start: a change that arrives
            meanwhile is an update, which is handled after it.
        detour: another state that handlers of a creation were called for. If handlers must still be
            called after the end of a cycle: the state that is stored as handled if the object goes
            back to ``essence`` before the next event.
        standing: the state of the handlers' calls.
        handler_ids: the handlers at the start; of an update, those of the last calls.
        trace: the span of the first calls, if there is one; later calls continue it.
        bases: the last states that handlers have seen, if they must be called again for later
            changes; other handlers get the changes since the last-handled state.
        is_left: whether another operator may have continued or ended it.
    """

    reason: Reason
    essence: Any
    handler_ids: frozenset[str]
    trace: SpanContext | None = None
    bases: dict[str, Any] = field(default_factory=dict)
    detour: Any = None
    standing: HandlingStatus = field(default_factory=HandlingStatus)
    is_left: bool = False


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
        state: what currently happens to it.
        since: since when it waits or is processed, by the monotonic clock; 0 if neither.
        raw: the newest known state; None when there is nothing to do.
        text: kept instead of ``raw`` while the object waits; empty if it must be read again.
        event_type: the type of the event that brought the newest state.
        version: the newest known resource version as a number; 0 if it is not a number.
        confirmed: the last listing (by its count) in which it was, or during which the API server
            answered a patch of it.
        initial: whether the object was there before the operator and must still be resumed.
        is_taken_over: whether others could handle it, and its handlers were not called since then:
            its records are theirs.
        is_dirty: whether a newer state arrived since the work on it began.
        is_unindexed: whether the newest state is not in the indexes yet.
        is_unshown: whether event handlers have not got the newest event yet.
        is_shown: whether event handlers have got the object, but not its deletion.
        work: the state of the work, if there is any.
        daemons: its daemons and timers, if it has any.
        timer: when it is processed again.
    """

    __slots__ = (
        "confirmed",
        "controller",
        "daemons",
        "event_type",
        "initial",
        "is_dirty",
        "is_shown",
        "is_taken_over",
        "is_unindexed",
        "is_unshown",
        "name",
        "namespace",
        "raw",
        "since",
        "state",
        "text",
        "timer",
        "uid",
        "version",
        "work",
    )

    def __init__(
        self, controller: ObjectController, uid: str, raw: dict[str, Any], *, initial: bool
    ) -> None:
        self.controller = controller
        self.uid = uid
        self.namespace: str | None = raw["metadata"].get("namespace")
        self.name: str = raw["metadata"]["name"]
        self.initial = initial
        self.state = State.IDLE
        self.since = 0.0
        self.raw: dict[str, Any] | None = None
        self.text: bytes | None = None
        self.event_type: RawEventType = None
        self.version = 0
        self.confirmed = -1
        self.is_taken_over = False
        self.is_dirty = False
        self.is_unindexed = False
        self.is_unshown = False
        self.is_shown = False
        self.work: Work | None = None
        self.daemons: Daemons | None = None
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
        if self.has_daemons and self.daemons is not None:
            self.daemons.show(clone(raw))  # a copy that handlers may modify

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
            self.confirmed = self.controller.listing
            self.controller.enqueue(self)

    def mark_gone(self) -> None:
        """Forget the object: the API server has answered that it is gone.

        Event handlers get its deletion. If an event shows it again, it is read; its memo and its
        daemons are new then.
        """
        if not self.is_gone:
            self.event_type = "DELETED"
            self.is_dirty = True
            self.controller.mark_gone(self)

    def wake(self) -> None:
        """Process the object again, after one of its daemons or timers ended.

        Right after a pause, its state is outdated: the listing that follows processes it anyway.
        """
        if not self.is_gone:
            daemons = self.daemons
            if daemons is not None and not self.version and parse_version(daemons.raw):
                return
            if daemons is not None and self.raw is None and self.text is None:
                self.raw = self.complete(daemons.raw)
            self.is_dirty = True
        self.controller.enqueue(self)

    @property
    def is_view(self) -> bool:
        """Whether ``raw`` is the body of its daemons, which these can have modified."""
        return self.daemons is not None and self.raw is self.daemons.raw

    @property
    def has_daemons(self) -> bool:
        """Whether it has daemons or timers that have not ended."""
        return self.daemons is not None and bool(self.daemons.running)

    @property
    def standings(self) -> Iterator[HandlingStatus]:
        """The states of its handlers; errors of webop itself have an empty id."""
        if self.work is not None:
            if self.work.cycle is not None:
                yield self.work.cycle.standing
            if error := self.work.trouble[0]:
                attempts = 1 if self.work.backoff is None else self.work.backoff.failures
                yield HandlingStatus(failures={"": (attempts, error)})
        if self.daemons is not None:
            yield self.daemons.call_status

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
        if self.raw is None and self.daemons is not None:
            return self.daemons.raw or None
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
        """Forget the work on it: others can continue it. Records restore a cycle.

        But a change can be undone: the cycle of an update is kept for that.
        """
        cycle = (self.work or NOTHING).cycle
        if cycle is not None and cycle.reason is Reason.UPDATE:
            cycle.is_left = True
            self.work = Work(cycle)
        else:
            self.work = None

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
