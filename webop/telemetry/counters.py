"""Counters of calls, reviews and requests, for metrics and the status page.

They are plain values of one event loop, without locks, because each call, request and review
updates them. To record a duration takes less than 1 µs here, and 2.5 µs with the histograms of
prometheus-client (including labels).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

Labels = tuple[str, ...]
Row = list[float]

#: In seconds; the last bucket is infinite.
BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_FAILED_LIMIT = 1000  # calls that have failed for good and are kept, of up to 1 kB each


class Timings:
    """Durations in buckets, by labels: the data of a histogram.

    Attributes:
        rows: by labels: the number of durations in each bucket, then the sum of the durations.
    """

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[Labels, Row] = {}

    def find(self, *labels: str) -> Row:
        """Return the row of these labels; create it if needed."""
        return self.rows.get(labels) or self.rows.setdefault(labels, [0.0] * (len(BOUNDS) + 2))

    def add(self, seconds: float, *labels: str) -> None:
        """Count a duration."""
        row = self.rows.get(labels) or self.find(*labels)
        row[bisect_left(BOUNDS, seconds)] += 1
        row[-1] += seconds


class FailedCall(NamedTuple):
    """A handler that has failed for good for an object; the time is that of the monotonic clock."""

    resource: str
    namespace: str | None
    name: str
    handler: str
    error: str
    time: float


class CallCounters:
    """The calls of handlers.

    Attributes:
        failed: the newest that have failed for good, by the uid of the object and the id of the
            handler, the oldest one first.
        dropped: how many older ones of these were dropped.
        durations: of the calls, by handler and type.
        failures: number of calls without success, by handler, type and outcome.
        errors: the type and the time of the last error, by handler and type.
        misfits: the objects that do not fit their models, by uid, and their states.
    """

    __slots__ = ("dropped", "durations", "errors", "failed", "failures", "misfits")

    def __init__(self) -> None:
        self.failed: dict[tuple[str, str], FailedCall] = {}
        self.dropped = 0
        self.durations = Timings()
        self.failures: Counter[Labels] = Counter()
        self.errors: dict[Labels, tuple[str, float]] = {}
        self.misfits: dict[str, tuple[FailedCall, str]] = {}

    def add(self, seconds: float, labels: tuple[str, str], how: str = "", error: str = "") -> None:
        """Count a call by its handler and type; ``how`` and ``error`` are empty after a success."""
        self.durations.add(seconds, *labels)
        if how:
            self.failures[*labels, how] += 1
        if error:
            self.errors[labels] = error, time.monotonic()

    def add_failed(self, uid: str, key: str, call: FailedCall) -> None:
        """Add a call of a handler; it replaces an older one of the same handler and object."""
        self.failed.pop((uid, key), None)
        self.failed[uid, key] = call
        if len(self.failed) > _FAILED_LIMIT:
            del self.failed[next(iter(self.failed))]
            self.dropped += 1

    def count_outcomes(self) -> Counter[Labels]:
        """Return the number of calls, by handler, type and outcome."""
        counts = Counter(self.failures)
        for labels, (*buckets, _) in self.durations.rows.items():
            counts[*labels, "success"] = int(sum(buckets))
        for (handler, kind, _), count in self.failures.items():
            counts[handler, kind, "success"] -= count
        return counts


class ReviewCounters:
    """The admission reviews.

    Anybody who reaches the port can send any name of a webhook, so only known names are labels.

    Attributes:
        durations: of the reviews, by webhook.
        names: the ids of the handlers, by the names of webhooks in requests.
        rejections: number of reviews that were not allowed, by webhook and reason.
    """

    __slots__ = ("durations", "names", "rejections")

    def __init__(self) -> None:
        self.durations = Timings()
        self.rejections: Counter[Labels] = Counter()
        self.names: dict[str, str] = {}

    def find_label(self, webhook: str | None) -> str:
        """Return the label for a requested webhook; None means all that match."""
        return "(all)" if webhook is None else self.names.get(webhook, "(unknown)")

    def add(self, webhook: str | None, seconds: float) -> None:
        """Count a review."""
        self.durations.add(seconds, self.find_label(webhook))

    def reject(self, webhook: str | None, status: int) -> None:
        """Count a review that was answered with an HTTP error."""
        self.rejections[self.find_label(webhook), _REASONS.get(status, "malformed")] += 1


_REASONS = {
    403: "unknown_client",
    404: "unknown_webhook",
    408: "slow_request",
    413: "too_large",
    429: "overloaded",
    500: "error",
    503: "unavailable",
    504: "timeout",
}


class RequestCounters:
    """The requests to the API server.

    Attributes:
        codes: number of requests, by method and status.
        durations: until the response, by method.
        restarts: number of restarts of watches, by resource and reason.
    """

    __slots__ = ("codes", "durations", "restarts")

    def __init__(self) -> None:
        self.codes: Counter[Labels] = Counter()
        self.durations = Timings()
        self.restarts: Counter[Labels] = Counter()

    def add(self, method: str, status: int | None, seconds: float) -> None:
        """Count a request; the status is None if there was no response."""
        self.codes[method, "<error>" if status is None else str(status)] += 1
        self.durations.add(seconds, method)
