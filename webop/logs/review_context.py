"""Find the admission review and the handler that a log message belongs to.

The current review and call follow handlers into their threads and tasks, so that the messages of
all loggers have them, also those of libraries that handlers call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

_SHOWN = 8  # characters of the uid: enough to find the review, and its line in the audit log


class Reviewed(Protocol):
    """A review, as far as logs need it."""

    def build_reference(self) -> Mapping[str, Any]:
        """Return the uid of the request and what it is about; nothing of the object itself."""


review_of_the_moment: ContextVar[Reviewed | None] = ContextVar("review_of_the_moment", default=None)
#: The call of a handler, an ``Invocation``; its ``handler`` has an ``id``.
call_of_the_moment: ContextVar[Any] = ContextVar("call_of_the_moment")


def find_request(record: logging.LogRecord) -> Mapping[str, Any] | None:
    """Return the request that a message belongs to: that of the record, or the current one.

    The current one is right if a record is formatted in the thread or task that made it.
    """
    request: Mapping[str, Any] | None = getattr(record, "k8s_request", None)
    if request is not None:
        return request
    review = review_of_the_moment.get()
    return None if review is None else review.build_reference()


def build_prefix(request: Mapping[str, Any]) -> str:
    """Return the prefix of the log lines of a review."""
    return f"[{request['uid'][:_SHOWN]}] "
