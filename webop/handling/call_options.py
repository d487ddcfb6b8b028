"""The options that all handlers of a cause share when they are called. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from webop.counters import CallCounters
from webop.handling.handlers import ErrorsMode
from webop.lifecycles import LifeCycleFn, all_at_once
from webop.objects.patch import Patch
from webop.settings import OperatorSettings

if TYPE_CHECKING:
    from webop.handling.handler_states import HandlerState

Commit = Callable[[Mapping[str, "HandlerState"], Patch, Patch], Awaitable[bool]]
"""Stores the states of handlers, their patch and webop's own patch; returns whether it did."""


@dataclass(slots=True)
class HandlingStatus:
    """The status of the handlers of one object, for the status page.

    Attributes:
        running: the id of the running handler; empty if none runs.
        failures: for handlers that will be retried, by id: the number of failed attempts, and the
            type of the last error.
    """

    running: str = ""
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How the handlers of a cause are called.

    Attributes:
        settings: the operator's settings.
        lifecycle: chooses which of the due handlers are called next.
        default_errors: the mode for other exceptions if the handler has none.
        window: seconds; handlers that finish within this time share one patch of the object.
        commit: stores the finished handlers when the window closes while other handlers still run.
        flush: for sub-handlers: stores the handlers that finished before their parent was called.
            The sub-handlers are newer and must be stored after them.
        parents: for sub-handlers: the states of their parents. These are stored before the first
            sub-handler is called.
        success_level: the logging level of successes.
        may_continue: returns whether another handler may be called after the first one.
            Sub-handlers are called in any case, as their parent is running.
        counters: counts the calls.
        status: shows the calls on the status page; None for calls that it does not show.
    """

    settings: OperatorSettings
    lifecycle: LifeCycleFn = all_at_once
    default_errors: ErrorsMode = ErrorsMode.TEMPORARY
    window: float = 0.0
    commit: Commit | None = None
    flush: Callable[[], Awaitable[bool]] | None = None
    parents: Mapping[str, HandlerState] = field(default_factory=dict)
    success_level: int = logging.INFO
    may_continue: Callable[[], bool] = lambda: True
    counters: CallCounters = field(default_factory=CallCounters)
    status: HandlingStatus | None = None
