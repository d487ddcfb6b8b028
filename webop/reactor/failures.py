"""Failed requests about objects: what they mean, and what follows for the object and its kind.

The API server is *away* (no response, 5xx, 429, 401, permissions that may come back): the object
waits, and nothing is lost. It *denies* a write: the changes of handlers are dropped. The object is
*gone*: it rests until an event or a list. It was *outdated*: it is read, and written again.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from itertools import chain
from typing import Any, Final

from webop.aio.backoff import Backoff, format_pause
from webop.client.http.failed_requests import choose_pause, is_policy
from webop.errors import APIConflictError, APIError, APIForbiddenError, APIStatusError
from webop.reactor.entry import Entry
from webop.reactor.queue import REST, Held, Later, Result
from webop.reactor.resource_context import ResourceContext

logger = logging.getLogger(__name__)

_TRANSIENT: Final = frozenset({401, 408, 425, 429})
_PATIENCE: Final = 6  # attempts; then missing permissions are assumed to stay so
_LONGEST: Final = 30.0  # seconds; longer pauses are for errors that are not the API server's


class Failure(enum.Enum):
    """The meaning of a failed request."""

    GONE = enum.auto()
    """The object is gone, or another one has its name now."""
    DENIED = enum.auto()
    """The API server rejects it for good."""
    OUTDATED = enum.auto()
    """The object has changed meanwhile."""
    AWAY = enum.auto()
    """The API server is not available."""


class DeniedError(APIError):
    """The API server rejects a patch for good."""


class NotStoredError(DeniedError):
    """The API server has accepted a patch, and silently dropped a part of it."""


def classify(exc: BaseException, attempts: int = 0) -> Failure:
    """Return what a failed request means, after so many failed attempts of the object."""
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
    if exc.status == 403 and not is_policy(str(exc)):
        return Failure.DENIED if attempts >= _PATIENCE else Failure.AWAY
    if exc.status == 409:
        return Failure.OUTDATED
    is_final = 400 <= exc.status < 500 and exc.status not in _TRANSIENT
    return Failure.DENIED if is_final else Failure.AWAY


def find_gate(ctx: ResourceContext, obj: Entry) -> Result | None:
    """Return the result of a turn that must end before anything is written; None if not."""
    place = None if obj.is_gone else ctx.workers.outages.find_hold(obj)
    if place is not None:  # nothing can be written there
        return Held(place)
    return wait(obj) if must_wait(obj) else None


def must_wait(obj: Entry) -> bool:
    """Return whether a failure of the object is so recent that it must wait."""
    return obj.not_before > 0 and asyncio.get_running_loop().time() < obj.not_before


def wait(obj: Entry) -> Result:
    """Return when an object that has failed has its next turn; without retries, at a change."""
    if not obj.not_before:
        return REST
    return Later(max(0.001, obj.not_before - asyncio.get_running_loop().time()))


def fail(ctx: ResourceContext, obj: Entry, exc: Exception) -> None:
    """Log a failure of an object; it has its next turn, or write, after a pause.

    After failures of the API server, the pauses of ``settings.networking`` come first, as for all
    requests, then those of ``settings.batching``, of which the last one repeats. If there are
    none, only the next change of the object leads to another attempt.
    """
    settings = ctx.operator.settings
    is_expected = isinstance(exc, APIError)
    is_away = is_expected and classify(exc) is not Failure.DENIED
    if obj.backoff is None:
        first = settings.networking.error_backoffs if is_away else ()
        phases = Backoff(first, is_endless=False), Backoff(settings.batching.error_delays)
        pauses = chain.from_iterable(iter(phase.next, None) for phase in phases)
        limited = (min(pause, _LONGEST) for pause in pauses) if is_away else pauses
        obj.backoff = Backoff(limited, is_endless=False)
    is_enforced = settings.networking.enforce_retry_after
    delay = choose_pause(obj.backoff, exc, is_enforced=is_enforced)
    failures, error = obj.open_status().failures, type(exc).__name__
    count, known = failures.get("", (0, ""))
    is_known = error == known
    failures[""] = (count + 1 if is_known else 1), error
    if isinstance(exc, APIConflictError) or is_known:
        level = logging.DEBUG
    elif is_away:
        level = ctx.workers.reports.choose_level("away")
    else:
        level = logging.WARNING if isinstance(exc, NotStoredError) else logging.ERROR
    what = f"{str(exc).rstrip('.')}." if is_expected else f"{exc!r}."
    what = " ".join([what, *getattr(exc, "__notes__", ())])
    options: Any = {"exc_info": None if is_expected else exc, "extra": ctx.refer_to(obj)}
    if delay is None:
        obj.not_before = 0.0
        logger.log(level, "%s No retry before its next change.", what, **options)
        return
    logger.log(level, "%s Retrying in %s s.", what, format_pause(delay), **options)
    obj.not_before = asyncio.get_running_loop().time() + delay
    if is_expected and classify(exc) is Failure.AWAY:
        ctx.workers.outages.note(obj, exc)
    obj.stream.wake(obj, after=delay)


def recover(obj: Entry) -> None:
    """Forget the failures of an object, which end its pause."""
    obj.backoff, obj.not_before = None, 0.0
    if obj.status is not None:
        obj.status.failures.pop("", None)


def count_denials(obj: Entry) -> int:
    """Return how often permissions were missing, since anything else has happened."""
    failures = {} if obj.status is None else obj.status.failures
    count, error = failures.get("", (0, ""))
    return count if error == APIForbiddenError.__name__ else 0
