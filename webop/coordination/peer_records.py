"""The records in peering objects, and which peers an operator must pause for. Pure.

:mod:`webop.coordination.peering` reads and writes the records (chapter "Peering"). They are those
of Kopf 1.45: ``status.<identity> = {priority, lifetime, lastseen}``. Unknown keys are ignored; the
key ``message`` is an addition of webop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from webop.objects.resources import Resource

GROUPS = ("kopf.dev", "zalando.org")
"""The API groups of the peering kinds: the current one, and the former one of Kopf."""

_FIELDS = frozenset({"priority", "lifetime", "lastseen"})
_LIFETIME = 60  # seconds; the default for records without a lifetime


@dataclass(frozen=True, slots=True)
class Peer:
    """A record: another operator, or a person who pauses operators with ``freeze``.

    Attributes:
        identity: the name of the record.
        priority: the peer with the highest one acts.
        deadline: the Unix timestamp when its record expires; infinity if the record has none.
        message: for people.
    """

    identity: str
    priority: int = 0
    deadline: float = math.inf
    message: str = ""

    def __str__(self) -> str:
        ends = "" if math.isinf(self.deadline) else f", valid until {format_time(self.deadline)}"
        message = f": {self.message}" if self.message else ""
        return f"{self.identity} (priority {self.priority}{ends}){message}"


def build_kinds(*, clusterwide: bool) -> list[Resource]:
    """Return the peering kinds for operators of the whole cluster, or of namespaces."""
    kind = "ClusterKopfPeering" if clusterwide else "KopfPeering"
    return [
        Resource(group, "v1", f"{kind.lower()}s", kind=kind, namespaced=not clusterwide)
        for group in GROUPS
    ]


def build_creation_command(kind: Resource, namespace: str | None, name: str) -> str:
    """Return the shell command that creates a peering object."""
    place = f"namespace: {namespace}, " if namespace else ""
    return (
        f"kubectl create -f - <<< '{{apiVersion: {kind.api_version}, kind: {kind.kind}, "
        f"metadata: {{{place}name: {name}}}}}'"
    )


def build_record(priority: int, lifetime: int, now: float, message: str = "") -> dict[str, Any]:
    """Return a record that is valid for a lifetime (seconds) from a Unix timestamp."""
    lastseen = datetime.fromtimestamp(now, UTC).isoformat()
    record = {"priority": priority, "lifetime": lifetime, "lastseen": lastseen}
    return {**record, "message": message} if message else record


def parse_peers(status: object) -> tuple[dict[str, Peer], dict[str, str]]:
    """Return the peers in a status, to which anybody can write, and the problems of others."""
    peers: dict[str, Peer] = {}
    problems: dict[str, str] = {}
    for identity, record in status.items() if isinstance(status, dict) else ():
        try:
            peers[identity] = _parse_peer(identity, record)
        except (ValueError, TypeError, OverflowError) as exc:
            problems[identity] = str(exc)
    return peers, problems


def _parse_peer(identity: str, record: object) -> Peer:
    """Parse one record; the defaults are those of Kopf: priority 0, 60 s, valid forever."""
    if not isinstance(record, dict) or not record.keys() & _FIELDS:
        raise ValueError(f"{record!r:.100} has neither priority, lifetime nor lastseen")
    deadline = math.inf
    if (lastseen := record.get("lastseen")) is not None:
        time = datetime.fromisoformat(lastseen)
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        deadline = time.timestamp() + int(record.get("lifetime", _LIFETIME))
    message = str(record.get("message") or "")
    return Peer(identity, int(record.get("priority", 0)), deadline, message)


def format_time(timestamp: float) -> str:
    """Format a Unix timestamp for people."""
    try:
        return f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def select_rivals(
    peers: Iterable[Peer], identity: str, priority: int, now: float
) -> tuple[Peer, ...]:
    """Return the peers for which an operator must pause, the highest priority first.

    They have a higher priority, or if there are none, the same priority. Expired
    records do not count.
    """
    found = {
        peer.identity: peer
        for peer in sorted(peers, key=lambda peer: (peer.priority, peer.deadline))
        if peer.identity != identity and peer.deadline > now and peer.priority >= priority
    }
    ordered = sorted(found.values(), key=lambda peer: (-peer.priority, peer.identity))
    return tuple(peer for peer in ordered if peer.priority > priority) or tuple(ordered)
