"""Call the handlers of a cause: in which order, with which outcomes.

Flow: :func:`execute` → :func:`attempt` → the user's function. The lifecycle
(:mod:`webop.lifecycles`) decides the order, :mod:`webop.calls.error_policy` the outcomes. Whatever
a handler raises becomes an outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any

from webop.aio.backoff import Once, format_pause
from webop.aio.cancellation import contain, convert_exception, unwrap
from webop.aio.work_deadline import check_fence, current_fence
from webop.calls.current_call import VITAL, Invocation, choose_pool, current_invocation
from webop.calls.error_policy import (
    Attempt,
    ChildrenRetryError,
    LateCallError,
    Outcome,
    check_limits,
    classify_failure,
)
from webop.calls.instrumentation import CANCELLED, DONE, describe_call, is_denial, record_end
from webop.calls.progress import (
    HandlerState,
    Progress,
    digest_essence,
    fetch_states,
    now,
)
from webop.calls.shared_options import LATE, CallOptions
from webop.calls.threads import call_in_thread
from webop.client.current_client import current_client
from webop.errors import AdmissionError, HandlerTimeoutError, TemporaryError
from webop.handlers.causes import (
    BackgroundCause,
    Cause,
    ChangeCause,
    DiffCause,
    EventCause,
    ReconcileCause,
    ResourceCause,
    WebhookCause,
)
from webop.handlers.filters import matches
from webop.handlers.model import (
    ChangeHandler,
    Handler,
    IndexHandler,
    MappingHandler,
    Reason,
    ReconcileHandler,
    ResourceHandler,
    TimerHandler,
    WebhookHandler,
)
from webop.handlers.registry import deduplicated
from webop.handlers.retries import Again
from webop.lifecycles import LifeCycleFn
from webop.models.definitions import is_instance
from webop.models.fitting import dump_status
from webop.objects.adoption import owner_of_the_moment
from webop.objects.fields import convert_to_json, is_mapping
from webop.objects.patch import Patch
from webop.telemetry.tracing import open_span

_FRAMEWORK = ("webop.", "asyncio.", "concurrent.")
_UNCHOSEN_PAUSE = 1.0  # seconds
_SUCCEEDED = {"k8s_reason": "HandlerSucceeded"}
_logged = Once()

_FREQUENT = (IndexHandler, MappingHandler, ReconcileHandler, TimerHandler, WebhookHandler)

# The calls whose results go into the status of their object.
_WITH_RESULTS = (EventCause, ChangeCause, BackgroundCause, ReconcileCause)


async def execute(
    handlers: Sequence[Handler],
    cause: Cause,
    progress: Progress,
    options: CallOptions,
) -> dict[str, Outcome]:
    """Call the handlers that are due, each at most once, and record the outcomes in the progress.

    Guarantees: no exception of a handler leaves this function, except cancellation. The function
    does not call a handler again before the caller can store the outcome.

    Returns:
        The outcomes of the called handlers, by id. Handlers that were not called because the
        operator stops are still due.
    """
    outcomes: dict[str, Outcome] = {}
    while waiting := [h for h in progress.due(handlers) if h.id not in outcomes]:
        offered = {**cause.kwargs, "state": progress}  # an index can have this name
        offered.pop("handlers", None)  # or that of the first parameter
        try:
            chosen = options.lifecycle(waiting, **offered)
        except BaseException as exc:  # noqa: BLE001  it can be the user's
            raise convert_exception(exc)  # noqa: B904  it has the cause
        if not chosen:
            text = "The lifecycle has chosen none of %d due handlers. Asking again in %s s."
            level = _logged.choose_level(str(options.lifecycle))
            cause.logger.log(level, text, len(waiting), format_pause(_UNCHOSEN_PAUSE))
            progress.min_delay = _UNCHOSEN_PAUSE
            break
        for handler in chosen:
            if outcomes and not options.parents and not options.may_continue():
                return outcomes
            outcome = await attempt(handler, cause, progress[handler.id], options)
            progress.record(handler, outcome)
            outcomes[handler.id] = outcome
            if options.journal is not None and isinstance(cause, ChangeCause):
                states = {**options.parents, handler.id: progress[handler.id]}
                options.journal.note(states, cause.patch)
    return outcomes


async def attempt(
    handler: Handler, cause: Cause, state: HandlerState | None, options: CallOptions
) -> Outcome:
    """Call one handler once, in the loop or in a thread; log the call and return the outcome.

    Without a state, it is the only attempt, which begins now.
    """
    moment = now()
    state = HandlerState(started=moment) if state is None else state
    runtime = moment - state.started
    attempts = Attempt(state.retries, runtime.total_seconds())
    parent = current_invocation.get(None) if options.parents else None
    invocation = Invocation(handler, cause, options, state, parent)
    token = current_invocation.set(invocation)
    owner = owner_of_the_moment.set(cause.body) if isinstance(cause, ResourceCause) else None
    began, outcome = time.monotonic(), CANCELLED
    failure: Exception | None = None
    alarm: asyncio.TimerHandle | None = None
    if options.on_late is not None:
        loop, is_async = asyncio.get_running_loop(), bool(handler.is_async)
        alarm = loop.call_later(LATE, options.on_late, is_async)
    if options.status is not None:
        options.status.running.append(handler.id)
    span = open_span(describe_call, invocation)
    try:
        cause.logger.log(logging.DEBUG, "%s is invoked.", handler)
        check_limits(handler, attempts)
        if current_fence.get() is not None:
            await check_fence()
        result = await _call(invocation, runtime)
        if invocation.subhandlers:
            await execute_children(invocation, invocation.subhandlers)
        if isinstance(cause, _WITH_RESULTS) and not isinstance(handler, MappingHandler):
            _deliver(handler.id, result, cause)
    except GeneratorExit:
        raise
    except BaseException as exc:  # noqa: BLE001
        failure = convert_exception(exc)
        outcome = classify_failure(
            handler,
            failure,
            attempts,
            default_backoff=options.settings.execution.default_backoff,
        )
        _log_failure(cause, outcome, failure)
    else:
        outcome = DONE if result is None else Outcome(final=True, result=result)
        # So often that a success is worth no line at the usual level.
        is_frequent = isinstance(handler, _FREQUENT) or getattr(handler, "activity", "") in VITAL
        level = logging.DEBUG if is_frequent else logging.INFO
        cause.logger.log(level, "%s succeeded.", handler, extra=_SUCCEEDED)
    finally:
        if alarm is not None:
            alarm.cancel()
        record_end(invocation, outcome, time.monotonic() - began, failure, span)
        current_invocation.reset(token)
        if owner is not None:
            owner_of_the_moment.reset(owner)
    if invocation.subrefs:
        outcome = replace(outcome, subrefs=frozenset(invocation.subrefs))
    return outcome


async def _call(invocation: Invocation, runtime: timedelta) -> Any:
    """Call the user's function in a thread or in a separate task; return its result.

    A handler may cancel that task; if this one is cancelled, that one is, too.
    """
    handler, cause = invocation.handler, invocation.cause
    kwargs = _build_kwargs(handler, cause, invocation.state, runtime)
    if not handler.is_async:
        pool = choose_pool(handler, invocation.options.settings)
        waits_for_end = isinstance(cause, ResourceCause) and not isinstance(cause, WebhookCause)
        return await call_in_thread(handler.fn, kwargs, pool, waits_for_end=waits_for_end)
    task = asyncio.get_running_loop().create_task(contain(handler.fn, kwargs))
    task.invocation = invocation  # type: ignore[attr-defined]  # for the watchdog
    del kwargs  # daemons run for long
    if handler.timeout is None:
        return unwrap(await task)
    seconds = handler.timeout - runtime.total_seconds()
    return unwrap(await _await_in_time(handler, task, seconds))


def _build_kwargs(
    handler: Handler, cause: Cause, state: HandlerState, runtime: timedelta
) -> dict[str, Any]:
    """Return the keyword arguments of one call; its client becomes the current one."""
    kwargs = dict(cause.kwargs)
    kwargs["param"] = handler.param
    kwargs["retry"] = state.retries
    kwargs["started"] = state.started
    kwargs["runtime"] = runtime
    if (client := current_client.get()) is not None:
        is_dry = isinstance(cause, WebhookCause) and cause.dryrun
        client = client.share(handler.queue, is_dry=is_dry)
        current_client.set(client)
        kwargs["client"] = client if handler.is_async else client.sync
    if isinstance(cause, ResourceCause):
        if cause.children and not handler.is_async:
            kwargs["children"] = cause.children.sync
        if not isinstance(cause, WebhookCause) and (misfit := cause.unconverted):
            raise misfit
    if isinstance(cause, DiffCause) and isinstance(handler, ResourceHandler):
        inherited = handler.inherited_field if isinstance(handler, ChangeHandler) else ()
        if path := handler.field or inherited:
            kwargs.update(cause.build_field_kwargs(path))
    if cause.indices:  # few operators have any; they hide arguments of the same name
        kwargs.update(cause.indices)
    if handler.arguments:
        cause.fit(handler.arguments, kwargs)
    return kwargs


async def _await_in_time(handler: Handler, call: Awaitable[Any], seconds: float) -> Any:
    """Await the call of an async handler, at most until its timeout."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await call
    except TimeoutError:
        if not deadline.expired():
            raise
        limit = f"did not end within timeout={handler.timeout:g} s."
        if isinstance(handler, ReconcileHandler):  # which is for one call: the next one follows
            raise LateCallError(f"It {limit}") from None
        raise HandlerTimeoutError(f"{handler} failed for good: it {limit}") from None


async def execute_children(
    invocation: Invocation,
    children: Sequence[ChangeHandler],
    *,
    lifecycle: LifeCycleFn | None = None,
    cause: Cause | None = None,
) -> None:
    """Call the sub-handlers of a handler; each has its own progress record.

    Raises:
        ChildrenRetryError: some of them must be called again; the parent must not catch this.
        TypeError: the cause is not a change.
    """
    cause = invocation.cause if cause is None else cause
    if not isinstance(cause, ChangeCause):
        raise TypeError("Only handlers of changes can have sub-handlers.")
    chosen, progress = _choose_children(children, cause, invocation.options)
    parents: dict[str, HandlerState] = {}
    ancestor: Invocation | None = invocation
    while ancestor is not None:
        ancestor.subrefs.update(progress)  # also if this call is cancelled
        state = ancestor.state
        parents[ancestor.handler.id] = replace(state, subrefs=state.subrefs | ancestor.subrefs)
        ancestor = ancestor.parent
    options = replace(invocation.options, parents=parents, status=None)
    if lifecycle is not None:
        options = replace(options, lifecycle=lifecycle)
    if options.journal is not None and progress.due(chosen):
        options.journal.note(parents, Patch())  # a crash must not restart their timeouts
    outcomes = await execute(chosen, cause, progress, options)
    invocation.subrefs.update(progress, *(outcome.subrefs for outcome in outcomes.values()))
    if not progress.is_finished:
        errors = (outcome.exception for outcome in outcomes.values() if not outcome.final)
        message = "Some sub-handlers have not finished."
        raise ChildrenRetryError(message, delay=progress.delay) from next(errors, None)


def _choose_children(
    children: Sequence[ChangeHandler], cause: ChangeCause, options: CallOptions
) -> tuple[list[ChangeHandler], Progress]:
    """Return the sub-handlers to call for a cause, and their states.

    As for other handlers of updates, the records prove a change that was undone meanwhile.
    """
    storage, journal = options.settings.persistence.progress_storage, options.journal
    known = [*deduplicated(children)]
    # An earlier call in the same attempt can have called some of them.
    body = cause.body if journal is None else journal.body
    states = fetch_states(known, body=body, storage=storage)
    progress = Progress.restore(known, states, purpose=cause.reason.value)
    missed: set[str] = set()
    if cause.reason is Reason.UPDATE:
        digest = digest_essence(cause.new if journal is None else journal.essence)
        for key, state in [*progress.items()]:
            if state.seen is not None and (not state.is_finished or state.seen != digest):
                missed.add(key)
                if state.is_finished:
                    progress.restart(key)
    chosen = [child for child in known if matches(child, cause, has_missed=child.id in missed)]
    return chosen, Progress({child.id: progress[child.id] for child in chosen})


def _deliver(key: str, result: Any, cause: ResourceCause) -> None:
    """Put the result of a handler into the status (chapter "Results delivery").

    Those of timers are left out if the object had them before the call, and still has them.
    """
    if isinstance(result, Again) and isinstance(cause, ReconcileCause):
        result = result.status
    if result is None:
        return
    status = dump_status(result) if is_instance(result) else {key: result}
    if isinstance(cause, BackgroundCause):
        with contextlib.suppress(ValueError):  # the writer logs what JSON cannot represent
            patch = Patch(convert_to_json({"status": status}))
            if not any(map(patch.as_json_patch, (cause.body, {"status": cause.status_before}))):
                return
    if is_mapping(result):
        current = cause.patch.status.get(key)
        status = {key: {**(current if is_mapping(current) else {}), **result}}
    cause.patch.status.update(status)


def _log_failure(cause: Cause, outcome: Outcome, exc: Exception) -> None:
    if not outcome.message:
        cause.logger.debug("%s", exc)
        return
    text = f"{outcome.message} {outcome.advance}".rstrip()
    reason = "HandlerFailed" if outcome.final else "HandlerRetry"
    extra = {"k8s_event": outcome.message, "k8s_reason": reason}  # one Event counts the retries
    if outcome.is_unexpected:
        trace = skip_framework(exc)
        cause.logger.error(text, exc_info=(type(exc), exc, trace), extra=extra)
    else:
        cause.logger.log(_choose_level(cause, outcome.exception), text, extra=extra)


def skip_framework(exc: BaseException) -> TracebackType | None:
    """Return the traceback without the frames of the framework before the user's code."""
    trace = exc.__traceback__
    while trace and f"{trace.tb_frame.f_globals.get('__name__')}.".startswith(_FRAMEWORK):
        trace = trace.tb_next
    return trace or exc.__traceback__


def _choose_level(cause: Cause, failure: BaseException | None) -> int:
    """Return the level for a failure; denials of reviews are logged with the response.

    Authors expect a ``TemporaryError``, except the last one.
    """
    if isinstance(cause, WebhookCause):
        return logging.DEBUG if is_denial(failure) else logging.ERROR
    if isinstance(failure, TemporaryError):
        return logging.WARNING
    return logging.INFO if isinstance(failure, AdmissionError) else logging.ERROR
