"""The state that the reactor keeps in memory for each object.

An object without work has no body in memory, and costs a few hundred bytes.

The controller and the responses to own patches change the states in :class:`WatchedObject`, and its
:class:`State`. The worker of the object changes ``work``. Its daemons and timers change
``daemons``, and hand over their patches to the writer in ``work``. When there is nothing left to
do, the controller removes both.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from webop.calls.progress import digest_content
from webop.calls.shared_options import HandlingStatus
from webop.client.watch_events import parse_version
from webop.objects.body import RawEventType
from webop.objects.fields import Snapshot, clone
from webop.objects.patch import apply_merge_patch
from webop.reactor.failures import Pause

if TYPE_CHECKING:
    from webop.reactor.controller import Controller
    from webop.reactor.daemons import Daemons
    from webop.reactor.object_writer import Writer
    from webop.reactor.reconcile_calls import ReconcileStates
    from webop.telemetry.tracing import SpanContext


class State(enum.Enum):
    """The state of the work on an object."""

    IDLE = enum.auto()
    """Nothing: there is no body in memory."""
    QUEUED = enum.auto()
    """It waits for its turn, for the end of a delay, or until handlers may run."""
    RUNNING = enum.auto()
    """One task works on it."""


@dataclass(slots=True)
class Cycle:
    """The part of a handling cycle that is in memory. The rest is in records on the object.

    Attributes:
        essences: the states that handlers have seen, by their digests, in the order of the calls.
        needs_update: whether a creation has ended whose handlers have seen several states, or a
            change was undone: an update follows.
        call_status: the status of the handlers' calls.
        trace: the span of the first calls, if there is one; later calls continue it.
        content: what the object said at the last calls, own writes included; see
            ``settings.execution.retry_on_change``.
        called_at: when these were, by the loop's clock.
    """

    essences: dict[str, Any] = field(default_factory=dict)
    needs_update: bool = False
    call_status: HandlingStatus = field(default_factory=HandlingStatus)
    trace: SpanContext | None = None
    content: str = ""
    called_at: float = 0.0


@dataclass(slots=True)
class Work:
    """The state of the work on an object; it is lost with the process.

    Attributes:
        cycle: the running handling cycle.
        writer: writes what was handed over; None until something is. It stays until the work ends.
        pause: the pauses after errors outside of handlers, except those of the writer.
    """

    cycle: Cycle | None = None
    writer: Writer | None = None
    pause: Pause = field(default_factory=Pause)

    @property
    def is_deletion_handled(self) -> bool:
        """Whether all deletion handlers have finished: the finalizer can be removed."""
        return self.writer is not None and self.writer.cleanup is not None

    def add_records(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of the object with all records, also those that are not written."""
        return raw if self.writer is None else self.writer.add_records(raw)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to remember."""
        has_written = self.writer is None or self.writer.is_over
        return self.cycle is None and has_written and not self.pause.has_failed


NOTHING = Work()
"""The work of objects without work; do not modify it."""


class WatchedObject:
    """One object of one watched resource.

    Attributes:
        state: what currently happens to it.
        since: since when it waits or is processed, by the monotonic clock; 0 if neither.
        raw: the newest known state; None while it waits, and when there is nothing to do.
        text: kept instead of ``raw`` while it waits, or for its reconcilers; empty if it must be
            read again.
        event_type: the type of the event that brought the newest state.
        version: the newest known resource version as a number; 0 if it is not a number.
        confirmed: the number of the last list that has shown it; half a list less if only the
            response to a patch has. See :class:`webop.reactor.controller.Controller`.
        needs_resume: whether the object was there before the operator and must still be resumed.
        is_dirty: whether it must be processed again: since the work on it began, a newer state or
            another reason has come.
        is_unindexed: whether the newest state is not in the indexes yet.
        is_unshown: whether event handlers have not got the newest event yet.
        shown: the version that event handlers have got; None before, and after its deletion.
        may_have_left: whether it seems deleted, but perhaps has only left the selectors of the
            watch, and still has the finalizer. Then it is removed, and the object is forgotten.
        work: the state of the work, if there is any.
        daemons: its daemons and timers, if it has any.
        timer: when it is processed again.
        reconciling: what is remembered of the calls of its reconcilers, if it has any.
    """

    __slots__ = (
        "confirmed",
        "controller",
        "daemons",
        "event_type",
        "is_dirty",
        "is_unindexed",
        "is_unshown",
        "may_have_left",
        "name",
        "namespace",
        "needs_resume",
        "raw",
        "reconciling",
        "shown",
        "since",
        "state",
        "text",
        "timer",
        "uid",
        "version",
        "work",
    )

    def __init__(
        self, controller: Controller, uid: str, raw: dict[str, Any], *, needs_resume: bool
    ) -> None:
        self.controller = controller
        self.uid = uid
        self.namespace: str | None = raw["metadata"].get("namespace")
        self.name: str = raw["metadata"]["name"]
        self.needs_resume = needs_resume
        self.state = State.IDLE
        self.since = 0.0
        self.raw: dict[str, Any] | None = None
        self.text: bytes | None = None
        self.event_type: RawEventType = None
        self.version = 0
        self.confirmed = -1.0
        self.is_dirty = False
        self.is_unindexed = False
        self.is_unshown = False
        self.shown: int | None = None
        self.may_have_left = False
        self.work: Work | None = None
        self.daemons: Daemons | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.reconciling: ReconcileStates | None = None

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
        writer = (self.work or NOTHING).writer
        if writer is not None and writer.is_denied:
            return apply_merge_patch(raw, writer.sent.of_webop)
        return raw

    def accept_own(self, raw: dict[str, Any], *, is_content_own: bool = False) -> None:
        """Accept the response to an own request, unless a newer state is already known.

        Args:
            raw: the state in the response.
            is_content_own: whether the request has changed more than metadata and status.
        """
        if self.is_gone:  # the response was late
            return
        version = parse_version(raw)
        if version > self.version or (not version and raw != self.raw):
            self.accept("MODIFIED", raw)
            cycle = (self.work or NOTHING).cycle
            if is_content_own and cycle is not None and cycle.content:
                cycle.content = digest_content(raw)  # an own change is no reason to retry
            self.is_unindexed = self.controller.has_indexes
            self.confirmed = max(self.confirmed, self.controller.listing - 0.5)
            self.controller.enqueue(self)

    def wake(self) -> None:
        """Process the object again, after one of its daemons or timers ended.

        Right after a pause, its state is outdated: the list that follows processes it anyway.
        """
        if not self.is_gone:
            if self.awaits_list:
                return
            if self.daemons is not None and self.raw is None and self.text is None:
                self.daemons.body.replace(self.complete(self.daemons.raw))
                self.raw = self.daemons.raw
            self.is_dirty = True
        self.controller.enqueue(self)

    def call_again(self, handler_id: str, because: str) -> None:
        """Call a reconciler of it, since something else has happened."""
        if self.is_gone or self.reconciling is None or handler_id not in self.reconciling.known:
            return
        known = self.reconciling.known[handler_id]
        known.because.add(because)
        if not known.is_pausing:
            self.is_dirty = True
            self.controller.enqueue(self)

    @property
    def awaits_list(self) -> bool:
        """Whether a list must show it before its known state can be compared with others."""
        return self.confirmed < self.controller.needed_listing

    @property
    def is_view(self) -> bool:
        """Whether ``raw`` is the body of its daemons, which these can have modified."""
        return self.daemons is not None and self.raw is self.daemons.raw

    @property
    def has_daemons(self) -> bool:
        """Whether it has daemons or timers that have not ended."""
        return self.daemons is not None and bool(self.daemons.running)

    @property
    def call_statuses(self) -> Iterator[HandlingStatus]:
        """The statuses of its handlers; errors of webop itself have an empty id."""
        if self.work is not None:
            if self.work.cycle is not None:
                yield self.work.cycle.call_status
            for pause in self._pauses:
                if pause.has_failed:
                    yield HandlingStatus(failures={"": (pause.failures, pause.error[0])})
        if self.daemons is not None:
            yield self.daemons.call_status
        if self.reconciling is not None:
            yield self.reconciling.call_status

    @property
    def is_writing(self) -> bool:
        """Whether a request about it is on its way."""
        writer = (self.work or NOTHING).writer
        return writer is not None and writer.is_writing

    @property
    def has_unwritten(self) -> bool:
        """Whether anything about it is not written, or is being written."""
        writer = (self.work or NOTHING).writer
        return writer is not None and writer.has_unwritten

    @property
    def is_gone(self) -> bool:
        """Whether it is known to be deleted, or out of sight."""
        return self.event_type == "DELETED"

    @property
    def may_exist(self) -> bool:
        """Whether it can be written."""
        return not self.is_gone or self.may_have_left

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
        """Forget the work on it, except which states handlers have seen: others can continue it.

        While it is being written, nothing is forgotten: a second writer could be faster.
        """
        cycle = (self.work or NOTHING).cycle
        if not self.is_writing:
            self.work = None if cycle is None else Work(Cycle(cycle.essences))

    @property
    def _pauses(self) -> list[Pause]:
        work = self.work or NOTHING
        return [work.pause] if work.writer is None else [work.pause, work.writer.pause]

    def backoff_left(self) -> float:
        """Return the remaining seconds of the pause after an error; 0 if there is none."""
        return max(pause.left for pause in self._pauses)
