"""Waiting for conditions, in an event loop (of real or of virtual time) and without one."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 40.0  # seconds of real time; only failing tests wait for so long


async def eventually(
    look: Callable[[], Any],
    what: str | Callable[[], str] = "the condition",
    timeout: float = PATIENCE,
    *,
    check: Callable[[Any], object] = bool,
    ignoring: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """Look again and again until it is as expected; return what is seen then.

    Args:
        look: a function, of either kind.
        what: what is waited for, for the error.
        check: tells whether it is as expected.
        ignoring: errors of looking that can pass; others end the waiting.
    """
    deadline, pause, found = time.monotonic() + timeout, 0.005, None
    while True:
        try:
            is_request = inspect.isawaitable(found := look())
            found = await found if is_request else found
            if check(found):
                return found
        except ignoring as exc:
            found, is_request = exc, True
        if time.monotonic() > deadline:
            raise _build_error(what, timeout, found)
        await asyncio.sleep(pause)
        pause = min(pause * 1.2, 0.05 if is_request else 0.01)


def wait_until(look: Callable[[], Any], what: str | Callable[[], str] = "the condition") -> Any:
    """Wait as :func:`eventually` does, without an event loop."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline:
            raise _build_error(what, PATIENCE, found)
        time.sleep(0.02)
    return found


def _build_error(what: str | Callable[[], str], timeout: float, found: object) -> AssertionError:
    text = what if isinstance(what, str) else what()
    return AssertionError(f"{text} has not come true in {timeout:g} s: {found!r}")
