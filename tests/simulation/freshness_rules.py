"""What calls are for: no outdated states, nothing that the API server has said to be gone."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.simulation.patience import LAG, SILENCE
from tests.simulation.replicas import PLURAL, Call, Wish, get_wish
from tests.simulation.themes import STATE_KINDS

if TYPE_CHECKING:
    from tests.simulation.invariants import Judge
    from tests.simulation.network import Sender
    from tests.simulation.world import World
    from webop.testing.apiserver import Change, Json, Request, Response

_STALENESS = 1.0  # seconds in which a state reaches a handler, besides the indexers
_INDEXED_STATES = 9  # that can be indexed one after the other before that


class FreshnessJudge:
    """Compares what handlers of changes are called for with what is there."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._wishes: dict[str, list[tuple[float, Wish | None]]] = defaultdict(list)
        self._deleted: dict[str, float] = {}  # since when, by uid
        self._missed: dict[tuple[str, str], float] = {}  # since when, by process and uid

    def note_change(self, change: Change) -> None:
        """Take note of what users want, and of a deletion."""
        old, new, now = change.old, change.new, self._world.loop.time()
        body: Json = new or old or {}
        uid, wish = body["metadata"]["uid"], None if new is None else get_wish(new)
        if new is None or "deletionTimestamp" in body["metadata"]:
            self._deleted.setdefault(uid, now)
        if not self._wishes[uid] or self._wishes[uid][-1][1] != wish:
            self._wishes[uid].append((now, wish))

    def note_answer(self, sender: Sender, sent: Request, answer: Response) -> None:
        """Take note that the API server tells a process that an object is gone."""
        if sent.method != "PATCH" or PLURAL not in sent.path or answer.status not in {404, 422}:
            return
        details = answer.body.get("details", {})
        fields = [cause.get("field") for cause in details.get("causes") or ()]
        is_gone = (answer.status == 404 and details.get("name")) or "metadata.uid" in fields
        body = json.loads(sent.body or b"{}")
        uid = body.get("metadata", {}).get("uid") if isinstance(body, dict) else None
        if is_gone and uid in self._judge.gone:
            self._missed.setdefault((sender.identity, uid), self._world.loop.time())

    def judge_call(self, call: Call) -> None:
        """Handlers of changes see a state that is not outdated, of what may still be there."""
        if call.plan.kind not in STATE_KINDS:
            return
        missed_at = self._missed.get((call.process.identity, call.uid), math.inf)
        if missed_at < call.begin:
            self._judge.complain(
                f"repetition: {call}, which is gone, as it knows since {missed_at:.3f}"
            )
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
