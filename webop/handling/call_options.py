"""How handlers are called: the options that all handlers of a cause share. Pure."""

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
"""Stores the states of handlers: what they want changed, and what is kept; tells whether it is."""


@dataclass(slots=True)
class HandlingStatus:
    """How the handlers of one object are doing, for the status page.

    Attributes:
        running: the id of the one that is being called; empty if none is.
        failures: of those that will be called again: how many attempts have failed, and the type
            of the last error.
    """

    running: str = ""
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How the handlers of a cause are called.

    Attributes:
        settings: the operator's settings.
        lifecycle: which of the due handlers are called next.
        default_errors: the mode for arbitrary exceptions if the handler has none.
        window: seconds within which the handlers that finish share one patch of the object.
        commit: stores what is finished when the window closes while other handlers still run.
        flush: does the same for the handlers before those that these are parts of; what these have
            done is newer, and is stored after it.
        parents: the states of the handlers that these are parts of; they are stored before any of
            these is called.
        success_level: the logging level of successes.
        goes_on: tells whether another handler may be called after the first one; sub-handlers are
            called in any case: they are parts of one that runs.
        tally: where the calls are counted.
        standing: where the calls about an object are seen; None for those that nobody looks at.
    """

    settings: OperatorSettings
    lifecycle: LifeCycleFn = all_at_once
    default_errors: ErrorsMode = ErrorsMode.TEMPORARY
    window: float = 0.0
    commit: Commit | None = None
    flush: Callable[[], Awaitable[bool]] | None = None
    parents: Mapping[str, HandlerState] = field(default_factory=dict)
    success_level: int = logging.INFO
    goes_on: Callable[[], bool] = lambda: True
    tally: CallCounters = field(default_factory=CallCounters)
    standing: HandlingStatus | None = None
