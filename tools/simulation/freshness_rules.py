"""What calls are for: no outdated states."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from tools.simulation.patience import LAG, SILENCE
from tools.simulation.replicas import Call, Wish, get_wish
from tools.simulation.themes import STATE_KINDS

if TYPE_CHECKING:
    from tools.simulation.invariants import Judge
    from tools.simulation.world import World
    from webop.testing.apiserver import Change, Json

_STALENESS = 1.0  # seconds in which a state reaches a handler, besides the indexers
_INDEXED_STATES = 9  # that can be indexed one after the other before that


class FreshnessJudge:
    """Compares what handlers of changes are called for with what is there."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._wishes: dict[str, list[tuple[float, Wish | None]]] = defaultdict(list)
        self._deleted: dict[str, float] = {}  # since when, by uid

    def note_change(self, change: Change) -> None:
        """Take note of what users want, and of a deletion."""
        old, new, now = change.old, change.new, self._world.loop.time()
        body: Json = new or old or {}
        uid, wish = body["metadata"]["uid"], None if new is None else get_wish(new)
        if new is None or "deletionTimestamp" in body["metadata"]:
            self._deleted.setdefault(uid, now)
        if not self._wishes[uid] or self._wishes[uid][-1][1] != wish:
            self._wishes[uid].append((now, wish))

    def judge_call(self, call: Call) -> None:
        """Handlers of changes see a state that is not outdated, of what may still be there."""
        if call.plan.kind not in STATE_KINDS:
            return
        since = call.begin - _STALENESS - _INDEXED_STATES * call.process.indexing
        known = [wish for at, wish in self._wishes[call.uid] if at < since]
        world = self._world
        is_disturbed = world.was_disturbed(since - SILENCE, call.begin, ignored="start")
        is_disturbed |= world.lagging[1] > since - LAG or world.peers.is_anybody_known
        if not known or is_disturbed:
            return
        deleted_at = self._deleted.get(call.uid, math.inf)
        if call.reason != "delete" and deleted_at < since:
            self._judge.complain(f"stale: {call}, which is being deleted since {deleted_at:.3f}")
        last = known[-1]  # values and notes only grow
        if last is not None and (last.value > call.wish.value or last.note > call.wish.note):
            self._judge.complain(f"stale: {call}, but {last} since before {since:.3f}")
