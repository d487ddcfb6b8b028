"""RequestLimits: how many requests of one queue are in flight at once.

Place in the flow: :meth:`webop.client.api.Client.perform` acquires a slot before it sends a request
that names a queue: the kind of its object, or the handlers that share the limit. Requests without a
queue (Leases, peering, discovery, logins, Events, lists of watches) never wait, so that a burst of
objects cannot delay what keeps the operator alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict

from webop.aio.backoff import Once
from webop.telemetry.counters import Timings

logger = logging.getLogger(__name__)

# Each connection costs a TLS handshake and some 100 KB, and more requests at once gain nothing.
_LIMIT = 16

_LONG_WAIT = 10.0  # seconds; a longer wait is worth a warning


class RequestLimits:
    """The slots for requests: 16 for each queue, which get them in the order of their arrival.

    Attributes:
        active: how many requests are in flight, by queue.
        waiting: how many requests wait for a slot, by queue.
    """

    def __init__(self, waits: Timings) -> None:
        self.active: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self._waits = waits
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_LIMIT)
        )
        self._logged = Once()

    async def acquire(self, queue: str) -> None:
        """Acquire a slot; wait for one if all are taken."""
        slots = self._slots[queue]
        if slots.locked():
            await self._wait(slots, queue)
        else:
            await slots.acquire()  # it does not wait
        self.active[queue] += 1

    def release(self, queue: str) -> None:
        """Release a slot."""
        self.active[queue] -= 1
        self._slots[queue].release()

    async def _wait(self, slots: asyncio.Semaphore, queue: str) -> None:
        self.waiting[queue] += 1
        began = asyncio.get_running_loop().time()
        try:
            await slots.acquire()
        finally:
            self.waiting[queue] -= 1
            waited = asyncio.get_running_loop().time() - began
            self._waits.add(waited, queue)
            if waited > _LONG_WAIT:
                logger.log(
                    self._logged.choose_level(queue),
                    "A request in the queue %r waited %.0f s for others: at most %d are in flight. "
                    "Check why the API server, or a webhook that it calls, responds slowly.",
                    *(queue, waited, _LIMIT),
                )
