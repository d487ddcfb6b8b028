"""The connections that a server holds at once, and which of them makes way for a new one.

All ports use it: webhooks, probes, metrics and the status page.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, defaultdict
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
        # By peer, each with the time since when it waited as it was last looked at, oldest first.
        self._groups: defaultdict[str, OrderedDict[Connection, float]] = defaultdict(OrderedDict)

    def take(self, connection: Connection, peer: str) -> bool:
        """Give a connection a slot until :meth:`free`; return False if it must be closed."""
        limit, groups = self._hosting.limits.max_connections, self._groups
        own, total = len(groups.get(peer, ())), len(self._peers)
        share = limit // _RESERVED
        if own >= limit - share:
            what = f"{own} connections of {peer or 'an unknown address'}"
            has_slot = self._evict(self._find_idle(peer), what)
        elif total >= limit:
            has_slot = self._evict(self._find_victim(share), f"{total} connections")
        else:
            has_slot = True
        if has_slot:
            self._peers[connection] = peer
            groups[peer][connection] = connection.waiting_since or 0.0
        return has_slot

    def free(self, connection: Connection) -> None:
        """Free the slot of a connection that has been closed."""
        peer = self._peers.pop(connection, None)
        if peer is not None:
            del self._groups[peer][connection]
            if not self._groups[peer]:
                del self._groups[peer]

    def _find_victim(self, share: int) -> Connection | None:
        """Return an idle connection of the largest peer above a share, else the oldest of all."""
        groups = self._groups
        crowds = [peer for peer in groups if len(groups[peer]) > share]
        crowds.sort(key=lambda peer: -len(groups[peer]))
        victim = next(filter(None, map(self._find_idle, crowds)), None)
        idle = () if victim else filter(None, map(self._find_idle, [*groups]))
        return victim or min(idle, key=lambda one: one.waiting_since or 0.0, default=None)

    def _evict(self, victim: Connection | None, what: str) -> bool:
        """Close a connection for another one; return False if there is none."""
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

    def _find_idle(self, peer: str) -> Connection | None:
        """Return the connection of a peer that has waited longest, without a look at all others."""
        group = self._groups[peer]
        for _ in range(2 * len(group)):
            connection, seen = next(iter(group.items()))
            since = connection.waiting_since
            if since is not None and since <= seen:
                return connection
            group[connection] = -math.inf if since is None else since  # it has served a request
            group.move_to_end(connection)
        return None
