"""The options that all handlers of a cause share when they are called. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from webop.lifecycles import LifeCycleFn, all_at_once
from webop.settings.groups import OperatorSettings
from webop.telemetry.counters import CallCounters

if TYPE_CHECKING:
    from webop.calls.progress import HandlerState
    from webop.objects.body import Body
    from webop.objects.patch import Patch
    from webop.telemetry.tracing import SpanContext


class Journal(Protocol):
    """Takes over what handlers of changes leave when they end."""

    @property
    def body(self) -> Body:
        """The newest state of the object with all records of handlers."""

    @property
    def essence(self) -> Any:
        """The state that the handlers see, as own writes have left it."""

    def note(self, states: Mapping[str, HandlerState], patch: Patch) -> None:
        """Take over states of handlers, and the patch of those that have ended.

        The patch is empty then. If sub-handlers are about to be called, it is the states of their
        parents.
        """


LATE: Final = 0.1
"""Seconds; if a function runs longer, what the handlers before it have left is written."""


@dataclass(slots=True)
class HandlingStatus:
    """The status of the handlers of one object, for the status page.

    Attributes:
        running: the ids of the running handlers.
        failures: for handlers that will be retried, by id: the number of failed attempts, and the
            type of the last error; by "" for webop itself.
        trace: the span of the first calls for a change that is being handled, if there is one.
    """

    running: list[str] = field(default_factory=list)
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)
    trace: SpanContext | None = None


@dataclass(slots=True)
class CallOptions:
    """How the handlers of a cause are called.

    Code replaces it and never changes it; a frozen dataclass takes three times as long to create.

    Attributes:
        settings: the operator's settings.
        lifecycle: chooses which of the due handlers are called next.
        journal: takes over what handlers of changes leave.
        on_late: is called when a function has run, or waited for a thread, for 0.1 s, with whether
            it is async.
        parents: for sub-handlers: the states of their parents.
        may_continue: returns whether another handler may be called after the first one.
            Sub-handlers are called in any case, as their parent is running.
        counters: counts the calls.
        status: shows the calls on the status page; None for calls that it does not show.
    """

    settings: OperatorSettings
    lifecycle: LifeCycleFn = all_at_once
    journal: Journal | None = None
    on_late: Callable[[bool], None] | None = None
    parents: Mapping[str, HandlerState] = field(default_factory=dict)
    may_continue: Callable[[], bool] = lambda: True
    counters: CallCounters = field(default_factory=CallCounters)
    status: HandlingStatus | None = None
