"""Classify the errors of handlers: failed for good, ignored, or retried.

One policy for all kinds of handlers (chapter "Error handling"). The result is an :class:`Outcome`.
:mod:`webop.calls.progress` records it, the caller logs it. No I/O.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import traceback
from dataclasses import dataclass
from typing import Any, NamedTuple

from webop.aio.backoff import format_pause
from webop.errors import (
    AdmissionError,
    HandlerRetriesError,
    HandlerTimeoutError,
    PermanentError,
    TemporaryError,
    WebopError,
)
from webop.handlers.model import (
    ActivityHandler,
    ErrorsMode,
    Handler,
    ReconcileHandler,
    WebhookHandler,
)
from webop.handlers.retries import choose_backoff
from webop.logs.sanitizing import describe_line
from webop.objects.field_errors import is_validation_error
from webop.settings.base import find_setting_problem

_WRONG_CALL = re.compile(
    r"(?P<name>\w+)\.__init__\(\) "
    r"(?P<rest>(?:got an unexpected keyword argument '(?P<argument>\w+)'|got |takes |missing ).*)"
)


class ChildrenRetryError(TemporaryError):
    """A handler must be called again because some of its sub-handlers are not finished."""


class LateCallError(WebopError):
    """One call of a handler has taken too long; another one follows."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How an attempt of a handler ended.

    Code never changes it; a frozen dataclass takes three times as long to create.
    """

    final: bool  # whether webop does not call the handler again in this cycle
    delay: float | None = None  # seconds until the next attempt; None for at once
    result: Any = None  # the returned value
    exception: BaseException | None = None  # the error
    subrefs: frozenset[str] = frozenset()  # ids of the sub-handlers of all levels
    message: str = ""  # the message for the log and the Event; empty for none
    advance: str = ""  # when the next attempt comes, for the log only: it differs each time
    is_unexpected: bool = False  # whether to log the traceback


class Attempt(NamedTuple):
    """The number of previous attempts, and the seconds since the first."""

    retries: int
    runtime: float


def check_limits(handler: Handler, attempt: Attempt) -> None:
    """Raise an error if the handler has no attempts or no time left."""
    if handler.timeout is not None and attempt.runtime >= handler.timeout:
        limit, spent = f"timeout={handler.timeout:g} s", f"{attempt.runtime:.1f} s have passed"
        raise HandlerTimeoutError(f"{handler} failed for good: {spent} ({limit}).")
    if handler.retries is not None and attempt.retries >= handler.retries:
        limit = f"retries={handler.retries}"
        raise HandlerRetriesError(f"{handler} failed for good: all attempts are used ({limit}).")


def classify_failure(
    handler: Handler, exc: Exception, attempt: Attempt, *, default_backoff: float
) -> Outcome:
    """Return the outcome for an exception of a handler.

    A ``ValidationError`` of pydantic in an admission handler denies the request. Wrong settings and
    wrong arguments of webop's classes in an activity are permanent: each attempt would fail.
    """
    if isinstance(handler, WebhookHandler) and is_validation_error(exc):
        exc = AdmissionError.from_validation(exc)
    elif isinstance(handler, ActivityHandler) and (
        problem := find_setting_problem(exc) or _find_call_problem(exc)
    ):
        exc = PermanentError(problem)
    # Subclasses that do not call the __init__() of TemporaryError lack its attribute.
    wanted = getattr(exc, "delay", 60) if isinstance(exc, TemporaryError) else None
    if not _is_delay(wanted):
        kind = type(exc).__name__
        exc = TypeError(f"{kind}: delay= must be a number of seconds, got {wanted!r}: {exc}")
    reason = describe(exc)
    if isinstance(exc, ChildrenRetryError):
        return Outcome(final=False, delay=exc.delay, exception=exc)
    if isinstance(exc, (HandlerTimeoutError, HandlerRetriesError)):
        return Outcome(final=True, exception=exc, message=reason)
    if isinstance(exc, AdmissionError):
        return Outcome(final=True, exception=exc, message=f"{handler} denies the request: {reason}")
    if isinstance(exc, PermanentError):
        text = f"{handler} failed for good: {reason}"
        return Outcome(final=True, exception=exc, message=text)
    if isinstance(exc, TemporaryError):
        return _classify_retry(handler, exc, attempt, delay=wanted or 0, verb="is not done yet")
    is_unexpected = not isinstance(exc, WebopError)  # whose messages need no traceback
    mode = handler.errors or handler.default_errors
    if mode is ErrorsMode.IGNORED:
        text = f"{handler} failed: {reason.rstrip('.')}. {handler.after_ignored}"
        return Outcome(final=True, message=text, is_unexpected=is_unexpected)
    if mode is ErrorsMode.PERMANENT:
        text = f"{handler} failed for good: {reason}"
        return Outcome(final=True, exception=exc, message=text, is_unexpected=is_unexpected)
    delay = choose_backoff(handler.backoff, default_backoff, attempt.retries)
    return _classify_retry(handler, exc, attempt, delay=delay, verb="failed")


def describe(exc: BaseException) -> str:
    """Return the text of an error; with its class, unless webop's users raise it for its text."""
    if isinstance(exc, PermanentError | TemporaryError | WebopError):
        return str(exc) or repr(exc)
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__


def _is_delay(value: object) -> bool:
    """Return whether this is a number of seconds; NaN is none."""
    return value is None or (isinstance(value, int | float) and value == value)  # noqa: PLR0124


def _find_call_problem(exc: Exception) -> str | None:
    """Return a message if the error is a wrong argument of one of webop's public classes.

    Python names the class only in the text of the error.
    """
    found = _WRONG_CALL.match(str(exc)) if isinstance(exc, TypeError) else None
    package = sys.modules[__name__.partition(".")[0]]
    if found is None or found["name"] not in package.__all__:
        return None
    kind = getattr(package, found["name"])
    what = f": {found['rest'].rstrip('.')}."
    if found["argument"]:
        nearest = difflib.get_close_matches(found["argument"], inspect.signature(kind).parameters)
        hint = f", did you mean {nearest[0]!r}?" if nearest else "."
        what = f" has no argument {found['argument']!r}{hint}"
    *_, frame = traceback.extract_tb(exc.__traceback__)
    place = describe_line(frame.filename, frame.lineno, frame.line)
    return f"webop.{found['name']}(){what} {place}"


def _classify_retry(
    handler: Handler, exc: Exception, attempt: Attempt, *, delay: float, verb: str
) -> Outcome:
    """Return a retry, or a failure for good if a limit of the handler excludes a retry.

    Retries are numbered as in the argument ``retry`` of the handler.
    """
    reason, number = describe(exc), attempt.retries + 1
    is_unexpected = not isinstance(exc, (TemporaryError, WebopError))
    limit: PermanentError | None = None
    timeout = None if isinstance(handler, ReconcileHandler) else handler.timeout
    if timeout is not None and attempt.runtime + delay >= timeout:
        limit = HandlerTimeoutError(
            f"{handler} failed for good: a retry in {format_pause(delay)} s would exceed "
            f"timeout={timeout:g} s. The last error: {reason}"
        )
    elif handler.retries is not None and number >= handler.retries:
        attempts = "1 attempt" if number == 1 else f"{number} attempts"
        limit = HandlerRetriesError(
            f"{handler} failed for good after {attempts} (retries={handler.retries}): {reason}"
        )
    if limit is not None:
        return Outcome(final=True, exception=limit, message=str(limit), is_unexpected=is_unexpected)
    when = f"in {format_pause(delay)} s" if delay > 0 else "at once"
    return Outcome(
        final=False,
        delay=delay,
        exception=exc,
        message=f"{handler} {verb}: {reason.rstrip('.')}.",
        advance=f"Retry {number} {when}.",
        is_unexpected=is_unexpected,
    )
