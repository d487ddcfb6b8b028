"""The state that the reactor keeps in memory for each object.

The rest is on the object itself: the records of its handlers, the last handled state, the
finalizer. A restart loses only what is unwritten.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from webop.aio.backoff import Backoff
from webop.calls.shared_options import HandlingStatus
from webop.handlers.registry import ResourceHandlers
from webop.handlers.stopping import DaemonStoppingReason
from webop.objects.body import Body, RawEventType
from webop.objects.patch import Patch, apply_merge_patch

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})  # most objects have none of these


class State(enum.Enum):
    """The state of an object; the values are the words of the metrics."""

    IDLE = "idle"
    """Nothing."""
    WAITING = "waiting"
    """It waits for its turn."""
    RESTING = "resting"
    """It waits until it is due."""
    HELD = "held"
    """It waits until something allows turns again."""
    RUNNING = "working"
    """It has its turn."""


class Owner(Protocol):
    """The stream of an object (:class:`webop.reactor.stream.Stream`)."""

    epoch: int
    """The number of pauses so far, in which others could act."""

    @property
    def handlers(self) -> ResourceHandlers:
        """The handlers of the kind as it is now."""

    @property
    def is_stopped(self) -> bool:
        """Whether no new work may begin, because of a pause or of the end."""

    def find_gate(self, obj: Entry) -> Any:
        """Return the result of a turn that must end before handlers are called; None if not."""

    def wake(self, obj: Entry, *, after: float = 0.0) -> None:
        """Give the object a turn soon, or after some seconds."""

    def accept_response(self, obj: Entry, raw: dict[str, Any]) -> None:
        """Accept the state in the response to a request about the object."""

    def note_indexed(self, obj: Entry) -> None:
        """Note that the turn of the object has done what indexes need."""

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start a task that works on the object."""

    async def take_turn(self, obj: Entry) -> Any:
        """Do what must be done about the object; return when its next turn is."""


class BackgroundTask(Protocol):
    """A running daemon or timer (:class:`webop.reactor.daemons.Daemon`)."""

    task: asyncio.Task[None]

    def note_change(self) -> None:
        """React to a newer state of the object."""

    def stop(self, reason: DaemonStoppingReason) -> None:
        """Begin to stop it."""

    def is_stopping_for(self, reason: DaemonStoppingReason) -> bool:
        """Return whether it has been told to stop for this reason."""

    def cancel(self) -> None:
        """Cancel its task."""


@dataclass(slots=True)
class Unwritten:
    """The changes that must be written to an object, in one request at a time.

    Attributes:
        changes: those of handlers; functions among them are called for the state that is written.
        records: webop's own, as a merge patch: of handlers, and the last handled state.
        is_denied: whether the API server has denied the records, or not stored them. They count as
            stored, and are sent with the next change.
        essence: the state that the handlers of the running turn see, as own writes leave it.
        lock: of the requests.
    """

    changes: Patch = field(default_factory=Patch)
    records: Patch = field(default_factory=Patch)
    is_denied: bool = False
    essence: Any = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __bool__(self) -> bool:
        return bool(self.changes or self.records) or self.lock.locked()

    @property
    def is_due(self) -> bool:
        """Whether anything must be sent."""
        return bool(self.changes or (self.records and not self.is_denied))


@dataclass(slots=True)
class ReconcileState:
    """The state of one reconciler for one object.

    Attributes:
        because: what has happened since the last call.
        seen: what the object said at the last call: a generation or a digest.
        due: when to call it again even if nothing happens, by the loop's clock; None for never.
        began: when the last call began.
        failures: the number of failed calls since the last success.
        rest: seconds until the next call after it has taken back what others have changed: they
            could be another operator, which does the same. It grows until that ends.
        skipped: a patch that was not sent, since it changed nothing in a version of the object. The
            next version tells whether that was the newest one.
    """

    because: set[str] = field(default_factory=set)
    seen: str = ""
    due: float | None = None
    began: float = 0.0
    failures: int = 0
    rest: float = 0.0
    skipped: tuple[int, Patch] | None = None

    @property
    def is_pausing(self) -> bool:
        """Whether it waits after a failure: what happens meanwhile does not end the pause."""
        return bool(self.failures) and self.due is not None


class Entry:
    """One object of one stream.

    Attributes:
        version: the newest known resource version as a number; 0 if it is not a number.
        event_type: the type of the event that has brought the newest state.
        body: the newest known state; as text while it waits; None if it must be read when needed.
        listed: the number of the last list that has shown it, or its watch; half a list less if
            only the response to an own write has.
        must_index: whether the newest state is not in the indexes.
        must_show: whether event handlers have not got the newest event.
        shown: the version that event handlers have got; None before, and after its deletion.
        must_resume: whether it is older than the operator, and has not been resumed.
        state: what happens to it.
        since: since when, by the monotonic clock; 0 if nothing does.
        due: when it has its turn even if nothing happens, by the loop's clock.
        is_dirty: whether something has happened since its turn began.
        backoff: the pauses after failures; None if the last attempt has not failed.
        not_before: until then, a turn only indexes it and shows its events.
        error: the type and the text of the last failure.
        unwritten: what must be written; None for nothing.
        called_at: when handlers of a change were called last, by the loop's clock.
        status: the running and failed calls of its handlers; None for none.
        daemons: its daemons and timers that have not ended, by the ids of their handlers.
        past: of those that ran: True if one must not start again, False if only its initial delay
            is over.
        view: the state as its daemons and timers see it; they may change it.
        reconcilers: the states of its reconcilers, by their ids.
    """

    __slots__ = (
        "backoff",
        "body",
        "called_at",
        "daemons",
        "due",
        "error",
        "event_type",
        "is_dirty",
        "listed",
        "must_index",
        "must_resume",
        "must_show",
        "name",
        "namespace",
        "not_before",
        "past",
        "reconcilers",
        "shown",
        "since",
        "state",
        "status",
        "stream",
        "uid",
        "unwritten",
        "version",
        "view",
    )

    def __init__(self, stream: Owner, uid: str, raw: Mapping[str, Any]) -> None:
        self.stream = stream
        self.uid = uid
        self.namespace: str | None = raw["metadata"].get("namespace")
        self.name: str = raw["metadata"]["name"]
        self.version = 0
        self.event_type: RawEventType = None
        self.body: dict[str, Any] | bytes | None = None
        self.listed = -1.0
        self.must_index = False
        self.must_show = False
        self.shown: int | None = None
        self.must_resume = False
        self.state = State.IDLE
        self.since = 0.0
        self.due: float | None = None
        self.is_dirty = False
        self.backoff: Backoff | None = None
        self.not_before = 0.0
        self.error = ("", "")
        self.unwritten: Unwritten | None = None
        self.called_at = 0.0
        self.status: HandlingStatus | None = None
        self.daemons: Mapping[str, BackgroundTask] = _NONE
        self.past: Mapping[str, bool] = _NONE
        self.view: Body | None = None
        self.reconcilers: Mapping[str, ReconcileState] = _NONE

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def is_gone(self) -> bool:
        """Whether an event or a list has said that it is deleted, or out of sight."""
        return self.event_type == "DELETED"

    def open_unwritten(self) -> Unwritten:
        """Return what must be written, to add to it."""
        if self.unwritten is None:
            self.unwritten = Unwritten()
        return self.unwritten

    def open_status(self) -> HandlingStatus:
        """Return the status of its handlers, to record calls in it."""
        if self.status is None:
            self.status = HandlingStatus()
        return self.status

    def add_records(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state with all records, also those that are not written."""
        if self.unwritten is None or not self.unwritten.records:
            return raw
        return apply_merge_patch(raw, self.unwritten.records)

    def show(self, raw: dict[str, Any]) -> None:
        """Show a newer state to its daemons and timers, which may change it."""
        if self.view is None:
            self.view = Body(raw)
        else:
            self.view.replace(raw)
        for daemon in self.daemons.values():
            daemon.note_change()

    def call_again(self, handler_id: str, because: str) -> None:
        """Call a reconciler of it, since something else has happened."""
        known = self.reconcilers.get(handler_id)
        if self.is_gone or known is None:
            return
        known.because.add(because)
        if not known.is_pausing:
            self.stream.wake(self)

    def list_failures(self) -> Iterator[tuple[str, int, str]]:
        """Yield the failing handlers: the id, the attempts, the error; "" is webop itself."""
        if self.status is not None:
            for key, (attempts, error) in self.status.failures.items():
                yield key, attempts, error
        if self.backoff is not None:
            yield "", self.backoff.failures, self.error[0]
