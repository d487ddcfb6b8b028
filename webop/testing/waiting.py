"""Waiting in tests for what an operator makes of objects: for conditions, never for times."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

_INTERVAL = 0.05  # seconds
_LEAST = 1.0  # seconds; also the last attempt may take its time

#: Tell what an operator in the background has failed with, if it has; while it should run.
watched: set[Callable[[], BaseException | None]] = set()

T = TypeVar("T")


@overload
def eventually(
    condition: Callable[[], Awaitable[T | None]], what: str = "", *, timeout: float = 10.0
) -> Awaitable[T]: ...


@overload
def eventually(
    condition: Callable[[], T | None], what: str = "", *, timeout: float = 10.0
) -> T: ...


def eventually(condition: Callable[[], Any], what: str = "", *, timeout: float = 10.0) -> Any:
    """Wait until a condition holds, and return what it has returned.

    ::

        body = eventually(lambda: cluster.get("v1", "ConfigMap", "one", namespace))
        eventually(lambda: "status" in read(), "the status is written")
        await eventually(lambda: client.get_status(), timeout=30)  # an async condition

    It holds as soon as it returns something true. Falsy values and exceptions (assertions, keys
    that are not there yet, refused connections) mean that it does not hold yet.

    There is no waiting for an operator of :class:`~webop.testing.OperatorRunner` that has failed.

    Args:
        condition: a function without arguments, sync or async. If it is async, the result of
            this function is to be awaited.
        what: what is waited for, in words, for the message of the failure.
        timeout: the seconds after which to give up.

    Raises:
        AssertionError: it has not held in time; the message tells what it was at last.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    wait = _Wait(condition, what, timeout)
    first = wait.attempt()
    if inspect.isawaitable(first):
        return _wait_async(wait, first)
    while not wait.take(first):
        time.sleep(_INTERVAL)
        first = wait.attempt()
    return wait.value


class _Wait:
    """One wait: the attempts, and what came of the last one."""

    def __init__(self, condition: Callable[[], Any], what: str, timeout: float) -> None:
        self._condition = condition
        self._what = what or "The condition"
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._error: Exception | None = None
        self.value: Any = None

    def attempt(self) -> Any:
        """Call the condition; an exception is kept for the message."""
        self._error = None
        try:
            return self._condition()
        except Exception as error:  # noqa: BLE001  whatever it is, it is told in the end
            self._error = error
            return None

    async def attempt_async(self, first: Any) -> Any:
        """Await what the condition has returned, if it is for that; the same for exceptions."""
        if not inspect.isawaitable(first):
            return first
        try:
            async with asyncio.timeout(max(self._deadline - time.monotonic(), _LEAST)):
                return await first
        except Exception as error:  # noqa: BLE001  whatever it is, it is told in the end
            self._error = error
            return None

    def take(self, value: Any) -> bool:
        """Tell whether the wait is over by this value.

        Raises:
            AssertionError: it is not, but the time is.
        """
        __tracebackhide__ = True
        self.value = value
        if value:
            return True
        failure = next(filter(None, (get_failure() for get_failure in list(watched))), None)
        if failure is not None:
            raise AssertionError(f"{self._what}: the operator has failed: {failure}") from failure
        if time.monotonic() > self._deadline:
            last = f"it was {self.value!r:.1000}"
            if self._error is not None:
                last = f"it raised {type(self._error).__name__}: {self._error}"
            text = f"{self._what}: not so after {self._timeout:g} s; at last, {last}"
            raise AssertionError(text) from self._error
        return False


async def _wait_async(wait: _Wait, first: Any) -> Any:
    __tracebackhide__ = True
    while not wait.take(await wait.attempt_async(first)):
        await asyncio.sleep(_INTERVAL)
        first = wait.attempt()
    return wait.value
