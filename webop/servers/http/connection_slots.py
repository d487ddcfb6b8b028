"""The connections that a server holds at once, and which of them makes way for a new one.

All ports use it: webhooks, probes, metrics and the status page.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from webop.aio.backoff import Once

if TYPE_CHECKING:
    from webop.servers.http.protocol import Connection
    from webop.servers.limits import Hosting

logger = logging.getLogger(__name__)

_RESERVED = 8  # one of so many slots is for other addresses than the one with most connections


class Slots:
    """At most ``max_connections`` connections, of which one peer address gets seven eighths.

    At a limit, a new connection gets the slot of one that serves no complete request: of the peer
    with most connections, if it has more than an eighth of all, else the one that has waited
    longest. So a flood of idle connections, of TLS handshakes or of half-sent requests displaces
    itself, and a client from elsewhere is served. If all serve requests, the new one is refused.

    The limits are read at each use, so that changes count.
    """

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._logged = Once()
        self._peers: dict[Connection, str] = {}
        self._counts: Counter[str] = Counter()  # by peer

    def take(self, connection: Connection, peer: str) -> bool:
        """Give a connection a slot until :meth:`free`; return False if it must be closed."""
        limit = self._hosting.limits.max_connections
        own, total = self._counts[peer], len(self._peers)
        share = limit // _RESERVED
        if own >= limit - share:
            what = f"{own} connections of {peer or 'an unknown address'}"
            has_slot = self._evict([{peer}], what)
        elif total >= limit:
            crowds = [{key} for key, count in self._counts.most_common() if count > share]
            has_slot = self._evict([*crowds, self._counts], f"{total} connections")
        else:
            has_slot = True
        if has_slot:
            self._peers[connection] = peer
            self._counts[peer] += 1
        return has_slot

    def free(self, connection: Connection) -> None:
        """Free the slot of a connection that has been closed."""
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self._counts[peer] -= 1
            if not self._counts[peer]:
                del self._counts[peer]

    def _evict(self, groups: Iterable[Container[str]], what: str) -> bool:
        """Close a connection of the first group of peers that has one without a request."""
        victim = next(filter(None, map(self._find_idle, groups)), None)
        level = self._logged.choose_level(victim is not None)
        text = "%s are open, which is the limit (settings.admission.max_connections). %s"
        if victim is None:
            logger.log(level, text, what, "All serve requests; refused another one.")
            return False
        peer = self._peers[victim] or "an unknown address"
        self.free(victim)
        logger.log(level, text, what, f"Closed an idle one of {peer} for another one.")
        victim.make_way()
        return True

    def _find_idle(self, peers: Container[str]) -> Connection | None:
        """Return the connection of some peers that has waited longest."""
        idle = {
            connection: since
            for connection, peer in self._peers.items()
            if peer in peers and (since := connection.waiting_since) is not None
        }
        return min(idle, key=idle.__getitem__, default=None)
