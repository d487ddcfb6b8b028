"""The watchdog ends a process whose handlers still run after the end of the Lease.

Threads cannot be stopped, nor can a blocking step of the event loop. Both continue after the end of
the Lease, and a blocked event loop does not notice the end. So a thread watches it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from webop.aio.work_deadline import Fence

logger = logging.getLogger(__name__)

_GRACE = 0.05  # seconds; for handlers that end just in time
_NAP = 0.5  # seconds; the pause between two checks far from the end

EXIT_CODE = 1


class Watchdog:
    """Calls ``on_overrun``, in a thread of its own, if handlers still run at the end of a Lease."""

    def __init__(self, fence: Fence, on_overrun: Callable[[], None]) -> None:
        self._fence = fence
        self._on_overrun = on_overrun
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="end of the lease", daemon=True).start()

    def stop(self) -> None:
        """Stop watching: no handlers run any more."""
        self._stopped.set()

    def _watch(self) -> None:
        nap, was_late = 0.0, False
        while not self._stopped.wait(nap):
            rest = self._fence.rest + _GRACE
            nap = _NAP if rest < -_NAP else min(max(rest, _GRACE), _NAP)
            is_late = rest <= 0 and (bool(self._fence.threads) or self._is_blocked())
            if is_late and not was_late:
                self._on_overrun()
            was_late = is_late

    def _is_blocked(self) -> bool:
        """Return whether a step blocks the event loop, not just ends in these milliseconds."""
        if not self._fence.has_overrun or self._stopped.wait(_GRACE):
            return False
        return self._fence.has_overrun


def end_process(message: str) -> None:
    """Log why, and end the process at once, without cleanup, which could take too long."""
    logger.critical(message)
    logging.shutdown()
    os._exit(EXIT_CODE)
