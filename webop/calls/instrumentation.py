"""Record the calls of handlers for metrics, the status page and traces.

The records contain no values of objects; of errors, only the types.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from webop.calls.current_call import Invocation
from webop.calls.error_policy import ChildrenRetryError, Outcome
from webop.calls.shared_options import CallOptions
from webop.errors import (
    AdmissionError,
    HandlerRetriesError,
    HandlerTimeoutError,
    PermanentError,
    TemporaryError,
)
from webop.handlers.causes import ResourceCause
from webop.handlers.model import (
    ChangeHandler,
    DaemonHandler,
    Handler,
    ReconcileHandler,
    TimerHandler,
    WebhookHandler,
)
from webop.telemetry.counters import FailedCall
from webop.telemetry.tracing import Description

if TYPE_CHECKING:
    from webop.telemetry.spans import Span

DONE = Outcome(final=True)  # the outcome of most calls
CANCELLED = Outcome(final=True)
_STATEFUL = (ChangeHandler, DaemonHandler, ReconcileHandler, TimerHandler)  # no raw events


def describe_call(invocation: Invocation) -> Description:
    """Return the description of the span of a call."""
    handler, cause = invocation.handler, invocation.cause
    name = _name(handler, invocation.options)
    attributes: dict[str, str | int | None] = {
        "webop.handler.id": name,
        "webop.handler.type": handler.family,
        "webop.retry": invocation.state.retries,
    }
    if isinstance(cause, ResourceCause):
        attributes |= cause.identify()
    return Description(f"handler {name}", attributes)


def record_end(
    invocation: Invocation,
    outcome: Outcome,
    seconds: float,
    failure: Exception | None,
    span: Span | None,
) -> None:
    """Record the end of a call."""
    handler, options = invocation.handler, invocation.options
    counters, status = options.counters, options.status
    labels = _name(handler, options), handler.family
    how = "" if outcome is DONE else _name_failure(handler, outcome)
    error = "" if failure is None or how in ("", "denied") else _name_error(failure)
    counters.add(seconds, labels, how, error)
    if how == "failure" or (counters.failed and outcome is not CANCELLED):
        _record_failed(invocation, failure if how == "failure" else None)
    if status is not None:
        status.running.remove(handler.id)
        status.failures.pop(handler.id, None)
        if failure is not None and not outcome.final:
            attempts = invocation.state.retries + 1
            status.failures[handler.id] = attempts, _name_error(failure)
    if span is not None:
        is_wrong = how != "denied" and not isinstance(failure, ChildrenRetryError)
        span.conclude(how or "success", failure if is_wrong else None)
        span.close()


def _record_failed(invocation: Invocation, failure: Exception | None) -> None:
    """Record whether a handler with a state has failed for good for an object."""
    handler, cause = invocation.handler, invocation.cause
    if not isinstance(cause, ResourceCause) or not isinstance(handler, _STATEFUL):
        return
    counters, metadata = invocation.options.counters, cause.body.meta
    uid = str(metadata.uid)
    if failure is None:
        counters.failed.pop((uid, handler.id), None)
        return
    where = cause.resource.plural_name, metadata.namespace, str(metadata.name)
    what = _name(handler, invocation.options), _name_error(failure), time.monotonic()
    counters.add_failed(uid, handler.id, FailedCall(*where, *what))


def _name_error(failure: Exception) -> str:
    """Return the types of an error and of its cause; messages can quote values of objects."""
    names = [type(each).__name__ for each in (failure, failure.__cause__) if each is not None]
    return " from ".join(names)


def _name(handler: Handler, options: CallOptions) -> str:
    """Return the id; ids of sub-handlers can contain values of objects, so "/*" replaces them."""
    return f"{next(iter(options.parents))}/*" if options.parents else handler.id


def _name_failure(handler: Handler, outcome: Outcome) -> str:
    """Return why a call did not succeed; an empty string if it did."""
    if outcome is CANCELLED:
        return "cancelled"
    if outcome.exception is None:
        return "ignored" if outcome.message else ""
    if isinstance(handler, WebhookHandler):
        return "denied" if is_denial(outcome.exception) else "failure"
    return "failure" if outcome.final else "retry"


def is_denial(failure: BaseException | None) -> bool:
    """Return whether this error of a webhook is a denial, not a failure."""
    is_overdue = isinstance(failure, HandlerTimeoutError | HandlerRetriesError)
    is_meant = isinstance(failure, AdmissionError | PermanentError | TemporaryError)
    return is_meant and not is_overdue
