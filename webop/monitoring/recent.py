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
    """The growth in periods of 15 s. It reads the counters, so that counting costs nothing more.

    Args:
        read: returns the totals. Values that do not grow need no memory here, except the last one.
    """

    def __init__(self, read: Callable[[], Mapping[Key, int]]) -> None:
        self._read = read
        self._last: Mapping[Key, int] = {}  # all that was counted before is new
        self._periods: deque[dict[Key, int]] = deque(maxlen=_PERIODS)

    async def run(self) -> None:
        """End a period every 15 s, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD)
            self.end_period()

    def end_period(self) -> None:
        """Remember the growth since the end of the last period; forget the oldest one."""
        current = self._read()
        self._periods.append(_subtract(current, self._last))
        self._last = current

    def compute(self) -> Counter[Key]:
        """Return the growth in the last five minutes, or in up to 15 s more."""
        growth = Counter(_subtract(self._read(), self._last))
        for period in self._periods:
            growth.update(period)
        return growth


def _subtract(current: Mapping[Key, int], last: Mapping[Key, int]) -> dict[Key, int]:
    return {
        key: count - last.get(key, 0) for key, count in current.items() if count != last.get(key)
    }
