"""The gate for overload: what is too much at once is refused at once, for a later attempt.

One gate belongs to one operator, or to one server that runs without an operator. The HTTP side
counts the bodies in memory, the admission side its reviews and the calls of its handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from webop.errors import ReviewError

if TYPE_CHECKING:
    from webop.servers.hosting import ServingLimits


class OverloadGate:
    """Counts what is being served, and refuses what exceeds the limits.

    The limits are read at each use, so that changes count.
    """

    def __init__(self, get_limits: Callable[[], ServingLimits]) -> None:
        self._get_limits = get_limits
        self._held = 0
        self._reviews = 0
        #: The calls that run, by the ids of the handlers.
        self.calls: dict[str, int] = {}

    def check(self, size: int) -> None:
        """Check that a body of so many bytes fits, without counting it.

        Raises:
            ReviewError: it does not (429).
        """
        limits = self._get_limits()
        # The largest review is served alone, even if the budget is smaller than it.
        if (held := self._held + size) > limits.max_held_bytes and held > limits.max_body:
            budget = max(limits.max_held_bytes, limits.max_body)
            raise _refuse(f"Reviews take more than {budget} bytes of memory", "max_held_bytes")

    def hold(self, size: int) -> None:
        """Count bytes of a body; the caller must release as many, whatever happens.

        Raises:
            ReviewError: they do not fit (429); they are not counted.
        """
        self.check(size)
        self._held += size

    def release(self, size: int) -> None:
        """Uncount bytes of bodies that are not in memory any more."""
        self._held -= size

    def enter(self, calls: Mapping[str, int]) -> Iterable[str]:
        """Count a review and the handlers that it will call; the caller must let it leave.

        Args:
            calls: the ids of the handlers, with the calls of each that were given up but still
                keep their threads.

        Returns:
            What to let leave: the ids of the handlers.

        Raises:
            ReviewError: it is one too many for the operator, or for any of these handlers (429);
                nothing is counted.
        """
        limits = self._get_limits()
        if self._reviews >= limits.max_reviews:
            raise _refuse(f"{limits.max_reviews} reviews are being served", "max_reviews")
        for key, abandoned in calls.items():
            if self.calls.get(key, 0) + abandoned >= limits.max_calls:
                raise _refuse(f"Webhook {key!r} is busy with {limits.max_calls} calls", "max_calls")
        self._reviews += 1
        for key in calls:
            self.calls[key] = self.calls.get(key, 0) + 1
        return calls

    def leave(self, calls: Iterable[str]) -> None:
        """Uncount a review that was let in, and its handlers."""
        self._reviews -= 1
        for key in calls:
            self.calls[key] -= 1


def _refuse(what: str, setting: str) -> ReviewError:
    """Return a refusal that API servers take for a request to try again soon."""
    text = f"{what}, which is the limit (settings.admission.{setting}); try again."
    return ReviewError(text, status=429, retry_after=1)
