"""RequestLimits: how many requests about the objects of one kind are in flight at once.

Place in the flow: :meth:`webop.client.api.Client.perform` asks for a slot before it sends a request
that names a queue. Requests without a queue (Leases, peering, discovery, logins, Events, lists)
never wait, so that a burst of objects cannot delay what keeps the operator alive.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque

from webop.telemetry.counters import Timings

# Each connection costs a TLS handshake and some 100 KB, and more requests at once gain nothing.
_QUEUE_LIMIT = 16

# From this total on, each queue gets only its share: a kind whose requests hang occupies at most
# 16 connections, and kinds that come later are still served.
_TOTAL_LIMIT = 64
_SHARE = 4


class RequestLimits:
    """The slots for requests, by queue. The requests of one queue share a limit.

    Guarantees:
        - A queue has at most 16 requests in flight; at most 4 if all queues together have 64 or
          more.
        - The requests of a queue are sent in the order in which they arrived.
        - A slot that becomes free goes to the queue with the fewest requests in flight.
        - A request that is cancelled while it waits takes no slot.

    Attributes:
        active: how many requests are in flight, by queue.
    """

    def __init__(self, waits: Timings) -> None:
        self._total = 0
        self._waits = waits
        self.active: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def try_acquire(self, queue: str) -> bool:
        """Acquire a slot if one is free; return whether that succeeded."""
        active = self.active[queue]
        if active >= (_SHARE if self._total >= _TOTAL_LIMIT else _QUEUE_LIMIT):
            return False
        self.active[queue] = active + 1
        self._total += 1
        return True

    async def acquire(self, queue: str) -> None:
        """Wait for a slot, and acquire it."""
        slot = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(queue, deque()).append(slot)
        began = time.monotonic()
        try:
            await slot
            self._waits.add(time.monotonic() - began, queue)
        except asyncio.CancelledError:
            if not slot.cancelled():
                self.release(queue)
            raise

    def count_waiting(self) -> dict[str, int]:
        """Return how many requests wait, by queue."""
        return {
            queue: sum(not slot.done() for slot in slots) for queue, slots in self._waiting.items()
        }

    def release(self, queue: str) -> None:
        """Release a slot: to the first request in the least busy queue that may send one more."""
        self._total -= 1
        self.active[queue] -= 1
        if not self._waiting:
            return
        for candidate in sorted(self._waiting, key=self.active.__getitem__):
            slots = self._waiting[candidate]
            while slots and slots[0].done():
                slots.popleft()  # its request was cancelled
            has_slot = bool(slots) and self.try_acquire(candidate)
            if has_slot:
                slots.popleft().set_result(None)
            if not slots:
                del self._waiting[candidate]
            if has_slot:
                break
