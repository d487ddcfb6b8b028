"""How objects move between replicas: which moves were allowed, and how long they took. Pure.

The evidence is the calls that handlers have recorded, the shards that replicas say in their logs
that they have got, and the faults of the run.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tools.soak.evidence import CREATION, Call, Violation
from webop.objects.shards import find_shard

_TOLERANCE = 0.02  # seconds; logs have milliseconds, by another clock


@dataclass(frozen=True)
class Event:
    """A fault, or a change of the replicas; times by the clock of the evidence.

    Attributes:
        at: its begin.
        who: the replica; empty if it concerns all of them.
        is_arrival: whether this replica gets shards of others, and has lost none.
    """

    kind: str
    at: float
    who: str = ""
    is_arrival: bool = False

    @property
    def is_fault(self) -> bool:
        """Whether replicas may not have been able to finish their work."""
        return not self.is_arrival and self.kind != "SIGTERM"


@dataclass(frozen=True)
class Gain:
    """Shards that a replica has got, as it says."""

    at: float
    who: str
    shards: frozenset[int]


def read_gains(who: str, claims: Iterable[tuple[float, frozenset[int] | None]]) -> list[Gain]:
    """Return the gains of a replica.

    Args:
        who: the replica.
        claims: in order of time, all shards that it owns from then on; None where it has lost
            the right to act, from which it must recover.
    """
    gains, known = [], frozenset[int]()
    for at, shards in claims:
        if shards is not None and shards - known:
            gains.append(Gain(at, who, shards - known))
        known = shards or frozenset()
    return gains


def find_strangers(calls: list[Call], gains: list[Gain]) -> Iterator[Violation]:
    """Find calls of a replica that has not got the object after another one acted on it."""
    by_owner: dict[tuple[str, int], list[float]] = defaultdict(list)
    for gain in gains:
        for shard in gain.shards:
            by_owner[gain.who, shard].append(gain.at)
    for uid, own in _group(calls).items():
        shard, former = find_shard(uid), None
        for call in own:
            since = 0.0 if former is None or former.who == call.who else former.begin
            begin, end = since - _TOLERANCE, call.begin + _TOLERANCE
            if not any(begin <= at <= end for at in by_owner[call.who, shard]):
                before = former or "nobody before"
                text = f"{before}\n{call}\n{call.who} did not get the shard {shard} in between"
                yield Violation("a replica acts without the shard", text, uid, call.begin)
            former = call


def find_repeated_creations(calls: list[Call], events: list[Event]) -> Iterator[Violation]:
    """Find creations that were handled again, although no fault has interrupted the first time.

    One that is too slow to renew its Lease loses what it has not written, too: such events count.
    """
    faults = [event for event in events if event.is_fault]
    for uid, own in _group(calls).items():
        done: dict[str, Call] = {}
        for call in (one for one in own if one.handler in CREATION):
            before = done.get(call.handler)
            if before is not None and not any(
                event.who in ("", before.who) and before.begin - _LATE <= event.at <= call.begin
                for event in faults
            ):
                text = f"{before}\n{call}"
                yield Violation("a creation was handled again", text, uid, call.begin)
            if call.is_final:
                done[call.handler] = call


_LATE = 30.0  # seconds; a fault can last, and prevent that an outcome is stored


class Move(NamedTuple):
    """The time from an event to the first step of the new owner of an object, in seconds."""

    kind: str
    uid: str
    after: float


def list_moves(calls: list[Call], events: list[Event]) -> list[Move]:
    """Return the moves of all objects, each with the event that has caused it.

    That is what has just happened to the former owner; or else the last arrival, or the last event
    that concerns all replicas. A replica can get an object back after such an event only.
    """
    ordered, moves = sorted(events, key=lambda event: event.at), []
    for uid, own in _group(calls).items():
        for former, call in itertools.pairwise(own):
            past = [event for event in ordered if event.at <= call.begin]
            causes = [event for event in past if event.who == former.who][-1:]
            if not causes or causes[0].is_arrival or call.begin - causes[0].at > _LATE:
                causes = [event for event in past if event.is_arrival or not event.who]
            if call.who == former.who:
                is_again = call.handler == "resumed"
                causes = [e for e in causes if is_again and not e.who and e.at > former.begin]
            if causes:
                moves.append(Move(causes[-1].kind, uid, call.begin - causes[-1].at))
    return moves


def build_table(moves: list[Move]) -> list[str]:
    """Return a table of the times by kind of event, in seconds."""
    lines = ["{:34}{:>8}{:>9}{:>9}{:>9}".format("moves after", "objects", "p50", "p99", "max")]
    for kind in sorted({move.kind for move in moves}):
        times = sorted(move.after for move in moves if move.kind == kind)
        last = times[-(-99 * len(times) // 100) - 1]  # of 99 % of the moves
        cells = f"{statistics.median(times):9.2f}{last:9.2f}{times[-1]:9.2f}"
        lines.append(f"{kind:34}{len(times):8}{cells}")
    return lines


def _group(calls: list[Call]) -> dict[str, list[Call]]:
    """Return the calls of each object, in order of their begin."""
    groups: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.begin):
        groups[call.uid].append(call)
    return groups
