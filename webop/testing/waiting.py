"""Wait in tests until an operator has done its work: for conditions, not for fixed times."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

_INTERVAL = 0.05  # seconds
_MIN_TIMEOUT = 1.0  # seconds; for the last attempt

#: Functions that return the error of a failed operator in the background; one per running operator.
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
    """Wait until a condition is true, and return its value.

    ::

        body = eventually(lambda: cluster.get("v1", "ConfigMap", "one", namespace))
        eventually(lambda: "status" in read(), "the status is written")
        await eventually(lambda: client.get_status(), timeout=30)  # an async condition

    False values and exceptions (assertions, missing keys, refused connections) mean "not yet".
    The wait ends early if an operator of :class:`~webop.testing.OperatorRunner` has failed.

    Args:
        condition: a function without arguments, sync or async. If it is async, await the
            result of ``eventually()``.
        what: the condition in words, for the message of the error.
        timeout: the seconds until it gives up.

    Raises:
        AssertionError: the condition was not true in time, or the operator has failed. The
            message has the value or the exception of the last attempt.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    wait = _Wait(condition, what, timeout)
    first = wait.attempt()
    if inspect.isawaitable(first):
        return _wait_async(wait, first)
    while not wait.is_over(first):
        time.sleep(_INTERVAL)
        first = wait.attempt()
    return wait.value


class _Wait:
    """One wait: calls the condition, and keeps the outcome of the last attempt."""

    def __init__(self, condition: Callable[[], Any], what: str, timeout: float) -> None:
        self._condition = condition
        self._what = what or "the condition"
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._error: Exception | None = None
        self.value: Any = None

    def attempt(self) -> Any:
        """Call the condition; keep an exception for the message."""
        self._error = None
        try:
            return self._condition()
        except Exception as error:  # noqa: BLE001  it is part of the message
            self._error = error
            return None

    async def attempt_async(self, first: Any) -> Any:
        """Await the value of the condition if it is awaitable; keep an exception."""
        if not inspect.isawaitable(first):
            return first
        try:
            async with asyncio.timeout(max(self._deadline - time.monotonic(), _MIN_TIMEOUT)):
                return await first
        except Exception as error:  # noqa: BLE001  it is part of the message
            self._error = error
            return None

    def is_over(self, value: Any) -> bool:
        """Return whether this value ends the wait.

        Raises:
            AssertionError: it does not, and the time is over or the operator has failed.
        """
        __tracebackhide__ = True
        self.value = value
        if value:
            return True
        failure = next(filter(None, (get_failure() for get_failure in list(watched))), None)
        if failure is not None:
            text = f"The operator failed before this became true: {self._what}. {failure}"
            raise AssertionError(text) from failure
        if time.monotonic() > self._deadline:
            last = f"returned {self.value!r:.1000}"
            if self._error is not None:
                last = f"raised {type(self._error).__name__}: {self._error}"
            text = f"Not true after {self._timeout:g} s: {self._what}. The last attempt {last}."
            raise AssertionError(text) from self._error
        return False


async def _wait_async(wait: _Wait, first: Any) -> Any:
    __tracebackhide__ = True
    while not wait.is_over(await wait.attempt_async(first)):
        await asyncio.sleep(_INTERVAL)
        first = wait.attempt()
    return wait.value
