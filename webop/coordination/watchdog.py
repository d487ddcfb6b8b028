"""The end of a process that goes on acting after its lease, as nothing else can stop it.

Threads cannot be stopped, nor can a step of the event loop that blocks; both go on when the lease
is over, and a blocked loop does not even notice. So there is a thread that does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from webop.handling.fence import Fence

logger = logging.getLogger(__name__)

_GRACE = 0.05  # seconds; for what ends just in time
_NAP = 0.5  # seconds; while all is well, and while there is nothing to look for

EXIT_CODE = 1


class Watchdog:
    """Bites when something is still being done at the end of a lease.

    It calls ``on_overrun`` in another thread.
    """

    def __init__(self, fence: Fence, on_overrun: Callable[[], None]) -> None:
        self._fence = fence
        self._on_overrun = on_overrun
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="end of the lease", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching: nothing is being done any more."""
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
        """Tell whether one step goes on and on: not the rest of one in which all was stopped."""
        if not self._fence.has_overrun or self._stopped.wait(_GRACE):
            return False
        return self._fence.has_overrun


def end_process(message: str) -> None:
    """Say why, and end the process at once: without cleaning up, which might take too long."""
    logger.critical(message)
    logging.shutdown()
    os._exit(EXIT_CODE)
