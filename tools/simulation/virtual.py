"""The clocks of all code in a history, and the threads of its handlers.

Whatever code asks for the time (the loop, ``time``, ``datetime``) is answered with that of the loop
(:mod:`webop.testing.simulation.virtual_loop`). There are no threads; sync calls run in
:class:`VirtualThreads`. ``random`` and ``secrets`` are seeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any
from unittest import mock

from webop.testing.simulation.virtual_loop import VirtualLoop

EPOCH = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
_RealDatetime = dt.datetime


class VirtualThreads(Executor):
    """Runs sync calls at once, in the loop's thread; they take the time that they ask for.

    What a call does is done when it is submitted; its result comes when its time is over. The call
    says how long it takes by :func:`block`.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        _spent.append(0.0)
        try:
            result = fn(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 - the caller gets it
            end = partial(future.set_exception, exc)
        else:
            end = partial(future.set_result, result)
        finally:
            spent = _spent.pop()
        asyncio.get_running_loop().call_later(spent, end)
        return future


_spent: list[float] = []  # by the calls that run, the innermost one last


def block(seconds: float) -> None:
    """Let the present call in a thread take some time more."""
    _spent[-1] += seconds


class _Moments(type):
    """Every moment is an instance, also those that C code has made."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _RealDatetime)


class Datetime(_RealDatetime, metaclass=_Moments):
    """The class of moments, which knows the virtual time."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        return _RealDatetime.fromtimestamp(time.time(), tz)


@contextlib.contextmanager
def virtual_time(
    loop: VirtualLoop, seed: int, begin_thread: Callable[[threading.Thread], None]
) -> Iterator[None]:
    """Make all code of this thread live in the time of a loop."""

    epoch = EPOCH.timestamp()

    def read_wall_clock() -> float:
        return epoch + loop.time()

    def read_clock(clock: int) -> float:
        return read_wall_clock() if clock == time.CLOCK_REALTIME else loop.time()

    state = random.getstate()
    random.seed(seed)
    with contextlib.ExitStack() as stack:
        for target, fake in {
            "time.time": read_wall_clock,
            "time.monotonic": loop.time,
            "time.clock_gettime": read_clock,
            "random._urandom": random.Random(f"tokens {seed}").randbytes,
            "datetime.datetime": Datetime,
            "webop.calls.progress._clock.read": read_wall_clock,
            "threading.Thread.join": lambda *_: None,
            "threading.Thread.start": lambda thread: begin_thread(thread),  # noqa: PLW0108 - a method
        }.items():
            stack.enter_context(mock.patch(target, fake))
        try:
            yield
        finally:
            random.setstate(state)
