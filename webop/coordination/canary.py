"""A canary: a replica of a new version, which gives up its shards if its handlers fail.

:mod:`webop.coordination.members` asks it at each look, and tells the other replicas. Page "Shards".
"""

from __future__ import annotations

import logging
from typing import Final

from webop.settings.groups import LeadershipSettings
from webop.telemetry.counters import CallCounters

logger = logging.getLogger(__name__)

_JUDGED: Final = frozenset({"change", "reconcile", "timer", "daemon"})
_FINE: Final = frozenset({"success", "ignored", "cancelled"})
_CALLS: Final = 20  # of handlers, at least, until it is judged


class Canary:
    """How this replica tries its version, if it is a canary.

    Attributes:
        shards: how many shards all canaries should own; 0 if this one has failed; None if this
            replica is no canary.
        failure: why it has given up its shards; empty if it has not.
    """

    def __init__(self, settings: LeadershipSettings, counters: CallCounters) -> None:
        self._settings = settings
        self._counters = counters
        self._judged = 0, 0  # the calls until the last judgement, and those that had failed
        self.shards = settings.canary_shards
        self.failure = ""

    def judge(self) -> bool:
        """Return whether it gives up its shards now: too many of its newest calls have failed."""
        calls, failed = self._count_calls()
        new, bad = calls - self._judged[0], failed - self._judged[1]
        if not self.shards or new < _CALLS:
            return False
        self._judged = calls, failed
        limit = self._settings.canary_failures
        if bad / new <= limit:
            return False
        self.shards = 0
        text = f"{bad} of its last {new} calls of handlers have failed, the limit is {limit:.0%}"
        self.failure = f"the canary has given up its shards: {text}"
        logger.error("The canary gives up its shards: %s.", text)
        return True

    def _count_calls(self) -> tuple[int, int]:
        """Return the number of calls about own objects, and how many of them have failed."""
        calls = failed = 0
        for (_, family, how), count in self._counters.count_outcomes().items():
            if family in _JUDGED:
                calls += count
                failed += count * (how not in _FINE)
        return calls, failed
