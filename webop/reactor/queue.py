"""The work queue of one kind: which object has its turn next. Plain data, without I/O.

An object is in it at most once: in a lane, until it is due, or in a hold. Events during its turn
only mark it, and :meth:`WorkQueue.done` queues it again.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from webop.reactor.entry import Entry, State

_LIVE_FIRST: Final = 5  # of so many turns, one is for listed objects
_STALE: Final = 100  # times of objects that have been queued in another way


class Rest(NamedTuple):
    """The result of a turn: nothing is left to do until something happens."""


class Later(NamedTuple):
    """The result of a turn: the next one follows after some seconds."""

    seconds: float


class Held(NamedTuple):
    """The result of a turn: the next one follows when a hold ends."""

    key: Hashable


Result = Rest | Later | Held
REST: Final = Rest()


class WorkQueue:
    """The objects of one kind that wait for their turns.

    There are two lanes: one for objects that have changed, or whose handlers have begun, and one
    for listed objects. While both have objects, four of five turns are for the first lane.

    Args:
        clock: returns the moment by which objects are due.

    Attributes:
        count: the number of objects that wait in any way.
        holds: why some turns must end early, by the keys of the holds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.count = 0
        self.holds: dict[Hashable, OrderedDict[Entry, None]] = {}
        self._clock = clock
        self._live = OrderedDict[Entry, None]()
        self._listed = OrderedDict[Entry, None]()
        self._turns = itertools.count(1)
        self._due: list[tuple[float, int, Entry]] = []
        self._numbers = itertools.count()

    @property
    def next_due(self) -> float | None:
        """When the next object is due, by the clock; None if none is."""
        while self._due and self._due[0][2].due != self._due[0][0]:
            heapq.heappop(self._due)  # it has been queued in another way
        return self._due[0][0] if self._due else None

    def add(self, obj: Entry, *, after: float = 0.0) -> None:
        """Queue an object; of two times, the earlier one counts.

        Args:
            obj: the object.
            after: the seconds until it is due.
        """
        if obj.state is State.RUNNING:
            obj.is_dirty = True
        elif after > 0:
            self._add_due(obj, self._clock() + after)
        elif obj.state is not State.WAITING:
            self.remove(obj)
            self._put_into_lane(obj)

    def get(self) -> Entry | None:
        """Return the object whose turn begins; None if none is ready."""
        lane = self._live or self._listed
        if self._live and self._listed and next(self._turns) % _LIVE_FIRST == 0:
            lane = self._listed
        if not lane:
            return None
        obj, _ = lane.popitem(last=False)
        self.count -= 1
        obj.state, obj.since, obj.is_dirty = State.RUNNING, time.monotonic(), False
        return obj

    def done(self, obj: Entry, result: Result) -> None:
        """End the turn of an object; queue it again as its result says."""
        obj.state, obj.since = State.IDLE, 0.0
        match result:
            case Later(seconds) if not obj.is_dirty:
                self.add(obj, after=seconds)
            case Held(key) if not obj.is_dirty and key in self.holds:
                self._enter(obj, State.HELD)
                self.holds[key][obj] = None
            case Rest() if not obj.is_dirty:
                pass
            case _:
                self.add(obj)

    def ripen(self) -> None:
        """Move the objects that are due into their lanes."""
        moment = self._clock()
        while (due := self.next_due) is not None and due <= moment:
            _, _, obj = heapq.heappop(self._due)
            self.remove(obj)
            self._put_into_lane(obj)

    def hold(self, key: Hashable) -> None:
        """Let turns that ask for this hold end early, and their objects wait."""
        self.holds.setdefault(key, OrderedDict())

    def unhold(self, key: Hashable) -> None:
        """End a hold; its objects wait for their turns again."""
        for obj in self.holds.pop(key, ()):
            obj.state = State.IDLE
            self.count -= 1
            self._put_into_lane(obj)

    def release(self, key: Hashable) -> Entry | None:
        """Let one object of a hold have its turn, and return it; the hold goes on."""
        if not (held := self.holds.get(key)):
            return None
        obj = next(iter(held))
        self.remove(obj)
        self._put_into_lane(obj)
        return obj

    def remove(self, obj: Entry) -> None:
        """Remove an object, wherever it waits."""
        if obj.state in (State.IDLE, State.RUNNING):
            return
        if obj.state is State.HELD:
            for held in self.holds.values():
                held.pop(obj, None)
        self._live.pop(obj, None)
        self._listed.pop(obj, None)
        obj.due, obj.state, obj.since = None, State.IDLE, 0.0
        self.count -= 1

    def _enter(self, obj: Entry, state: State) -> None:
        obj.state, obj.since = state, time.monotonic()
        self.count += 1

    def _put_into_lane(self, obj: Entry) -> None:
        self._enter(obj, State.WAITING)
        lane = self._listed if obj.event_type is None else self._live
        lane[obj] = None

    def _add_due(self, obj: Entry, due: float) -> None:
        if obj.state is State.RESTING and obj.due is not None and obj.due <= due:
            return
        if obj.state in (State.WAITING, State.HELD):  # it comes earlier, or must not
            return
        self.remove(obj)
        if len(self._due) > 2 * self.count + _STALE:
            self._due = [one for one in self._due if one[2].due == one[0]]
            heapq.heapify(self._due)
        self._enter(obj, State.RESTING)
        obj.since, obj.due = 0.0, due
        heapq.heappush(self._due, (due, next(self._numbers), obj))
