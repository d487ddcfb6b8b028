"""Calling a user's function: in the loop or in a thread, with what helpers need to know around it.

The :class:`Invocation` of the moment is how helpers called from within a handler
(``webop.execute``, ``webop.adopt``) find the handler and its object without being given them; it
follows sync handlers into their threads.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from webop.errors import HandlerTimeoutError
from webop.handling.causes import Cause, DiffCause, ResourceCause
from webop.handling.handlers import (
    Activity,
    ActivityHandler,
    DaemonHandler,
    Handler,
    ResourceHandler,
    WebhookHandler,
)
from webop.handling.policy import Attempt
from webop.handling.progress import HandlerState
from webop.handling.terms import Terms
from webop.handling.threads import NO_POOL, Pool, call_in_thread
from webop.objects.owners import owner_of_the_moment
from webop.settings import OperatorSettings

_VITAL = (Activity.AUTHENTICATION, Activity.PROBE)


@dataclass(slots=True)
class Invocation:
    """One call of one handler, as seen from the inside."""

    handler: Handler
    cause: Cause
    terms: Terms
    state: HandlerState
    subhandlers: list[Any] = field(default_factory=list)
    subrefs: set[str] = field(default_factory=set)
    is_delegated: bool = False


current_invocation: ContextVar[Invocation] = ContextVar("current_invocation")


def get_invocation(purpose: str) -> Invocation:
    """Return the invocation of the moment.

    Raises:
        LookupError: the caller is not inside of a handler; ``purpose`` says what is impossible.
    """
    try:
        return current_invocation.get()
    except LookupError:
        raise LookupError(f"{purpose} is possible only inside of a handler.") from None


@functools.lru_cache(maxsize=4096)
def is_async(fn: Callable[..., Any]) -> bool:
    """Tell whether a callable is to be awaited, seen through partials and wrappers (ASY-04)."""
    while True:
        if inspect.iscoroutinefunction(fn):
            return True
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            return inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


async def invoke(invocation: Invocation, attempt: Attempt) -> Any:
    """Call the handler of an invocation with all of its keyword arguments.

    Raises:
        HandlerTimeoutError: an async handler was still running when its time was up (D-08).
        Exception: whatever the handler raises.
    """
    handler, cause = invocation.handler, invocation.cause
    kwargs = dict(cause.kwargs)
    kwargs["param"] = handler.param
    kwargs["retry"] = attempt.retries
    kwargs["started"] = invocation.state.started
    kwargs["runtime"] = timedelta(seconds=attempt.runtime)
    if isinstance(handler, ResourceHandler) and isinstance(cause, DiffCause):
        path = handler.field or getattr(handler, "inherited_field", ())
        if path:
            kwargs.update(cause.build_field_kwargs(path))

    token = current_invocation.set(invocation)
    owner = owner_of_the_moment.set(cause.body) if isinstance(cause, ResourceCause) else None
    try:
        if not is_async(handler.fn):
            pool = _choose_pool(handler, invocation.terms.settings)
            return await call_in_thread(handler.fn, kwargs, pool)
        if handler.timeout is None:
            coroutine = handler.fn(**kwargs)
            del kwargs  # a daemon is awaited for long
            return await coroutine
        return await _call_in_time(handler, kwargs, handler.timeout - attempt.runtime)
    finally:
        current_invocation.reset(token)
        if owner is not None:
            owner_of_the_moment.reset(owner)


def _choose_pool(handler: Handler, settings: OperatorSettings) -> Pool:
    if isinstance(handler, WebhookHandler):
        return settings.admission
    if isinstance(handler, ActivityHandler) and handler.activity in _VITAL:
        return NO_POOL
    return settings.background if isinstance(handler, DaemonHandler) else settings.execution


async def _call_in_time(handler: Handler, kwargs: Mapping[str, Any], seconds: float) -> Any:
    """Await an async handler no longer than its time allows."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await handler.fn(**kwargs)
    except TimeoutError:
        if not deadline.expired():
            raise
        raise HandlerTimeoutError(
            f"{handler} has timed out after {handler.timeout} seconds."
        ) from None
