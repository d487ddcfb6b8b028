"""Pauses between failed attempts (:class:`Backoff`), and messages that are logged once.

All code that retries uses :class:`Backoff`; all messages with a pause use :func:`format_pause`; all
code that could repeat a message uses :class:`Once`. No I/O.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Hashable, Iterable, Iterator

_MINUTE = 60.0


class Backoff:
    """The pauses between consecutive failed attempts.

    Args:
        delays: seconds; one number, or an iterable of numbers that is read from its beginning
            after each :meth:`reset`.
        is_endless: whether to repeat the last delay without end; if not, :meth:`next` returns None
            after the last delay.
        jitter: the fraction by which a delay varies at random: 0.2 is 20 % up or down.
    """

    __slots__ = ("_delays", "_is_endless", "_iterator", "_jitter", "_last")

    def __init__(
        self, delays: float | Iterable[float], *, is_endless: bool = True, jitter: float = 0.0
    ) -> None:
        self._delays = (delays,) if isinstance(delays, int | float) else delays
        self._is_endless = is_endless
        self._jitter = jitter
        self._iterator: Iterator[float] | None = None
        self._last: float | None = None

    def next(self, at_least: float | None = None) -> float | None:
        """Count a failure; return the pause before the next attempt, or None to give up."""
        if self._iterator is None:
            self._iterator = iter(self._delays)
        delay = next(self._iterator, self._last if self._is_endless else None)
        self._last = delay
        if delay is None:
            return None
        if self._jitter:
            delay *= random.uniform(1 - self._jitter, 1 + self._jitter)  # noqa: S311  no secret
        return max(delay, at_least or 0)

    def reset(self) -> None:
        """Restart with the first delay, after a successful attempt."""
        self._iterator = None
        self._last = None


def format_pause(seconds: float) -> str:
    """Return the seconds of a pause for messages: at most three significant digits."""
    return f"{float(f'{seconds:.3g}'):.15g}"


class Once:
    """Remembers messages, so that they are not repeated."""

    __slots__ = ("_logged", "_warned")

    def __init__(self) -> None:
        self._logged: dict[Hashable, object] = {}
        self._warned: dict[Hashable, float] = {}  # when, the oldest first

    def is_new(self, topic: Hashable, content: object = "logged") -> bool:
        """Return whether this differs from the last message about the topic; remember it."""
        if self._logged.get(topic) == content:
            return False
        self._logged[topic] = content
        return True

    def choose_level(self, topic: Hashable) -> int:
        """Return the level of a message that can repeat: WARNING once a minute, otherwise DEBUG."""
        now, warned = time.monotonic(), self._warned
        while warned and now - warned[oldest := next(iter(warned))] >= _MINUTE:
            del warned[oldest]
        if topic in warned:
            return logging.DEBUG
        warned[topic] = now
        return logging.WARNING

    def forget(self, topic: Hashable) -> bool:
        """Return whether anything was logged about the topic, and forget it."""
        return self._logged.pop(topic, None) is not None
