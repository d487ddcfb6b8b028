"""What the reactor remembers of each object it has seen.

Little, on purpose: bodies are dropped as soon as there is nothing to do, so that an idle object
costs a few hundred bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from webop.handling.handlers import Reason
from webop.objects.body import RawEventType
from webop.objects.fields import Snapshot, clone
from webop.objects.patch import Patch

if TYPE_CHECKING:
    from webop.reactor.background import Background
    from webop.reactor.planning import Plan


class Keeper(Protocol):
    """Who keeps the object, and sees to it that somebody works on it."""

    epoch: int
    has_indexes: bool

    def check(self, obj: Tracked) -> None:
        """Start work on the object if there is any, and nobody is at it."""


@dataclass(slots=True)
class Cycle:
    """A handling cycle under way: nothing that changes in its course is lost on anyone (D-67).

    Attributes:
        reason: why the handlers are called.
        essence: the newest state of the object that the cycle is about; it is stored as handled
            when the cycle ends. A creation stays with the state at its start: what changes in its
            course is an update, to be handled after it.
        handler_ids: who took part at the start.
        bases: the states that handlers have seen last, if they are to be called again for what
            has changed since then; others see what has changed since the last-handled state.
    """

    reason: Reason
    essence: Any
    handler_ids: frozenset[str]
    bases: dict[str, Any] = field(default_factory=dict)


class Tracked:
    """One object of one watched resource.

    Attributes:
        raw: the newest known state; None when there is nothing to do about it.
        event_type: the type of the event that brought ``raw``.
        version: the newest known resource version as a number; 0 if it is not a number.
        epoch: the listing (by its count) during which ``version`` came from a patch of our own.
        initial: whether the object was there before the operator and is yet to be resumed.
        events: the events not yet shown to the handlers of events.
        plan: what is to be done about ``raw``, if it was found out already.
        unsaved: what is to be written before anything else, as the API server was away.
        is_released: whether all deletion handlers have finished, so that the object may go.
        is_provided: whether the daemons that ``raw`` asks for were started; those that end later
            are not started again before there is another event.
        is_unindexed: whether the indexes are to be told of ``raw``.
        background: its daemons and timers, if it has any.
        paused_until: by the loop's clock, the end of the pause after an error of the framework.
    """

    __slots__ = (
        "background",
        "cycle",
        "epoch",
        "error_delays",
        "event_type",
        "events",
        "initial",
        "is_busy",
        "is_dirty",
        "is_provided",
        "is_released",
        "is_unindexed",
        "keeper",
        "name",
        "namespace",
        "news",
        "paused_until",
        "plan",
        "raw",
        "seen",
        "timer",
        "uid",
        "unsaved",
        "version",
    )

    def __init__(self, keeper: Keeper, uid: str, raw: dict[str, Any], *, initial: bool) -> None:
        self.keeper = keeper
        self.uid = uid
        self.namespace: str | None = raw["metadata"].get("namespace")
        self.name: str = raw["metadata"]["name"]
        self.initial = initial
        self.raw: dict[str, Any] | None = None
        self.event_type: RawEventType = None
        self.version = 0
        self.epoch = -1
        self.seen = -1
        self.is_busy = False
        self.is_dirty = False
        self.events: list[tuple[RawEventType, dict[str, Any]]] | None = None
        self.cycle: Cycle | None = None
        self.plan: Plan | None = None
        self.unsaved: Patch | None = None
        self.is_released = False
        self.is_provided = False
        self.is_unindexed = False
        self.background: Background | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.error_delays: Iterator[float] | None = None
        self.paused_until = 0.0
        self.news: asyncio.Event | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def accept(self, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Take over a newer state."""
        self.event_type = event_type
        self.raw = raw
        self.version = parse_version(raw)
        self.is_dirty = True
        self.is_provided = False
        if self.background is not None and self.background.tasks:
            self.background.show(clone(raw))  # theirs to spoil
        if self.news is not None:
            self.news.set()

    def accept_own(self, raw: dict[str, Any]) -> None:
        """Take over the answer to a patch of ours, unless something newer is known already."""
        version = parse_version(raw)
        if version > self.version or (not version and raw != self.raw):
            self.accept("MODIFIED", raw)
            self.is_unindexed = self.keeper.has_indexes
            self.epoch = self.keeper.epoch
            self.keeper.check(self)

    def wake(self) -> None:
        """Have the object looked at as it is: something in its background has ended."""
        if self.event_type != "DELETED" and self.background is not None:
            if self.raw is None:
                self.raw = self.background.raw
            self.is_dirty = True
        self.keeper.check(self)

    @property
    def is_view(self) -> bool:
        """Whether ``raw`` is what daemons have been shown, and may have changed in place."""
        return self.background is not None and self.raw is self.background.raw

    @property
    def has_background(self) -> bool:
        """Whether daemons or timers run for it, or are yet to end."""
        return self.background is not None and bool(self.background.tasks)

    def restore(self, snapshot: Snapshot) -> None:
        """Undo what handlers have changed in place in the newest known state, if it still is."""
        if self.raw is snapshot.document:
            self.raw = snapshot.restore()

    def get_freshest(self) -> dict[str, Any] | None:
        """Return the newest known state; None if there is none, or if the object is gone."""
        if self.event_type == "DELETED":
            return None
        if self.raw is None and self.background is not None:
            return self.background.raw or None
        return self.raw

    def relax(self) -> None:
        """Free what is not needed while there is nothing to do."""
        self.raw = None
        self.is_dirty = False
        self.is_provided = True
        if self.background is not None and not self.background.tasks:
            self.background = self.background.without_body()

    def abandon(self) -> None:
        """Forget how far the work on it has come: others go on with it from what is stored."""
        self.events = None
        self.cycle = None
        self.plan = None
        self.unsaved = None
        self.is_released = False
        self.error_delays = None
        self.paused_until = 0.0

    async def wait_for_news(self, timeout: float | None) -> bool:
        """Wait for a state that differs from the present one; tell whether it has come."""
        self.news = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                await self.news.wait()
        except TimeoutError:
            return False
        else:
            return True
        finally:
            self.news = None

    def throttle(self, delays: float | Iterable[float]) -> float | None:
        """Return the pause after one more error of the framework; None if there are to be none."""
        if self.error_delays is None:
            self.error_delays = repeat_last(delays)
        delay = next(self.error_delays, None)
        if delay is not None:
            self.paused_until = asyncio.get_running_loop().time() + delay
        return delay

    def find_rest(self) -> float:
        """Return the seconds that are left of the pause after an error; 0 if there is none."""
        if not self.paused_until:
            return 0
        rest = self.paused_until - asyncio.get_running_loop().time()
        if rest <= 0:
            self.paused_until = 0.0
        return max(0, rest)


def get_uid(raw: dict[str, Any]) -> str:
    """Return what identifies an object; aggregated APIs may have objects without a uid."""
    metadata = raw["metadata"]
    uid: str | None = metadata.get("uid")
    return uid or f"{metadata.get('namespace', '')}/{metadata['name']}"


def parse_version(raw: dict[str, Any]) -> int:
    """Return the resource version as a number: they can be compared since Kubernetes 1.35."""
    version = raw.get("metadata", {}).get("resourceVersion", "")
    return int(version) if version.isdecimal() else 0


def repeat_last(delays: float | Iterable[float]) -> Iterator[float]:
    """Iterate over the delays, then repeat the last one for ever."""
    last: float | None = None
    for last in (delays,) if isinstance(delays, (int, float)) else delays:
        yield last
    while last is not None:
        yield last
