"""Operators of others in a peering, as Kopf has them: they only write their records.

Nothing of webop runs for them. While one is there, replicas of its priority or a lower one pause.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webop.testing.simulation.network import Network

_LIFETIME = 30  # seconds of a record
_RENEWAL = 20.0  # seconds between two of them


@dataclass(frozen=True)
class Peer:
    """An operator of others.

    Attributes:
        until: when it leaves, or vanishes.
    """

    identity: str
    priority: int
    since: float
    until: float
    is_lost: bool


class Peers:
    """All of them in one world."""

    def __init__(
        self,
        network: Network,
        time: Callable[[], float],
        now: Callable[[], dt.datetime],
        patch: Callable[[dict[str, Any]], Any],
    ) -> None:
        self._peers: list[Peer] = []
        self._network = network
        self._time = time
        self._now = now
        self._patch = patch

    def join(self, priority: int, seconds: float, *, is_lost: bool) -> None:
        """Let one come for a while."""
        since, identity = self._time(), f"kopf-{len(self._peers)}"
        peer = Peer(identity, priority, since, since + seconds, is_lost)
        self._peers.append(peer)
        self._renew(peer)

    @property
    def is_anybody_known(self) -> bool:
        return bool(self._peers)

    def find_rival(self, priority: int, seconds: float) -> Peer | None:
        """Return one because of which a replica has had to pause for so many seconds."""
        now = self._time()
        for peer in self._peers:
            if peer.priority >= priority and peer.since + seconds < now < peer.until:
                return peer
        return None

    def _renew(self, peer: Peer) -> None:
        now = self._time()
        record: dict[str, Any] | None = None
        if now < peer.until:
            lastseen = self._now().isoformat()
            record = {"priority": peer.priority, "lifetime": _LIFETIME, "lastseen": lastseen}
            self._network.later(min(_RENEWAL, peer.until - now), self._renew, peer)
        elif peer.is_lost:
            return
        self._patch({"status": {peer.identity: record}})
