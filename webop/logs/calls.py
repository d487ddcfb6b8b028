"""Find the handler that a log message belongs to.

The current call follows handlers into their threads and tasks, as the current review does
(:mod:`webop.logs.reviews`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class Named(Protocol):
    """A handler, as far as logs need it."""

    @property
    def id(self) -> str:
        """The id of the handler."""


class Called(Protocol):
    """A call of a handler, as far as logs need it."""

    @property
    def handler(self) -> Named:
        """The handler."""


call_of_the_moment: ContextVar[Called] = ContextVar("call_of_the_moment")


def find_handler() -> str | None:
    """Return the id of the handler that is called in this thread or task; None if there is none."""
    call = call_of_the_moment.get(None)
    return None if call is None else call.handler.id
