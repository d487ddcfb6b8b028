"""Who else acts on the same objects, by the records in peering objects, and who gives way to whom.

Pure. Place in the flow: :mod:`webop.coordination.places` reads and writes the records,
:mod:`webop.coordination.peering` decides by :func:`judge` (chapter "Peering").

The records are those of Kopf 1.45: ``status.<identity> = {priority, lifetime, lastseen}``, with
what is unknown in them left alone; ``message`` is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from webop.objects.resources import Resource

GROUPS = ("kopf.dev", "zalando.org")
"""The API groups of the peering kinds: the present one, and a legacy of Kopf's."""

_KINDS = {
    True: ("clusterkopfpeerings", "ClusterKopfPeering"),
    False: ("kopfpeerings", "KopfPeering"),
}
_FIELDS = frozenset({"priority", "lifetime", "lastseen"})
_LIFETIME = 60  # seconds; of records that do not tell theirs


@dataclass(frozen=True, slots=True)
class Peer:
    """Another operator, or somebody who freezes operators, by its record.

    Attributes:
        identity: its name.
        priority: the higher one acts.
        deadline: the Unix timestamp after which it is taken for dead; infinity if it tells none.
        message: what it wants people to know.
    """

    identity: str
    priority: int = 0
    deadline: float = math.inf
    message: str = ""

    def __str__(self) -> str:
        ends = "" if math.isinf(self.deadline) else f", valid until {format_time(self.deadline)}"
        message = f": {self.message}" if self.message else ""
        return f"{self.identity} (priority {self.priority}{ends}){message}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who keeps an operator from acting.

    Attributes:
        higher: the peers with a higher priority, the highest one first.
        equal: those with the same priority; with them, nobody acts.
        ends_at: the Unix timestamp of the first of their ends; infinity if there is none.
    """

    higher: tuple[Peer, ...] = ()
    equal: tuple[Peer, ...] = ()
    ends_at: float = math.inf

    @property
    def is_pause(self) -> bool:
        """Whether there is anybody."""
        return bool(self.higher or self.equal)

    @property
    def key(self) -> object:
        """What is worth telling when it changes; renewals of records are not."""
        peers = self.higher or self.equal
        return bool(self.higher), [(peer.identity, peer.priority, peer.message) for peer in peers]


def build_kinds(*, clusterwide: bool) -> list[Resource]:
    """Return the peering kinds for operators of the whole cluster, or of namespaces (D-19)."""
    plural, kind = _KINDS[clusterwide]
    return [
        Resource(group, "v1", plural, kind=kind, namespaced=not clusterwide) for group in GROUPS
    ]


def build_record(priority: int, lifetime: int, now: float, message: str = "") -> dict[str, Any]:
    """Return a record as it is written.

    Args:
        priority: of the one who writes it.
        lifetime: how long it is valid, in seconds.
        now: the time as a Unix timestamp.
        message: for people, if there is anything to say.
    """
    lastseen = datetime.fromtimestamp(now, UTC).isoformat()
    record = {"priority": priority, "lifetime": lifetime, "lastseen": lastseen}
    return {**record, "message": message} if message else record


def parse_peers(status: object) -> tuple[dict[str, Peer], dict[str, str]]:
    """Read the status of a peering object, which anybody can write to.

    Returns:
        The peers by their identities, and what is wrong with the records of others.
    """
    peers: dict[str, Peer] = {}
    problems: dict[str, str] = {}
    records = status if isinstance(status, dict) else {}
    for identity, record in records.items():
        try:
            peers[identity] = parse_peer(identity, record)
        except (ValueError, TypeError, OverflowError) as exc:
            problems[identity] = str(exc)
    return peers, problems


def parse_peer(identity: str, record: object) -> Peer:
    """Read one record. What is absent means the same as for Kopf: 0, 60 seconds, seen right now.

    Raises:
        ValueError: it is no record.
        TypeError: the same.
        OverflowError: the same.
    """
    if not isinstance(record, dict) or not record.keys() & _FIELDS:
        raise ValueError(f"{record!r:.100} has no priority, lifetime and lastseen")
    lifetime = record.get("lifetime", _LIFETIME)
    lastseen = record.get("lastseen")
    deadline = math.inf if lastseen is None else parse_time(lastseen) + int(lifetime)
    message = str(record.get("message") or "")
    return Peer(identity, int(record.get("priority", 0)), deadline, message)


def parse_time(text: str) -> float:
    """Return the Unix timestamp of an ISO 8601 time; without an offset, it is UTC.

    Raises:
        ValueError: it is no such time.
        TypeError: it is no text.
    """
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def format_time(timestamp: float) -> str:
    """Return a Unix timestamp for people."""
    try:
        return f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "the end of days"


def find_dead(peers: Iterable[Peer], now: float) -> list[Peer]:
    """Return those whose records have expired (PEE-14)."""
    return [peer for peer in peers if peer.deadline <= now]


def judge(peers: Iterable[Peer], identity: str, priority: int, now: float) -> Verdict:
    """Tell who keeps an operator from acting (PEE-02, PEE-03).

    Args:
        peers: all that are known, from several peering objects maybe; also its own records.
        identity: of the operator.
        priority: of the operator.
        now: the time as a Unix timestamp.
    """
    found: dict[str, Peer] = {}
    for peer in peers:
        if peer.identity == identity or peer.deadline <= now or peer.priority < priority:
            continue
        known = found.get(peer.identity)
        if known is None or (peer.priority, peer.deadline) > (known.priority, known.deadline):
            found[peer.identity] = peer
    ordered = sorted(found.values(), key=lambda peer: (-peer.priority, peer.identity))
    return Verdict(
        higher=tuple(peer for peer in ordered if peer.priority > priority),
        equal=tuple(peer for peer in ordered if peer.priority == priority),
        ends_at=min((peer.deadline for peer in ordered), default=math.inf),
    )


def compute_interval(lifetime: float, headroom: float) -> float:
    """Return the seconds between two renewals of a record.

    Args:
        lifetime: how long a record is valid.
        headroom: how much earlier it is to be renewed, if it is valid for that long.
    """
    if lifetime <= 2:
        return max(0.5, lifetime / 2)
    return max(1.0, lifetime - headroom)
