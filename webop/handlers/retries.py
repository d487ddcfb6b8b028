"""When a handler is called again: the pauses after failures, and what a reconciler asks for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing pauses between the attempts of a handler, for the option ``backoff=``.

    ::

        @webop.on.create(Database, backoff=webop.Backoff(first=2, factor=3, limit=600))
        async def create(**_): ...  # retried after about 2, 6, 18, 54, … s

    Attributes:
        first: seconds after the first failure.
        factor: each pause is that many times the one before.
        limit: the longest pause, in seconds.
        jitter: the fraction by which a pause varies at random: 0.1 is up to 10 % shorter or longer.

    Raises:
        ValueError: a number is out of range, or the first pause is longer than the limit.
    """

    first: float = 1.0
    factor: float = 2.0
    limit: float = 300.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if not (self.first >= 0 and self.limit >= 0 and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise ValueError(
                "webop.Backoff: first= and limit= must not be negative, factor= must be at least "
                f"1, and jitter= between 0 and 1, got {self}."
            )
        if self.first > self.limit:
            raise ValueError(f"webop.Backoff: first= must not be more than limit=, got {self}.")

    def choose(self, retry: int) -> float:
        """Return the seconds after a failed attempt, counted from 0."""
        try:
            pause = min(self.first * self.factor**retry, self.limit)
        except OverflowError:
            pause = self.limit
        return pause * random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311  no secret


Pauses = float | Sequence[float] | Backoff
"""A pause in seconds, several of which the last one repeats, or a rule."""


def choose_backoff(pauses: Pauses | None, default: float, retry: int) -> float:
    """Return the seconds after a failed attempt, counted from 0; None stands for the default."""
    if pauses is None:
        return default
    if isinstance(pauses, Backoff):
        return pauses.choose(retry)
    if isinstance(pauses, Sequence):
        return pauses[min(retry, len(pauses) - 1)]
    return pauses


@dataclass(frozen=True, slots=True)
class Again:
    """A reconciler returns it to be called again, although nothing has failed: :func:`again`."""

    after: float
    reason: str = ""
    status: Any = None


def again(*, after: float, reason: str = "", status: Any = None) -> Again:
    """Return it from a reconciler to be called again: this is no error, and makes no Event.

    ::

        if not await children.ready("deployments.apps"):
            return webop.again(after=10, reason="RollingOut")

    Args:
        after: seconds; a change of the object or of a child comes first.
        reason: what it waits for, for the log (at the level DEBUG) and the status page.
        status: what the reconciler would return otherwise, such as a model: it goes into the
            status.

    Raises:
        ValueError: ``after`` is no number from 0 on.
    """
    number: object = after
    if not isinstance(number, int | float) or not number >= 0:
        raise ValueError(f"webop.again(): after= must be a number from 0 on, got {after!r}.")
    return Again(after, reason, status)
