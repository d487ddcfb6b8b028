"""The replicas of a sharded operator: each has a Lease, and one Lease says who owns which shards.

Flow: :mod:`webop.coordination.election` asks for a slot (:meth:`Members.join`), and renews it as a
leader renews its Lease, behind the same fence. Meanwhile :meth:`Members.run` takes free shards and
gives up those that are too many; :mod:`webop.context.ownership` tells the streams.

Guarantees:
    - Two replicas never handle an object at once. A shard is taken only when the term of its owner
      is over: its Lease says otherwise now. If a replica has not renewed its Lease in time, another
      one writes that into it first. A late renewal is refused then, and the fence of that replica
      has ended.
    - If the Lease with the owners is deleted, nobody takes shards from the new one as long as a
      replica runs that has worked by the old one.
    - Replicas that elect a leader (``--lease``) do not act as long as others own shards, and these
      take no shards as long as there is a leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from webop.aio.backoff import Once
from webop.aio.concurrency import wait_and_clear
from webop.aio.work_deadline import Fence
from webop.client.api import Client
from webop.client.http.requests import Selection
from webop.client.watch import ListingFinished, ListingStarted, WatchStatus, watch
from webop.context.child_store import build_label
from webop.context.operator_context import OperatorContext
from webop.coordination.canary import Canary
from webop.coordination.held_lease import ObservedLease
from webop.coordination.lease_content import NOTHING, LeaseTimes, is_newer
from webop.coordination.shard_map import (
    CANARY,
    DIVISION,
    LABEL,
    MAP_UID,
    SLOTS,
    ShardMap,
    Term,
    divide,
    is_slot,
    parse_count,
)
from webop.coordination.timed_requests import LEASES, LeaseAccess
from webop.errors import APIError, APIForbiddenError
from webop.objects.shards import SHARDS, format_shards

logger = logging.getLogger(__name__)

_SETTLING: Final = 2.5  # retry periods without a change of replicas; then shards move
_RESTING: Final = 4  # lease durations; a shard that did not become idle is tried again after that
_LONGEST: Final = 60.0  # seconds between two looks
_POLLING: Final = 0.1  # seconds; while shards are being left


class Members:
    """The replicas that share the shards of one operator, as this one sees them.

    ``lease`` is the one that a leader would have. Requests about Leases raise APIError.

    Attributes:
        map: who owns which shards, as far as known.
        moves: how many shards this replica has got and given up.
        canary: whether this replica only tries its version.
        problem: a text: why this replica cannot own more; empty if it can.
    """

    def __init__(
        self,
        operator: OperatorContext,
        client: Client,
        lease: LeaseAccess,
        times: LeaseTimes,
        fence: Fence,
        on_change: Callable[[], None],
    ) -> None:
        self._on_change = on_change
        self._operator = operator
        self._ownership = operator.ownership
        self._client = client
        self._times = times
        self._fence = fence
        self._namespace, self._name = lease.namespace, lease.name
        self._prefix = f"{lease.name}-member-"
        self._label = build_label(lease.name)
        self._rival = self._open(lease.name)
        self._slots: dict[str, ObservedLease] = {}
        self._own: ObservedLease | None = None
        map_name = f"{lease.name}-shards"
        self._map_access = LeaseAccess(client, lease.namespace, map_name, lease.timeout)
        self._map_raw: dict[str, Any] | None = None
        self._shown_uid = ""  # of the map, as the watch has shown it
        self._status = WatchStatus()
        self._is_listed = False
        self._changed = asyncio.Event()
        self._known: dict[Term, int | None] = {}
        self._settled_at = math.inf
        self._moments: dict[int, float] = {}  # when shards were left, or have refused to move
        self._gift_at = 0.0  # when shards are given up next: the new owner lists for each gift
        settings = operator.settings.leadership
        kinds = " ".join(sorted(map(str, settings.unsharded)))
        self._division = f"{settings.shard_by} {kinds}".strip()
        self.canary = Canary(settings, operator.counters)
        self._once = Once()
        self.map = ShardMap()
        self.moves = Counter[str]()
        self.problem = ""

    @property
    def lease(self) -> str:
        """The namespace and the name of the Lease with the owners."""
        return str(self._map_access)

    @property
    def slot(self) -> str:
        """The name of the own Lease; empty if this replica holds none."""
        return "" if self._own is None else self._own.name

    @property
    def count(self) -> int:
        """The number of replicas that share the shards."""
        return len(self._known)

    @property
    def running(self) -> dict[Term, frozenset[int]]:
        """The owners that run, as far as known, and their shards."""
        owners = self.map.owners.items()
        return {term: shards for term, shards in owners if not self._is_over(term)}

    @property
    def unowned(self) -> frozenset[int]:
        """The shards that no running replica owns."""
        return frozenset(range(SHARDS)).difference(*self.running.values())

    @property
    def obstacle(self) -> str:
        """A text: why no replica could share the shards; empty if they can."""
        if self.map.problem:
            return f"the lease {self._map_access} cannot be used: {self.map.problem}; delete it"
        if not self._is_listed:
            return f"the leases of {self._name} are not known: {self._status.error or 'listing'}"
        return ""

    def describe(self) -> str:
        """Return a text: what this replica owns, and by which Lease."""
        own = self._ownership.owned
        shards = f"{len(own)} of {SHARDS} shards ({format_shards(own)})" if own else "no shards"
        problem = f"; {self.problem}" if self.problem else ""
        if self._own is None:
            return f"waiting for a lease {self._prefix}00 to -{SLOTS - 1}{problem}"
        return f"owning {shards} by the lease {self._own}; replicas: {self.count}{problem}"

    # What is known

    async def watch(self) -> None:
        """Observe the Leases of all replicas, and the owners, forever."""
        options = self._operator.settings.watching
        selection = Selection({"labelSelector": f"{LABEL}={self._label}"})
        shown = set[str]()
        items = watch(self._client, LEASES, self._namespace, options, self._status, selection)
        async with aclosing(items):
            async for item in items:
                if isinstance(item, ListingStarted):
                    shown.clear()
                elif isinstance(item, ListingFinished):
                    self._is_listed = True
                    known = [self._map_access.name, *self._slots]
                    for name in (name for name in known if name not in shown):
                        self._note(name, None, item.resource_version)
                else:
                    event_type, raw = item
                    meta = raw["metadata"]
                    shown.add(name := meta["name"])
                    state = None if event_type == "DELETED" else raw
                    self._note(name, state, meta.get("resourceVersion"))
                self._changed.set()

    def _note(self, name: str, raw: dict[str, Any] | None, version: str | None) -> None:
        """Accept what the watch has shown of a Lease, unless a newer state is known."""
        if name == self._map_access.name:
            self._shown_uid = "" if raw is None else raw["metadata"]["uid"]
            if is_newer(version, self._map_raw):
                self._accept_map(raw)
        elif is_slot(name, self._prefix) and is_newer(version, self._get_slot(name).raw):
            self._get_slot(name).note_change(raw)

    def _accept_map(self, raw: dict[str, Any] | None) -> None:
        self._map_raw, self.map = raw, ShardMap.parse(raw)
        self._expect_owners()

    def _expect_owners(self) -> None:
        """Let the time of owners begin whose Leases do not exist: somebody has deleted these.

        Watches can be silent: the known content of such a Lease can be older than its owner.
        """
        for term in self.map.owners:
            slot = self._get_slot(term.slot)
            is_newer_term = term.since > slot.record.acquired_at
            if slot.raw is None and is_newer_term and not slot.is_own:
                slot.expect(term.holder, term.since)

    def _open(self, name: str) -> ObservedLease:
        access = LeaseAccess(self._client, self._namespace, name, self._times.request_timeout)
        return ObservedLease(access, self._times, self._operator.identity, self._fence)

    def _get_slot(self, name: str) -> ObservedLease:
        if name not in self._slots:
            self._slots[name] = self._open(name)
            self._slots[name].marks = {"labels": {LABEL: self._label}}
            self._slots[name].ends_if_deleted = True
        return self._slots[name]

    def _is_over(self, term: Term) -> bool:
        """Return whether the Lease of an owner has another holder, or none, as far as known."""
        slot = self._slots[term.slot]
        return (slot.record.holder, slot.record.acquired_at) != (term.holder, term.since)

    def _find_breach(self) -> str:
        """Return why the term of this replica must end: what it owned by is gone."""
        if self._own is None:
            return "it holds no lease"
        if self.map.uid != self._own.marks["annotations"][MAP_UID]:
            return f"the lease {self._map_access} has been deleted"
        # The response to a write that gives up some can have been lost.
        lost = self._ownership.owned - self._ownership.leaving - self.map.get(self._term)
        if lost and not self.map.problem:
            return f"the lease {self._map_access} names other owners of the shards"
        return self.map.problem

    @property
    def _term(self) -> Term:
        claim = NOTHING if self._own is None else self._own.claimed or NOTHING
        return Term(self._own.name if self._own else "", claim.holder, claim.acquired_at)

    # The Lease of this replica

    async def join(self) -> ObservedLease | None:
        """Try to acquire the Lease of a free slot, or to go on with the own one; None in vain."""
        if (own := self._own) is not None and own.is_own:
            try:
                if not self._find_breach() and await own.hold():
                    return own
            except APIForbiddenError:
                own.claimed = None  # another slot can be free by now
                raise
            await own.release()
        former, self._own = self._term, None
        self._follow(frozenset())
        await self._refresh_map()
        if self._map_raw is None:
            new = {"metadata": {"name": self._map_access.name}}
            await self._map_access.write(ShardMap().write(new, self._label))
            await self._refresh_map()
        self.problem = self.obstacle
        if self.problem:
            return None
        # Who cannot write the rest of a former term out of it must not have a share.
        await self._send(self.map.give(self.map.get(former), former))
        if self._map_raw is None:
            return None  # somebody has deleted it
        named = {term.slot for term in self.map.owners}
        for number in range(SLOTS):
            slot = self._get_slot(name := f"{self._prefix}{number:02}")
            if slot.wait or (slot.raw is None and name in named):
                continue
            try:
                await slot.refresh()  # RBAC can limit this to names, but not a creation
            except APIForbiddenError:
                if slot.raw is None:
                    raise
                continue
            slot.marks = {**slot.marks, "annotations": self._build_notes()}
            if await slot.hold():
                self._own = slot
                return slot
        self.problem = f"all of its {SLOTS} leases are held"
        return None

    def _build_notes(self) -> dict[str, str]:
        # Also for other replicas: the former holder of the Lease can have been a canary.
        canary = "" if self.canary.shards is None else str(self.canary.shards)
        return {MAP_UID: self.map.uid, DIVISION: self._division, CANARY: canary}

    # The shards of this replica

    async def run(self) -> str:
        """Take shards, and give up shards, as long as the Lease is held; return why it must end."""
        while not (breach := self._find_breach()):
            self.problem = self.canary.failure
            try:
                pause = await self._step()
                self._once.forget("failure")
            except APIError as exc:
                pause, self.problem = self._times.period, str(exc)
                if self._once.is_new("failure", type(exc)):
                    logger.warning("Cannot share the shards of %s: %s", self._name, exc)
            await self.wait(pause)
        return breach

    async def wait(self, seconds: float) -> None:
        """Wait until a Lease has changed, for at most so many seconds."""
        await wait_and_clear(self._changed, seconds)

    async def _step(self) -> float:
        """Do what is due at the moment; return the seconds until the next look."""
        clock, ownership, term = self._fence.clock, self._ownership, self._term
        for slot in [*self._slots.values()]:
            former = slot.record
            try:
                await slot.expire()
            except APIForbiddenError as exc:  # the others can go on
                self.problem = str(exc)
            if former.holder and slot.record.holder != former.holder:
                text = "The replica %s has not renewed the lease %s for %d s: its shards are free."
                seconds = former.duration or self._times.duration
                logger.info(text, former.holder, slot, seconds)
        if self._own is not None and self.canary.judge():
            notes = {**self._own.marks["annotations"], CANARY: "0"}
            self._own.marks = {**self._own.marks, "annotations": notes}
        members = self._list_members()
        if members != self._known:
            self._known, self._settled_at = members, clock() + _SETTLING * self._times.period
        claimed = self.map.get(term)
        if claimed != ownership.owned:
            await self._adopt()
        agrees = self._agrees()
        wanted = divide(members, {each: len(self.map.get(each)) for each in members}).get(term, 0)
        if len(claimed) < wanted and self.unowned and agrees:
            await self._take(wanted - len(claimed))
        elif clock() >= self._settled_at or self.canary.failure:
            self._leave(len(claimed) - len(ownership.leaving) - wanted)
        if ownership.leaving:
            await self._give_up()
            return _POLLING
        is_done = len(self.map.get(term)) == wanted and not self.problem and not self.canary.shards
        now, moments = clock(), [self._settled_at, *self._moments.values()]
        waits = [slot.wait for slot in self._slots.values() if slot.wait]
        waits += [moment - now for moment in moments if now < moment < math.inf]
        return min([_LONGEST if is_done else self._times.period, *waits])

    def _list_members(self) -> dict[Term, int | None]:
        """Return the running replicas, and how many shards canaries want."""
        found = {}
        for slot in self._slots.values():
            is_running = slot.record.holder and (slot is self._own or slot.wait)
            if is_running and self._read_rule(slot) == self._rule:
                found[_read_term(slot)] = parse_count(_read_note(slot, CANARY))
        if self._own is not None:
            found[self._term] = self.canary.shards
        return found

    async def _take(self, count: int) -> None:
        """Own so many more shards, unless there is a leader (``--lease``)."""
        if await self._has_leader():
            return
        over = set[Term]()
        for term in filter(self._is_over, [*self.map.owners]):
            await self._get_slot(term.slot).refresh()  # what is known can be from before the term
            self._expect_owners()
            over |= {term} if self._is_over(term) else set()
        alive = [shards for term, shards in self.map.owners.items() if term not in over]
        shards = frozenset(sorted(frozenset(range(SHARDS)).difference(*alive))[:count])
        if not shards or not self._agrees():
            return
        if await self._write(self.map.take(shards, self._term)):
            await self._adopt()

    @property
    def _rule(self) -> tuple[str, str]:
        return self.map.uid, self._division

    @staticmethod
    def _read_rule(slot: ObservedLease) -> tuple[str, str]:
        """Return by what a replica shares: the uid of the Lease with the owners, and settings."""
        return _read_note(slot, MAP_UID), _read_note(slot, DIVISION)

    def _agrees(self) -> bool:
        """Return whether all replicas work by the same Lease with owners, and the same settings."""
        held = [slot for slot in self._slots.values() if slot.record.holder]
        others = set(map(self._read_rule, held)) - {self._rule}
        if others:
            self.problem = (
                "replicas with other settings of shards, or of a deleted lease, still run"
            )
            if self._once.is_new("others", others):
                logger.warning("This replica takes no shards: %s.", self.problem)
        return not others and self._shown_uid == self.map.uid

    async def _adopt(self) -> None:
        """Handle the objects of the shards that the Lease with the owners says, and no others."""
        ownership = self._ownership
        before = len(ownership.owned)
        is_led = not self.map.get(self._term) <= ownership.owned and await self._has_leader()
        claimed = self.map.get(self._term)
        if self._find_breach():
            return
        if is_led:
            await self._write(self.map.give(claimed - ownership.owned, self._term))
        elif self._follow(claimed):
            self._on_change()
            text = self.describe().removeprefix("owning ")
            logger.info("This replica owns %s; before: %d shards.", text, before)

    def _follow(self, shards: frozenset[int]) -> bool:
        """Own these shards, and no others; return whether these are others than before."""
        before = self._ownership.owned
        self._ownership.follow(shards)
        self.moves["gained"] += len(shards - before)
        self.moves["given"] += len(before - shards)
        return shards != before

    async def _has_leader(self) -> bool:
        """Return whether replicas of the same operator elect a leader, and there is one."""
        await self._rival.refresh()
        await self._rival.expire()
        record = self._rival.record
        if not record.holder:
            return False
        self.problem = f"the lease {self._rival} is {record}: --lease is used"
        if self._once.is_new("leader", record.holder):
            logger.warning("This replica owns no more shards: %s.", self.problem)
        return True

    def _leave(self, count: int) -> None:
        """Begin to give up so many shards."""
        now, ownership = self._fence.clock(), self._ownership
        staying = [shard for shard, moment in self._moments.items() if now < moment]
        chosen = sorted((ownership.owned - ownership.leaving).difference(staying), reverse=True)
        if count > 0 and chosen:
            ownership.leave(frozenset(chosen[:count]))
            self._moments |= dict.fromkeys(chosen[:count], now)
            self._gift_at = now + _POLLING

    async def _give_up(self) -> None:
        """Give up the shards that have no more work; keep those that have it for too long."""
        now, ownership = self._fence.clock(), self._ownership
        idle = ownership.list_idle()
        if idle and (idle == ownership.leaving or now >= self._gift_at):
            if await self._write(self.map.give(idle, self._term)):
                self._gift_at = now + self._times.period
                await self._adopt()
            return
        patience = self._times.duration
        late = frozenset(one for one in ownership.leaving if now > self._moments[one] + patience)
        # This write makes one invalid that is still on its way, and would give them up.
        if late and await self._write(self.map):
            ownership.stay(late)
            self._moments |= dict.fromkeys(late, now + _RESTING * patience)
            text = "The shards %s stay with this replica: their handlers have not ended in %g s."
            logger.info(text, format_shards(late), patience)

    async def withdraw(self) -> None:
        """Give up all shards, as this replica stops; its work has ended.

        If that cannot be written, the shards are free when its Lease is.
        """
        if own := self.map.get(self._term):
            with contextlib.suppress(APIError):
                await self._write(self.map.give(own, self._term))

    async def _write(self, content: ShardMap) -> bool:
        """Write who owns which shards, unless the own term is over; return whether that is done."""
        return not self._find_breach() and await self._send(content)

    async def _send(self, content: ShardMap) -> bool:
        """Write who owns which shards; return False if somebody else has been faster."""
        if (known := self._map_raw) is None:
            return False  # somebody has deleted it
        stored = await self._map_access.write(content.write(known, self._label))
        if stored is None:
            await self._refresh_map()
            return False
        self._accept_response(stored, known)
        return True

    async def _refresh_map(self) -> None:
        known = self._map_raw
        self._accept_response(await self._map_access.read(), known)

    def _accept_response(self, raw: dict[str, Any] | None, known: dict[str, Any] | None) -> None:
        """Accept what was read or written, unless an event has shown a later change meanwhile."""
        version = None if raw is None else raw["metadata"].get("resourceVersion")
        if self._map_raw is known or (version and is_newer(version, self._map_raw)):
            self._accept_map(raw)

    # Others

    async def find_owner(self) -> str:
        """Return which replica owns shards; empty if none does. For replicas that elect a leader.

        Without the right to read this, there are no shards.
        """
        try:
            raw = await self._map_access.read()
        except APIForbiddenError as exc:
            if self._once.is_new("forbidden"):
                logger.warning("Cannot look whether replicas with --shards run: %s", exc)
            return ""
        self._accept_map(raw)
        for slot in [*self._slots.values()]:  # of all owners that this replica has read of
            try:
                await slot.refresh()
                self._expect_owners()
                await slot.expire()
            except APIForbiddenError as exc:
                if slot.name not in {term.slot for term in self.map.owners}:
                    continue  # somebody has deleted the Lease that named its holder
                owner, told = slot.record.holder, self._map_access
                text = f"{owner} owns shards, as the lease {told} says: {str(exc).rstrip('.')}"
                remedy = f"If no replica with --shards runs, delete the lease {told}"
                raise APIForbiddenError(f"{text}. {remedy}", status=exc.status) from exc
            is_by_former = _read_note(slot, MAP_UID) != self.map.uid
            if slot.record.holder and (is_by_former or self.map.get(_read_term(slot))):
                return f"the lease {slot} is {slot.record}: --shards is used"
        return ""


def _read_note(slot: ObservedLease, name: str) -> str:
    notes = {} if slot.raw is None else slot.raw["metadata"].get("annotations") or {}
    return str(notes.get(name) or "")


def _read_term(slot: ObservedLease) -> Term:
    return Term(slot.name, slot.record.holder, slot.record.acquired_at)
