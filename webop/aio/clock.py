"""The clock of handlers and conditions, which tests can move.

Records, pauses, Leases, credentials and certificates read the clocks of the machine.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextvars import ContextVar

moved_clock: ContextVar[Callable[[], dt.datetime] | None] = ContextVar("moved_clock", default=None)
"""A function that returns the time of a test; tasks, and threads of handlers, inherit it."""


def now() -> dt.datetime:
    """Return the current time with its zone, UTC: ``datetime.now(UTC)`` that tests can move.

    ::

        @webop.reconcile(Grant)
        async def close(spec: GrantSpec, **_):
            left = (spec.ends - webop.now()).total_seconds()
            if left > 0:
                return webop.again(after=left)

    It is the clock of the machine, except in tests with a ``webop.testing.FakeClient`` and in
    threads with their context: see docs/howto/testing_fake.md.
    """
    read = moved_clock.get()
    return dt.datetime.now(dt.UTC) if read is None else read()
