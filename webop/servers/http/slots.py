"""The connections that a server holds at once, and which of them makes way for a new one.

All ports use it: webhooks, probes, metrics, the status page, and the app under a foreign server.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from webop.backoff import Once

if TYPE_CHECKING:
    from webop.servers.hosting import ServingLimits

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """A connection, from the moment when it is accepted, so also before its TLS handshake."""

    @property
    def waiting_since(self) -> float | None:
        """Since when there is no complete request; None if one is being served."""

    def make_way(self) -> None:
        """Close the connection."""


class Slots:
    """At most ``max_connections`` connections.

    At the limit, a new connection gets the slot of one that serves no complete request: of the
    peer address that has most of these, the one that has waited longest. So a flood of idle
    connections, of TLS handshakes or of half-sent requests displaces itself, and a client from
    elsewhere is served. If all serve requests, the new one is refused.

    The limits are read at each use, so that changes count.
    """

    def __init__(self, get_limits: Callable[[], ServingLimits]) -> None:
        self._get_limits = get_limits
        self._logged = Once()
        self._peers: dict[Holder, str] = {}  # in the order of their arrival

    def take(self, holder: Holder, peer: str) -> bool:
        """Give a connection a slot until :meth:`free`; return False if it must be closed.

        Args:
            holder: the connection.
            peer: the address of the client.
        """
        limit = self._get_limits().max_connections
        if len(self._peers) >= limit and not self._evict(limit):
            return False
        self._peers[holder] = peer
        return True

    def free(self, holder: Holder) -> None:
        """Free the slot of a connection that has been closed."""
        self._peers.pop(holder, None)

    def _evict(self, limit: int) -> bool:
        waiting = {each: since for each in self._peers if (since := each.waiting_since) is not None}
        counts = Counter(self._peers[each] for each in waiting)
        victim = max(
            waiting, key=lambda each: (counts[self._peers[each]], -waiting[each]), default=None
        )
        level = self._logged.choose_level(victim is None)
        what = f"{limit} connections are open, which is the limit"
        where = "settings.admission.max_connections"
        if victim is None:
            logger.log(level, "%s (%s). All serve requests; refused another one.", what, where)
            return False
        peer = self._peers.pop(victim) or "an unknown address"
        logger.log(level, "%s (%s). Closed an idle one of %s for another one.", what, where, peer)
        victim.make_way()
        return True
