"""What becomes of handlers that fail: the table of the chapter "Error handling"."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.rows import rows
from webop import ErrorsMode
from webop.calls.error_policy import (
    Attempt,
    ChildrenRetryError,
    Outcome,
    check_limits,
    classify_failure,
)
from webop.handlers.model import Handler

BACKOFF = 60.0


class OwnPermanentError(webop.PermanentError):
    pass


class OwnTemporaryError(webop.TemporaryError):
    pass


class ForgetfulError(webop.TemporaryError):
    def __init__(self, number: int) -> None:  # it does not call that of the base class
        self.number = number


FIRST = Attempt(0, 0.0)


def judge(exc: Exception, attempt: Attempt = FIRST, **options: Any) -> Outcome:
    return classify_failure(
        Handler(id="fn", fn=print, **options),
        exc,
        attempt,
        default_backoff=BACKOFF,
    )


@pytest.mark.feature("ERR-03", "ERR-05", "ERR-06", "ERR-12", "ERR-13", "REF-46", "D-46")
@rows(
    ("exc", "options", "delay"),
    [
        (webop.TemporaryError("boo"), {}, 60),
        (ForgetfulError(5), {}, 60),
        (webop.TemporaryError("boo", delay=5), {}, 5),
        (webop.TemporaryError("boo", delay=None), {}, 0),
        (OwnTemporaryError("boo", delay=7), {}, 7),
        (webop.TemporaryError("boo", delay=5), {"errors": ErrorsMode.IGNORED}, 5),
        (ValueError("boo"), {}, 60),
        (ValueError("boo"), {"backoff": 3}, 3),
    ],
)
def test_a_failure_is_tried_again_after_a_delay(exc: Exception, options: Any, delay: float) -> None:
    outcome = judge(exc, **options)
    assert not outcome.final
    assert outcome.delay == delay
    assert outcome.exception is exc


@rows("delay", ["5", float("nan"), object()])
def test_a_delay_that_is_no_number_is_a_mistake_that_the_log_shows(delay: Any) -> None:
    outcome = judge(webop.TemporaryError("boo", delay=delay))
    assert (outcome.final, outcome.delay) == (False, BACKOFF)
    assert f"delay= must be a number of seconds, got {delay!r}: boo" in outcome.message


@pytest.mark.feature("ERR-04", "ERR-05", "ERR-07", "ERR-15", "ADM-03")
@rows(
    ("exc", "options"),
    [
        (OwnPermanentError("boo"), {}),
        (webop.HandlerTimeoutError("boo"), {}),
        (webop.HandlerRetriesError("boo"), {}),
        (webop.PermanentError("boo"), {"errors": ErrorsMode.IGNORED}),
        (ValueError("boo"), {"errors": ErrorsMode.PERMANENT, "retries": 5, "backoff": 1}),
    ],
)
def test_a_failure_is_final(exc: Exception, options: Any) -> None:
    outcome = judge(exc, **options)
    assert outcome.final
    assert outcome.exception is exc
    assert "boo" in outcome.message


@pytest.mark.feature("ERR-08")
def test_an_ignored_failure_counts_as_done_and_is_told() -> None:
    outcome = judge(ValueError("boo"), errors=ErrorsMode.IGNORED)
    assert outcome.final
    assert outcome.exception is None
    assert outcome.message == "Handler 'fn' failed: ValueError: boo. Ignored: there is no retry."


@pytest.mark.feature("ERR-11", "ERR-23", "D-09")
@rows("exc", [ValueError("boo"), webop.TemporaryError("boo", delay=1)])
@rows(
    ("limit", "before", "final"),
    [(3, 0, False), (3, 1, False), (3, 2, True), (1, 0, True), (None, 1000, False)],
)
def test_so_many_attempts_are_granted_in_total(
    exc: Exception, limit: int | None, before: int, final: bool
) -> None:
    outcome = judge(exc, Attempt(before, 0.0), retries=limit)
    assert outcome.final is final
    assert isinstance(outcome.exception, webop.HandlerRetriesError) is final
    assert "boo" in outcome.message
    assert ("failed for good after" in outcome.message) is final
    assert outcome.advance.startswith("" if final else f"Retry {before + 1} in ")


@pytest.mark.feature("ERR-09", "ERR-23")
@rows(
    ("exc", "runtime", "final"),
    [
        (webop.TemporaryError("boo", delay=4), 5.0, False),
        (webop.TemporaryError("boo", delay=5), 5.0, True),
        (webop.TemporaryError("boo", delay=0), 10.0, True),
        (ValueError("boo"), 0.0, True),  # the default backoff is longer than what is left
    ],
)
def test_a_retry_that_would_come_too_late_is_not_granted(
    exc: Exception, runtime: float, final: bool
) -> None:
    outcome = judge(exc, Attempt(0, runtime), timeout=10)
    assert outcome.final is final
    assert isinstance(outcome.exception, webop.HandlerTimeoutError) is final


@rows(
    ("exc", "attempt", "options", "expected"),
    [
        (KeyError("title"), FIRST, {}, "failed: KeyError: 'title'. Retry 1 in 60 s."),
        (KeyError("x"), Attempt(1, 0.0), {"backoff": 0}, "failed: KeyError: 'x'. Retry 2 at once."),
        (
            webop.TemporaryError("It is not there yet.", delay=3),
            FIRST,
            {},
            "is not done yet: It is not there yet. Retry 1 in 3 s.",
        ),
        (webop.PermanentError("no"), FIRST, {}, "failed for good: no"),
        (
            KeyError("x"),
            Attempt(4, 9.0),
            {"retries": 5},
            "failed for good after 5 attempts (retries=5): KeyError: 'x'",
        ),
        (
            KeyError("x"),
            FIRST,
            {"timeout": 30},
            "failed for good: a retry in 60 s would exceed timeout=30 s. The last error: KeyError",
        ),
    ],
)
def test_a_failure_says_what_it_is_and_when_the_next_attempt_comes(
    exc: Exception, attempt: Attempt, options: Any, expected: str
) -> None:
    outcome = judge(exc, attempt, **options)
    assert f"{outcome.message} {outcome.advance}".startswith(f"Handler 'fn' {expected}")


@pytest.mark.feature("SUB-07", "SUB-10", "ERR-11")
def test_waiting_for_sub_handlers_is_quiet_and_has_no_limits() -> None:
    exc = ChildrenRetryError("children", delay=4)
    outcome = judge(exc, Attempt(100, 100.0), retries=2, timeout=1)
    assert (outcome.final, outcome.delay, outcome.message) == (False, 4, "")


@pytest.mark.feature("ERR-09", "ERR-11")
@rows(
    ("options", "attempt", "expected"),
    [
        ({}, Attempt(1000, 1e6), None),
        ({"timeout": 10}, Attempt(0, 10.0), webop.HandlerTimeoutError),
        ({"retries": 3}, Attempt(2, 0.0), None),
        ({"retries": 3}, Attempt(3, 0.0), webop.HandlerRetriesError),
    ],
)
def test_limits_are_checked_before_an_attempt(
    options: Any, attempt: Attempt, expected: type[Exception] | None
) -> None:
    handler = Handler(id="fn", fn=print, **options)
    if expected is None:
        check_limits(handler, attempt)
    else:
        with pytest.raises(expected, match="'fn'"):
            check_limits(handler, attempt)
