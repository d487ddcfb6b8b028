"""RequestLimits: how many requests about the objects of one kind are sent at once.

Place in the flow: :meth:`webop.client.api.Client.perform` sends a call that names a lane only when
the lane has room. Calls without a lane (Leases, peering, discovery, logins, Events, lists) never
wait, so that no burst of objects can delay what keeps the operator alive.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque

from webop.counters import Timings

# Each connection costs a TLS handshake and some 100 KB, and more requests at once gain nothing.
_LANE_LIMIT = 16

# With so many requests in all, each lane gets no more than its share. A kind that hangs keeps 16
# connections at most, and kinds that come later are served all the same.
_TOTAL_LIMIT = 64
_SHARE = 4


class RequestLimits:
    """The places for requests, by lane.

    Guarantees:
        - A lane has at most 16 requests in flight; at most 4 if all lanes have 64 or more together.
        - The requests of a lane are sent in the order in which they came.
        - When a place becomes free, the lane with the fewest requests in flight gets it.
        - A request that is cancelled while it waits takes no place.

    Attributes:
        active: how many requests are in flight, by lane.
    """

    def __init__(self, waits: Timings) -> None:
        self._total = 0
        self._waits = waits
        self.active: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    def take(self, lane: str) -> bool:
        """Take a place if the lane has room; tell whether it had."""
        active = self.active[lane]
        if active >= (_SHARE if self._total >= _TOTAL_LIMIT else _LANE_LIMIT):
            return False
        self.active[lane] = active + 1
        self._total += 1
        return True

    async def wait(self, lane: str) -> None:
        """Wait for a place, and take it."""
        place = asyncio.get_running_loop().create_future()
        self._queues.setdefault(lane, deque()).append(place)
        began = time.monotonic()
        try:
            await place
            self._waits.add(time.monotonic() - began, lane)
        except asyncio.CancelledError:
            if not place.cancelled():
                self.leave(lane)
            raise

    def count_waiting(self) -> dict[str, int]:
        """Return how many requests wait, by lane."""
        return {lane: sum(not item.done() for item in q) for lane, q in self._queues.items()}

    def leave(self, lane: str) -> None:
        """Give a place back: to the first of those who wait in the least busy lane with room."""
        self._total -= 1
        self.active[lane] -= 1
        if not self._queues:
            return
        for waiting in sorted(self._queues, key=self.active.__getitem__):
            queue = self._queues[waiting]
            while queue and queue[0].done():
                queue.popleft()  # it was cancelled
            has_place = bool(queue) and self.take(waiting)
            if has_place:
                queue.popleft().set_result(None)
            if not queue:
                del self._queues[waiting]
            if has_place:
                break
