"""The connections that a server holds at once, and which of them makes way for a new one.

All ports use it: webhooks, probes, metrics, the status page, and the app under a foreign server.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from webop.backoff import Once

if TYPE_CHECKING:
    from webop.servers.hosting import ServingLimits

logger = logging.getLogger(__name__)

_RESERVED = 8  # one of so many slots is for other addresses than the one with most connections


class Holder(Protocol):
    """A connection, from the moment when it is accepted, so also before its TLS handshake."""

    @property
    def waiting_since(self) -> float | None:
        """Since when there is no complete request; None if one is being served."""

    def make_way(self) -> None:
        """Close the connection."""


class Slots:
    """At most ``max_connections`` connections, of which one peer address gets seven eighths.

    At a limit, a new connection gets the slot of one that serves no complete request: of the peer
    address that has most of these, the one that has waited longest. So a flood of idle
    connections, of TLS handshakes or of half-sent requests displaces itself, and a client from
    elsewhere is served. If all serve requests, the new one is refused.

    The limits are read at each use, so that changes count.
    """

    def __init__(self, get_limits: Callable[[], ServingLimits]) -> None:
        self._get_limits = get_limits
        self._logged = Once()
        self._peers: dict[Holder, str] = {}

    def take(self, holder: Holder, peer: str) -> bool:
        """Give a connection a slot until :meth:`free`; return False if it must be closed.

        Args:
            holder: the connection.
            peer: the address of the client.
        """
        limit = self._get_limits().max_connections
        own = [each for each, address in self._peers.items() if address == peer]
        if len(own) >= limit - limit // _RESERVED:
            has_slot = self._evict(own, f"{len(own)} connections of {peer or 'an unknown address'}")
        elif len(self._peers) >= limit:
            has_slot = self._evict(self._peers, f"{len(self._peers)} connections")
        else:
            has_slot = True
        if has_slot:
            self._peers[holder] = peer
        return has_slot

    def free(self, holder: Holder) -> None:
        """Free the slot of a connection that has been closed."""
        self._peers.pop(holder, None)

    def _evict(self, holders: Iterable[Holder], what: str) -> bool:
        """Close one of the connections; return False if all serve requests."""
        waiting = {each: since for each in holders if (since := each.waiting_since) is not None}
        level = self._logged.choose_level(bool(waiting))
        text = "%s are open, which is the limit (settings.admission.max_connections). %s"
        if not waiting:
            logger.log(level, text, what, "All serve requests; refused another one.")
            return False
        counts = Counter(self._peers[each] for each in waiting)
        victim = max(waiting, key=lambda each: (counts[self._peers[each]], -waiting[each]))
        peer = self._peers.pop(victim) or "an unknown address"
        logger.log(level, text, what, f"Closed an idle one of {peer} for another one.")
        victim.make_way()
        return True
