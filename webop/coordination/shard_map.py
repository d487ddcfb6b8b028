"""Which replica owns which shards: the content of one Lease, and how shards are divided. Pure.

The Lease ``NAME-shards`` has no holder. Its annotation names the owners, each with its term: the
Lease of a replica (its slot), the holder, and since when that one has held it. A term that is over
never comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from webop.objects.shards import SHARDS, format_shards, parse_shards

ANNOTATION: Final = "webop.dev/shards"
LABEL: Final = "webop.dev/shards"
MAP_UID: Final = "webop.dev/shards-uid"  # of the Lease with the owners that a replica works by
CANARY: Final = "webop.dev/canary"
DIVISION: Final = "webop.dev/shards-by"  # the settings by which a replica divides the objects
_WRITES: Final = (
    "webop.dev/shards-writes"  # their number: API servers ignore writes that change nothing
)
_DIGITS: Final = 6
_ROUND: Final = 10**_DIGITS
SLOTS: Final = SHARDS
"""More replicas than shards would have nothing to do."""


class Term(NamedTuple):
    """A replica owns shards by this: its Lease, the holder in it, and since when."""

    slot: str
    holder: str
    since: str


def name_leases(name: str, slots: int) -> list[str]:
    """Return the names of the Leases of an operator: with the owners, and of so many replicas."""
    return [f"{name}-shards", *(f"{name}-member-{number:02}" for number in range(slots))]


def is_slot(name: str, prefix: str = "") -> bool:
    """Return whether a Lease can be that of a replica, of an operator if its prefix is given."""
    number = parse_count(name[-2:])
    is_numbered = number is not None and number < SLOTS and name[-10:-2] == "-member-"
    return is_numbered and (not prefix or name[:-2] == prefix)


def parse_count(text: str | None) -> int | None:
    """Return a short decimal number; None for anything else."""
    return int(text) if text and text.isdecimal() and len(text) <= _DIGITS else None


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The owners of shards; the others are free.

    Attributes:
        uid: of the Lease; empty if it does not exist.
        owners: the shards of each owner.
        problem: why the annotation cannot be read; empty if it can.
    """

    uid: str = ""
    owners: Mapping[Term, frozenset[int]] = field(default_factory=dict)
    problem: str = ""

    @classmethod
    def parse(cls, raw: Mapping[str, Any] | None) -> ShardMap:
        """Return the content of the Lease; None if it does not exist."""
        if raw is None:
            return cls()
        meta = raw["metadata"]
        text = (meta.get("annotations") or {}).get(ANNOTATION) or "[]"
        owners: dict[Term, frozenset[int]] = {}
        try:
            for one in orjson.loads(text):
                term = Term(*(str(one[name]) for name in Term._fields))
                owners[term] = parse_shards(one["shards"])
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            return cls(meta.get("uid") or "", {}, f"the annotation {ANNOTATION} is invalid: {exc}")
        found = cls(meta.get("uid") or "", owners)
        if not all(is_slot(term.slot) for term in owners):
            return cls(found.uid, {}, f"in the annotation {ANNOTATION}, owners have no Leases")
        if len(found.owned) < sum(map(len, owners.values())):
            return cls(found.uid, {}, f"in the annotation {ANNOTATION}, shards have two owners")
        return found

    @property
    def owned(self) -> frozenset[int]:
        """All shards that have an owner, alive or not."""
        return frozenset().union(*self.owners.values())

    def get(self, term: Term) -> frozenset[int]:
        """Return the shards of an owner."""
        return self.owners.get(term, frozenset())

    def take(self, shards: frozenset[int], owner: Term) -> ShardMap:
        """Return the map in which an owner has these shards, too."""
        found = {term: own - shards for term, own in self.owners.items()}
        return self._put({**found, owner: self.get(owner) | shards})

    def give(self, shards: frozenset[int], owner: Term) -> ShardMap:
        """Return the map in which these shards of an owner are free."""
        return self._put({**self.owners, owner: self.get(owner) - shards})

    def _put(self, owners: Mapping[Term, frozenset[int]]) -> ShardMap:
        return ShardMap(self.uid, {term: own for term, own in owners.items() if own})

    def write(self, raw: Mapping[str, Any], label: str) -> dict[str, Any]:
        """Return the Lease with this content; it keeps its version, as a precondition.

        The label is that by which replicas find their Leases.
        """
        content = [
            {**term._asdict(), "shards": format_shards(shards)}
            for term, shards in sorted(self.owners.items())
        ]
        meta = raw["metadata"]
        notes = dict(meta.get("annotations") or {})
        count = parse_count(notes.get(_WRITES)) or 0
        notes |= {ANNOTATION: orjson.dumps(content).decode(), _WRITES: str((count + 1) % _ROUND)}
        marks = {"labels": {**(meta.get("labels") or {}), LABEL: label}, "annotations": notes}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        return {**lease, **raw, "metadata": {**meta, **marks}}


def divide(members: Mapping[Term, int | None], owned: Mapping[Term, int]) -> dict[Term, int]:
    """Return how many shards each member should own.

    Members get the same number, or one more, so that as few shards move as possible: those that own
    most get one more. Canaries share the number that they say.

    Args:
        members: the running replicas; for canaries, how many shards all canaries should own.
        owned: how many shards members own now.
    """
    ranked = sorted(members, key=lambda term: (-owned.get(term, 0), term))
    canaries = [term for term in ranked if members[term]]  # those that have failed get nothing
    stable = [term for term in ranked if members[term] is None]
    trial = min(SHARDS, max((members[term] or 0 for term in canaries), default=0))
    shares = {**_split(trial, canaries), **_split(SHARDS - trial, stable)}
    return {term: shares.get(term, 0) for term in members}


def _split(count: int, members: list[Term]) -> dict[Term, int]:
    least, rest = divmod(count, len(members) or 1)
    return {term: least + (place < rest) for place, term in enumerate(members)}
