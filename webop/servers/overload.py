"""The overload gate: it refuses reviews beyond the limits at once, so that clients retry.

An operator has one gate, and so has a server without an operator. The HTTP side counts the memory
that reviews take; the admission side counts reviews and calls of handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from webop.errors import ReviewError

if TYPE_CHECKING:
    from webop.servers.hosting import ServingLimits

_LARGEST = 5  # bytes of memory per byte of text: of a review with few values


class OverloadGate:
    """Counts the reviews being served and refuses those that exceed the limits.

    The limits are read at each use, so that changes count.
    """

    def __init__(self, get_limits: Callable[[], ServingLimits]) -> None:
        self._get_limits = get_limits
        self._held = 0
        self._shares: dict[object, int] = {}  # of the bytes held, by peer
        self._reviews = 0
        #: The running calls, by the ids of the handlers.
        self.calls: dict[str, int] = {}

    @property
    def share(self) -> int:
        """The bytes of memory that one review, or all reviews of one peer, may take at most.

        It is half of the budget, so that one peer cannot keep out all others; but at least what a
        review of the largest size with few values takes, and then it is the budget.
        """
        limits = self._get_limits()
        return max(limits.max_held_bytes // 2, _LARGEST * limits.max_body)

    def hold(self, size: int, peer: object, share: int) -> None:
        """Count bytes that a review takes; the caller must release as many.

        Args:
            size: in bytes.
            peer: who sent the review: the address without the port.
            share: that of a peer, see :attr:`share`; the caller reads it once per review.

        Raises:
            ReviewError: they do not fit (429), and are not counted.
        """
        mine = self._shares.get(peer, 0) + size
        if self._held + size > (budget := max(self._get_limits().max_held_bytes, share)):
            raise _refuse(f"Reviews take more than {budget} bytes of memory", "max_held_bytes")
        if mine > share:
            text = f"Reviews from one address take more than {share} bytes of memory"
            raise _refuse(text, "max_held_bytes")
        self._held += size
        self._shares[peer] = mine

    def release(self, size: int, peer: object) -> None:
        """Subtract bytes of reviews that are not in memory any more."""
        self._held -= size
        if left := self._shares.pop(peer, 0) - size:
            self._shares[peer] = left

    def enter(self, calls: Mapping[str, int]) -> Iterable[str]:
        """Count a review and the calls of its handlers; the caller must call :meth:`leave`.

        Args:
            calls: the ids of the handlers, each with its number of cancelled calls that still
                occupy threads.

        Returns:
            The argument for :meth:`leave`.

        Raises:
            ReviewError: the operator or one of the handlers is at its limit (429); nothing is
                counted.
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
        """Subtract a review that has entered, and the calls of its handlers."""
        self._reviews -= 1
        for key in calls:
            self.calls[key] -= 1


def _refuse(what: str, setting: str) -> ReviewError:
    """Build a refusal that makes API servers retry soon."""
    text = f"{what}, which is the limit (settings.admission.{setting}); try again."
    return ReviewError(text, status=429, retry_after=1)
