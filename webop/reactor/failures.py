"""The meaning of failed requests about objects, and the pauses after failures."""

from __future__ import annotations

import asyncio
import enum
import logging
from itertools import chain
from typing import TYPE_CHECKING

from webop.aio.backoff import Backoff, format_pause
from webop.client.http.failed_requests import choose_pause, is_policy
from webop.errors import APIConflictError, APIError, APIStatusError

if TYPE_CHECKING:
    from webop.reactor.resource_context import ResourceContext
    from webop.reactor.store import WatchedObject

logger = logging.getLogger(__name__)

_TRANSIENT = frozenset({408, 425, 429})


class Failure(enum.Enum):
    """The meaning of a failed request."""

    GONE = enum.auto()
    """The object is gone, or another one has its name now."""
    DENIED = enum.auto()
    """The API server rejects it for good."""
    FORBIDDEN = enum.auto()
    """Permissions are missing: for good, or while they are being replaced."""
    OUTDATED = enum.auto()
    """The object has changed meanwhile."""
    AWAY = enum.auto()
    """The API server is not available."""


class DeniedError(APIError):
    """The API server rejects a patch for good."""


class NotStoredError(DeniedError):
    """The API server has accepted a patch, and silently dropped a part of it."""


def classify(exc: BaseException) -> Failure:
    """Return what a failed request means."""
    if isinstance(exc, DeniedError):
        return Failure.DENIED
    if not isinstance(exc, APIStatusError):
        return Failure.AWAY
    causes = exc.details.get("causes")
    fields = [cause.get("field") for cause in causes] if isinstance(causes, list) else []
    if exc.status == 404:  # what a webhook has looked for; or an absent subresource or kind
        return Failure.DENIED if exc.details.get("name") else Failure.AWAY
    if exc.status == 422 and "metadata.uid" in fields:
        return Failure.GONE
    if exc.status == 403:
        return Failure.DENIED if is_policy(str(exc)) else Failure.FORBIDDEN
    if exc.status == 409:
        return Failure.OUTDATED
    is_final = 400 <= exc.status < 500 and exc.status not in _TRANSIENT | {401}
    return Failure.DENIED if is_final else Failure.AWAY


class Pause:
    """The pauses of an object after consecutive failures, which are logged once.

    After failures of the API server, those of ``settings.networking`` come first, as for all
    requests, then those of ``settings.batching``, of which the last one repeats.

    Attributes:
        until: the end of the pause, by the clock of the event loop; 0 if nothing must wait for it.
        error: the type and the text of the last failure; empty if there is none.
    """

    __slots__ = ("_backoff", "error", "until")

    def __init__(self) -> None:
        self._backoff: Backoff | None = None
        self.until = 0.0
        self.error = ("", "")

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt has failed, also if nothing waits any more."""
        return bool(self.error[0])

    @property
    def left(self) -> float:
        """The remaining seconds; 0 if there is no pause."""
        return max(0, self.until - asyncio.get_running_loop().time()) if self.until else 0

    @property
    def failures(self) -> int:
        """The number of failures since the last success."""
        return 0 if self._backoff is None else self._backoff.failures

    def begin(self, ctx: ResourceContext, obj: WatchedObject, exc: Exception) -> float | None:
        """Begin a pause after a failure; return its seconds, or None for no retry."""
        settings = ctx.operator.settings
        is_expected = isinstance(exc, APIError)
        is_away = is_expected and classify(exc) is not Failure.DENIED
        if self._backoff is None:
            first = settings.networking.error_backoffs if is_away else ()
            phases = Backoff(first, is_endless=False), Backoff(settings.batching.error_delays)
            pauses = chain.from_iterable(iter(phase.next, None) for phase in phases)
            self._backoff = Backoff(pauses, is_endless=False)
        is_enforced = settings.networking.enforce_retry_after
        delay = choose_pause(self._backoff, exc, is_enforced=is_enforced)
        self.until = 0.0 if delay is None else asyncio.get_running_loop().time() + delay
        known, self.error = self.error, (type(exc).__name__, repr(exc))
        level = logging.WARNING if isinstance(exc, NotStoredError) else logging.ERROR
        if isinstance(exc, APIConflictError) or self.error == known:
            level = logging.DEBUG
        elif is_away:
            level = ctx.queue.choose_level("away")
        logger.log(
            level,
            "%s %s",
            exc if is_expected else " ".join([f"{exc!r}.", *getattr(exc, "__notes__", ())]),
            "No retry before its next change."
            if delay is None
            else f"Retrying in {format_pause(delay)} s.",
            exc_info=None if is_expected else exc,
            extra=ctx.refer_to(obj),
        )
        return delay
