"""Limits on what the framework says again and again, such as of an API server that is away.

Flow: a filter on each logger of the framework counts the messages of each place in the code. In an
interval, the first few of a place are let through; how many are left out is told by one line at
the end of it. As long as it goes on like that, an interval brings one message and one such line.

Guarantees:
    - What handlers say is never left out, nor are their failures with objects and reviews, nor is
      anything of other loggers than ours, or below INFO.
    - The memory is bounded by the number of places in the code.

Caveats:
    Where there is no event loop, as in threads, the line about what is left out comes with the
    next message of the framework, or at the exit.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

VARIABLE = "WEBOP_LOG_LIMIT"

_FAMILY = "webop."
# The loggers of handlers, and where the framework itself has something to complain of by them:
# of objects that cannot be written; of activities that fail, which are tried again and again.
_PACKAGE = Path(__file__).parents[1]
_HANDLERS = {
    "webop.objects": str(_PACKAGE / "reactor"),
    "webop.activities.": str(_PACKAGE / "handling"),
}
_MARK = "repeated"
_SLACK = 0.05  # seconds: timers of loops may come a little early


class Limit(NamedTuple):
    """How many messages of a place are let through in so many seconds; 0 for all of them."""

    messages: int = 10
    seconds: float = 60.0


class _Sample(NamedTuple):
    """A message that is left out; with no arguments and no traceback, which hold much memory."""

    logger: str
    level: int
    path: str
    line: int
    text: str


@dataclass(slots=True)
class _Place:
    """What is remembered of one place in the code: the present interval."""

    ends: float
    allowance: int
    seen: int = 0
    sample: _Sample | None = None


class RepetitionFilter(logging.Filter):
    """Lets the first messages of each place in the code through, and counts the others.

    Args:
        limit: how many are let through.
        clock: the time in seconds, which only grows.
    """

    def __init__(self, limit: Limit, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.limit = limit
        self._clock = clock
        self._places: dict[tuple[str, str, int], _Place] = {}
        self._lock = threading.RLock()  # the text of a message may come from anybody's __str__
        self._due = math.inf  # when the next line about messages that are left out is to come

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a message is to be logged (``logging.Filter``)."""
        if not self.limit.messages or hasattr(record, _MARK) or not _is_limited(record):
            return True
        now = self._clock()
        if now >= self._due:
            self.flush()
        with self._lock:
            place = self._recall(record, now)
            place.seen += 1
            if place.seen <= place.allowance:
                return True
            is_first = place.sample is None
            place.sample = _Sample(
                record.name, record.levelno, record.pathname, record.lineno, record.getMessage()
            )
            self._due = min(self._due, place.ends)
        if is_first:
            self._arrange_flush(place.ends - now)
        return False

    def reset(self, limit: Limit) -> None:
        """Begin anew, with another limit maybe."""
        self.flush(is_last=True)
        self._places.clear()
        self.limit = limit

    def flush(self, *, is_last: bool = False) -> None:
        """Tell what has been left out in the intervals that are over, or in all of them."""
        reports: list[tuple[_Sample, int, float]] = []
        with self._lock:
            now = self._clock()
            self._due = math.inf
            for place in self._places.values():
                if place.sample is None:
                    continue
                if place.ends > now and not is_last:
                    self._due = min(self._due, place.ends)
                    continue
                # At the exit, the interval is not over yet; a second is as good as none.
                elapsed = self.limit.seconds - max(0.0, place.ends - now)
                seconds = min(self.limit.seconds, max(1.0, elapsed))
                reports.append((place.sample, place.seen - place.allowance, seconds))
                # It goes on, as far as is known: one message is enough for a while.
                place.ends, place.allowance = now + self.limit.seconds, 1
                place.seen, place.sample = 0, None
        for sample, count, seconds in reports:
            contextvars.Context().run(_tell, sample, count, seconds)

    def _recall(self, record: logging.LogRecord, now: float) -> _Place:
        key = (record.name, record.pathname, record.lineno)
        place = self._places.get(key)
        if place is None or now >= place.ends:
            place = _Place(now + self.limit.seconds, self.limit.messages)
            self._places[key] = place
        return place

    def _arrange_flush(self, delay: float) -> None:
        """Have it told in time, if there is a loop; if not, it is told with the next message."""
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            loop.call_later(delay + _SLACK, self.flush, context=contextvars.Context())


class _FamilyFilter(RepetitionFilter):
    """The one of all loggers of the framework, also of those that come with later imports."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self._known = 0  # loggers of the process

    def filter(self, record: logging.LogRecord) -> bool:
        """Look out for other loggers, too."""
        if len(logging.root.manager.loggerDict) != self._known:
            self.join()
        return super().filter(record)

    def join(self) -> None:
        """Become a filter of all loggers that the framework has by now."""
        loggers = logging.root.manager.loggerDict
        self._known = len(loggers)
        for name, member in list(loggers.items()):
            if name.startswith(_FAMILY) and isinstance(member, logging.Logger):
                member.addFilter(self)  # only once: the second time changes nothing


def limit_repetitions() -> None:
    """Limit what the framework says from now on, and forget what it has said.

    The environment may say how much: ``WEBOP_LOG_LIMIT=10/60`` are ten messages of a place in 60
    seconds, ``WEBOP_LOG_LIMIT=off`` are all of them.
    """
    _filter.reset(read_limit(os.environ.get(VARIABLE, "")))
    _filter.join()


@functools.lru_cache(maxsize=8)  # one warning is enough
def read_limit(text: str) -> Limit:
    """Return the limit of a text such as "10/60"; with a warning, the default if it is not one."""
    cleaned = text.strip().lower()
    if cleaned in ("off", "0"):
        return Limit(0)
    if not cleaned:
        return Limit()
    count, _, interval = cleaned.partition("/")
    with contextlib.suppress(ValueError):
        limit = Limit(int(count), float(interval or Limit().seconds))
        if limit.messages > 0 and 0 < limit.seconds < math.inf:
            return limit
    logger.warning(
        "%s=%s is ignored: it is not a number of messages and of seconds, such as 10/60, nor off.",
        VARIABLE,
        text,
    )
    return Limit()


def _is_limited(record: logging.LogRecord) -> bool:
    if record.levelno < logging.INFO:
        return False
    for name, folder in _HANDLERS.items():
        if record.name.startswith(name):
            return record.levelno >= logging.WARNING and record.pathname.startswith(folder)
    return True


def _tell(sample: _Sample, count: int, interval: float) -> None:
    """Log one line that stands for many."""
    source = logging.getLogger(sample.logger)
    record = source.makeRecord(
        sample.logger,
        sample.level,
        sample.path,
        sample.line,
        "%s (repeated %s in %.3g s)",
        (sample.text, "once" if count == 1 else f"{count} times", interval),
        None,
        extra={_MARK: count},
    )
    source.handle(record)


_filter = _FamilyFilter(Limit())
atexit.register(_filter.flush, is_last=True)
