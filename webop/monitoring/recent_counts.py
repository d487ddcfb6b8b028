"""The growth of counters in the last five minutes, beside their totals since the start."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

_PERIOD = 15.0  # seconds
_PERIODS = 20

Key = TypeVar("Key", bound=Hashable)


class Recent(Generic[Key]):
    """The growth since a moment five minutes ago. Counting itself costs nothing more."""

    def __init__(self, read: Callable[[], Mapping[Key, int]]) -> None:
        self._read = read
        # The totals at the ends of the last periods; all that was counted at first is new.
        self._totals: deque[Mapping[Key, int]] = deque([{}], maxlen=_PERIODS + 1)

    async def run(self) -> None:
        """End a period every 15 s, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD)
            self.end_period()

    def end_period(self) -> None:
        """Remember the totals; forget the oldest ones. Equal totals are stored once."""
        totals = self._read()
        self._totals.append(self._totals[-1] if totals == self._totals[-1] else totals)

    def compute(self) -> Counter[Key]:
        """Return the growth in the last five minutes, or in up to 15 s more."""
        growth = Counter(self._read())
        growth.subtract(self._totals[0])
        return +growth  # without zeros
