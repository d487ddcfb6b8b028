"""Who owns which shards: by the Leases, and by what the replicas believe."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from tools.simulation.patience import SILENCE
from tools.simulation.replicas import LEASE, NAMESPACE, Call, ReplicaProcess
from webop.coordination.shard_map import ShardMap
from webop.objects.shards import SHARDS, find_shard, format_shards

if TYPE_CHECKING:
    from tools.simulation.invariants import Judge
    from tools.simulation.world import World
    from webop.testing.apiserver import Change

_ALL = frozenset(range(SHARDS))


class ShardJudge:
    """Watches the replicas of a world that share the work."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._map = ShardMap()  # a deleted Lease counts until there is another one
        self._slots: dict[str, tuple[str, str]] = {}  # the holders, and since when
        self._lost_at = -math.inf  # the Lease with the owners

    def note_lease(self, change: Change) -> None:
        name, lease = change.key.removeprefix(f"{NAMESPACE}/"), change.new
        if lease is None and name == f"{LEASE}-shards":
            self._lost_at = self._world.loop.time()
        if lease is None or self._world.plan.mode != "shards":
            return
        if name == f"{LEASE}-shards":
            self._map = ShardMap.parse(lease)
        else:
            spec = lease.get("spec", {})
            self._slots[name] = spec.get("holderIdentity", ""), spec.get("acquireTime", "")
        self.judge_owners()

    @property
    def can_be_unknown(self) -> bool:
        """Whether a leader that has just come may not know of owners whose watches are mute."""
        now = self._world.loop.time()
        return bool(self._world.plan.leaders) and now < self._lost_at + SILENCE

    def find_owner(self, shard: int) -> str:
        """Return the replica that owns a shard by the Leases; nothing if none does."""
        for term, shards in self._map.owners.items():
            if shard in shards and self._slots.get(term.slot) == (term.holder, term.since):
                return term.holder
        return ""

    def judge_step(self, process: ReplicaProcess, what: Call | tuple[str, str]) -> None:
        """No handler takes a step when another replica owns the shard of its object."""
        owner = self.find_owner(find_shard(what.uid if isinstance(what, Call) else what[1]))
        if process.is_sharer and owner not in {process.identity, ""}:
            self._judge.complain(f"overlap: {what} of {process} goes on, but {owner} owns it")
        self.judge_owners()

    def judge_owners(self) -> None:
        """No two replicas can act on the objects of one shard."""
        acting = [(process, _list_acting(process)) for process in self._world.processes]
        for (one, own), (other, others) in itertools.combinations(acting, 2):
            if (both := own & others) and self._judge.leadership.is_exclusive:
                self._judge.complain(f"shards: {one} and {other} act on {format_shards(both)}")

    def list_unfair(self) -> list[str]:
        """In the calm, one replica leads, or all shards have an owner, and all the same number."""
        running = [process for process in self._world.processes if process.is_running]
        leaders = {process.identity for process in running if not process.is_sharer}
        if self._world.plan.mode != "shards" or self._judge.leadership.holder in leaders:
            return []
        owners = {shard: self.find_owner(shard) for shard in _ALL}
        owned = {
            process: frozenset(shard for shard, owner in owners.items() if owner == str(process))
            for process in running
            if process.is_sharer
        }
        problems = [
            f"shards: {process} owns {format_shards(own)}, but acts on {format_shards(acting)}"
            for process, own in owned.items()
            if (acting := _list_acting(process)) != own
        ]
        if free := _ALL.difference(*owned.values()):
            problems.append(f"shards: nobody owns {format_shards(free)}")
        counts = [len(own) for process, own in owned.items() if not process.is_canary]
        if counts and max(counts) - min(counts) > 1:
            problems.append(f"shards: the shares are {sorted(counts)}")
        return problems


def _list_acting(process: ReplicaProcess) -> frozenset[int]:
    """Return the shards of whose objects a process can work on at the moment."""
    context = process.operator.context
    fence, ownership = context.pausing.fence, context.ownership
    if not process.is_running or fence is None or fence.rest <= 0:
        return frozenset()
    if ownership.is_divided:
        return ownership.owned - ownership.leaving
    return _ALL if context.pausing.is_active else frozenset()
