"""Who may act: rules about the Lease, and about peers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tools.simulation.patience import AFTERMATH, LAG, NOTICE, RECOVERY, SILENCE
from tools.simulation.replicas import LEASE, NAMESPACE, Call, ReplicaProcess
from tools.simulation.shard_rules import ShardJudge

if TYPE_CHECKING:
    from tools.simulation.invariants import Judge
    from tools.simulation.world import World
    from webop.testing.apiserver import Change

_RENEWAL = 8.0  # seconds; two seconds are between two attempts, after ten all is lost
_AFTERMATH_OF_PEERS = 80.0  # seconds: a watch can be silent for 70, a record last for 60


class LeadershipJudge:
    """Watches who acts in a world."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self.shards = ShardJudge(world, judge)
        self._renewed: dict[str, tuple[float, str | None]] = {}  # by Lease
        self._peer_records: dict[str, float] = {}  # since when they are in the peering object
        self._members: set[str] = set()  # all that ever had a record there
        self._absent_until = 0.0  # the peering object; infinite while it does not exist

    @property
    def holder(self) -> str | None:
        """The leader; with shards, the owner of the first one."""
        leader = self._renewed.get(f"{NAMESPACE}/{LEASE}", (0.0, None))[1]
        return leader or self.shards.find_owner(0)

    def judge_step(self, process: ReplicaProcess, what: Call | tuple[str, str]) -> None:
        """No handler takes a step when another replica holds the Lease, or owns the shard."""
        if self._world.plan.mode == "shards":
            if self.is_exclusive:
                self.shards.judge_step(process, what)
        elif self.is_exclusive and self.holder not in {process.identity, None, ""}:
            self._judge.complain(f"overlap: {what} of {process} goes on, but {self.holder} leads")

    def judge_peers(self, call: Call) -> None:
        """Nothing is done while an operator of others is there that goes first."""
        rival = self._world.peers.find_rival(call.process.number, NOTICE)
        since = call.begin - SILENCE
        is_disturbed = self._world.was_disturbed(since, call.begin, ignored="start")
        is_disturbed |= self._world.lagging[1] >= call.begin - NOTICE
        # An operator that does not know of peerings yet acts by itself.
        learning = NOTICE + self._world.plan.discovery_lag if self._world.plan.discovery_lag else 0
        is_disturbed |= call.begin < call.process.started_at + learning
        if rival is not None and not is_disturbed:
            self._judge.complain(f"peering: {call} while {rival} is there")

    def judge_rivals(self, process: ReplicaProcess, what: object) -> None:
        """Nothing is begun while somebody of a higher priority is at work, or has its record there.

        Those whose watches are mute or late cannot know that others have come. An operator that
        sees that the object was deleted, but not that it exists again, writes no record.
        """
        now, was_disturbed = self._world.loop.time(), self._world.was_disturbed
        for other in self._world.processes if self._world.plan.mode == "peering" else ():
            is_rival = other.is_running and not other.is_paused and other.number > process.number
            moments = [
                call.begin
                for call in self._world.calls
                if call.process is other and call.end is None
            ]
            moments += [other.started_daemons[key] for key, count in other.daemons.items() if count]
            moments += [self._peer_records.get(other.identity, now)]
            # Operators learn of kinds, that of peerings among them, at different moments.
            notice = NOTICE if self._world.plan.discovery_lag else LAG
            if not is_rival or min(moments) > now - notice:
                continue
            # Without a peering object, an operator acts by itself. Its peers cannot know of it.
            if other.identity not in self._members and now - 2 * notice < self._absent_until:
                continue
            since = now - _AFTERMATH_OF_PEERS
            is_deaf = was_disturbed(other.started_at - SILENCE, other.started_at + LAG, "watches")
            is_late = was_disturbed(since, now, "watches") or self._world.lagging[1] >= since
            is_deaf |= is_late and was_disturbed(since, now, "unlock")
            lag_begin, lag_end = self._world.lagging  # which may hide a record that is new
            joined_at = self._peer_records.get(other.identity, now)
            is_deaf |= joined_at > lag_begin - LAG and now < lag_end + LAG
            if not is_deaf and not was_disturbed(since, now, "kopfpeering"):
                self._judge.complain(f"overlap: {what} begins in {process}, but {other} is there")

    @property
    def is_exclusive(self) -> bool:
        """Whether replicas know of each other by the Lease: not deleted before all have read it."""
        deleted_at = self._world.unlocked_at
        if self.shards.can_be_unknown:
            return False
        if not self._world.plan.has_leases or deleted_at is None:
            return self._world.plan.has_leases
        if self._world.loop.time() - deleted_at > AFTERMATH:
            return True
        was_disturbed = self._world.was_disturbed
        return all(
            one.started_at < deleted_at - LAG
            and not was_disturbed(one.started_at, deleted_at - LAG, "leases")
            for one in self._world.processes
            if one.is_running
        )

    def judge_lease(self, change: Change) -> None:
        """A holder renews in time, whatever its objects do to it."""
        now = self._world.loop.time()
        holder = (change.new or {}).get("spec", {}).get("holderIdentity")
        since = self._renewed.get(change.key, (0.0, None))
        self._renewed[change.key] = now, holder
        self.shards.note_lease(change)
        is_disturbed = self._world.was_disturbed(since[0] - RECOVERY, now, "leases")
        if holder and since[1] == holder and now - since[0] > _RENEWAL and not is_disturbed:
            self._judge.complain(
                f"renewal: {holder} has renewed its lease after {now - since[0]:.1f} s"
            )

    def note_peers(self, change: Change) -> None:
        known, now = self._peer_records, self._world.loop.time()
        records = (change.new or {}).get("status", {})
        self._peer_records = {identity: known.get(identity, now) for identity in records}
        self._members.update(records)
        if change.new is None:
            self._absent_until = math.inf
        elif change.old is None:
            self._absent_until = now
