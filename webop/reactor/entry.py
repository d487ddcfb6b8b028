"""The state that the reactor keeps in memory for each object.

The rest is on the object itself: the records of its handlers, the last handled state, the
finalizer. A restart loses what is here: most of all what is unwritten.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from webop.aio.backoff import Backoff
from webop.calls.shared_options import HandlingStatus
from webop.handlers.registry import ResourceHandlers
from webop.handlers.stopping import DaemonStoppingReason
from webop.objects.body import Body, RawEventType
from webop.objects.patch import Patch, apply_merge_patch

_BY_SERVER: Final = frozenset({"resourceVersion", "generation", "managedFields"})
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})  # shared: most objects have none


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

    @property
    def is_paused(self) -> bool:
        """Whether no new work begins: it is left to another operator, or the stream ends."""

    @property
    def is_ending(self) -> bool:
        """Whether the operator stops, and no other one has its work yet."""

    @property
    def handlers(self) -> ResourceHandlers:
        """The handlers of the kind as it is now."""

    def owns(self, obj: Entry) -> bool:
        """Return whether this replica handles the object."""

    def shows_stranger(self, obj: Entry) -> bool:
        """Return whether functions of ``watches=`` get an object that is not handled here."""

    def find_gate(self, obj: Entry) -> Any:
        """Return the result of a turn that must end before functions are called; None if not."""

    def wake(self, obj: Entry, *, after: float = 0.0) -> None:
        """Give the object a turn soon, or after some seconds."""

    def accept_response(self, obj: Entry, raw: dict[str, Any]) -> None:
        """Accept the state in the response to a request about the object."""

    def note_indexed(self, obj: Entry, handlers: ResourceHandlers) -> None:
        """Note that the turn of an object has done what the indexes of these handlers need."""

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
        expected: the object as the patch that is on its way leaves it, if that is no news for
            handlers; without what the API server changes itself.
        essence: the state that the handlers of the running turn see, as own writes leave it.
        lock: of the requests.
    """

    changes: Patch = field(default_factory=Patch)
    records: Patch = field(default_factory=Patch)
    is_denied: bool = False
    expected: Mapping[str, Any] | None = None
    essence: Any = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __bool__(self) -> bool:
        return bool(self.changes or self.records) or self.lock.locked()

    def expect(self, raw: Mapping[str, Any], patch: Mapping[str, Any]) -> None:
        """Expect the state that a merge patch makes of another one."""
        expected = apply_merge_patch(raw, patch)
        self.expected = {**expected, "metadata": _cut_metadata(expected)}

    def expects(self, raw: Mapping[str, Any]) -> bool:
        """Return whether nobody else has changed the object."""
        is_quiet = self.expected is not None
        return is_quiet and self.expected == {**raw, "metadata": _cut_metadata(raw)}

    @property
    def is_due(self) -> bool:
        """Whether anything must be sent."""
        return bool(self.changes or (self.records and not self.is_denied))


def _cut_metadata(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw["metadata"].items() if key not in _BY_SERVER}


@dataclass(slots=True)
class ReconcileState:
    """The state of one reconciler for one object.

    Attributes:
        because: what has happened since the last call.
        seen: what the object said at the last call: a generation or a digest.
        due: when to call it again even if nothing happens, by the loop's clock; None for never.
        began: when the last call began.
        early: when it can be called after a failure because of something else.
        failures: the number of failed calls since the last success.
        rest: seconds until the next call after it has taken back what others have changed: they
            could be another operator, which does the same. It grows until that ends.
        reason: why it has asked to be called again; empty if it has not.
        skipped: a patch that was not sent, since it changed nothing in a version of the object. The
            next version tells whether that was the newest one.
    """

    because: set[str] = field(default_factory=set)
    seen: str = ""
    due: float | None = None
    began: float = 0.0
    early: float = 0.0
    failures: int = 0
    rest: float = 0.0
    reason: str = ""
    skipped: tuple[int, Patch] | None = None


def _nothing() -> Any:
    return field(default_factory=lambda: _NOTHING)


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """One object of one stream.

    Attributes:
        shard: of the object; 0 if replicas do not divide the objects.
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
        unwritten: what must be written; None for nothing.
        called_at: when handlers of a change were called last, by the loop's clock.
        status: the running and failed calls of its handlers; None for none.
        daemons: its daemons and timers that have not ended, by the ids of their handlers.
        past: of those that ran: True if one must not start again, False if only its initial delay
            is over.
        view: the state as its daemons and timers see it; they may change it.
        reconcilers: the states of its reconcilers, by their ids.
    """

    stream: Owner
    uid: str
    name: str
    namespace: str | None
    shard: int = 0
    version: int = 0
    event_type: RawEventType = None
    body: dict[str, Any] | bytes | None = None
    listed: float = -1.0
    must_index: bool = False
    must_show: bool = False
    shown: int | None = None
    must_resume: bool = False
    state: State = State.IDLE
    since: float = 0.0
    due: float | None = None
    is_dirty: bool = False
    backoff: Backoff | None = None
    not_before: float = 0.0
    unwritten: Unwritten | None = None
    called_at: float = 0.0
    status: HandlingStatus | None = None
    daemons: Mapping[str, BackgroundTask] = _nothing()
    past: Mapping[str, bool] = _nothing()
    view: Body | None = None
    reconcilers: Mapping[str, ReconcileState] = _nothing()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def is_gone(self) -> bool:
        """Whether an event or a list has said that it is deleted, or out of sight."""
        return self.event_type == "DELETED"

    @property
    def may_continue(self) -> bool:
        """Whether the next function may be called: all is as its turn has decided about it.

        And all could be written so far: handlers do not run ahead of that.
        """
        is_over = self.is_gone or self.is_dirty or self.not_before
        return not is_over and self.stream.find_gate(self) is None

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

    def forget_work(self) -> None:
        """Forget what only this process knows about the work on it: others do that now."""
        self.status = self.view = self.backoff = None
        self.not_before = self.called_at = 0.0
        self.past = self.reconcilers = _NOTHING
        self.must_resume = True

    def call_again(self, handler_id: str, because: str) -> None:
        """Call a reconciler of it, since something else has happened."""
        known = self.reconcilers.get(handler_id)
        if self.is_gone or known is None:
            return
        known.because.add(because)
        self.stream.wake(self)
