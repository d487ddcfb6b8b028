"""The current call of a handler, and the pool of threads for it.

Functions that users call inside of a handler (``webop.execute``, ``webop.adopt``) find the handler
and its object in the current :class:`Invocation`, also in the threads of sync handlers.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from webop.calls.progress import HandlerState
from webop.calls.shared_options import CallOptions
from webop.calls.threads import NO_POOL, Pool
from webop.handlers.causes import Cause
from webop.handlers.model import (
    Activity,
    ActivityHandler,
    DaemonHandler,
    Handler,
    WebhookHandler,
)
from webop.logs.review_context import call_of_the_moment
from webop.settings.groups import OperatorSettings

VITAL = (Activity.AUTHENTICATION, Activity.PROBE)


@dataclass(slots=True)
class Invocation:
    """One running call of one handler; of a sub-handler, within that of its parent."""

    handler: Handler
    cause: Cause
    options: CallOptions
    state: HandlerState
    parent: Invocation | None = None
    subhandlers: list[Any] = field(default_factory=list)
    subrefs: set[str] = field(default_factory=set)


current_invocation: ContextVar[Invocation] = call_of_the_moment  # log lines name it, too


def get_invocation(purpose: str) -> Invocation:
    """Return the current invocation.

    Raises:
        LookupError: the caller is not inside of a handler; the message names the ``purpose``.
    """
    try:
        return current_invocation.get()
    except LookupError:
        raise LookupError(
            f"{purpose} works only inside a handler, and none is running here."
        ) from None


def choose_pool(handler: Handler, settings: OperatorSettings) -> Pool:
    """Return the thread pool for a sync handler."""
    if isinstance(handler, WebhookHandler):
        return settings.admission
    if isinstance(handler, ActivityHandler) and handler.activity in VITAL:
        return NO_POOL
    return settings.background if isinstance(handler, DaemonHandler) else settings.execution
