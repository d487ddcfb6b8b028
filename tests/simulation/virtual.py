"""Virtual time: an event loop that never waits, and the clocks of all code that runs in it.

When nothing can be done now, the time of the loop jumps to the next timer. Whatever code asks for
the time (the loop, ``time``, ``datetime``) is answered with it, each process of the simulation with
its own error of the wall clock. There are no threads; sync calls run in :class:`VirtualThreads`.

Everything that could differ between two runs of one seed is made the same: tasks and futures are
hashed by their serial number, so that sets of them are iterated in order; ``random`` and
``secrets`` are seeded.
Only the hashes of text are up to the interpreter (``PYTHONHASHSEED=0``).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime as dt
import heapq
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any
from unittest import mock

from tests.kit.virtual_time import InlineExecutorLoop

EPOCH = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
_MAX_STEPS = 200_000  # of the loop without a rest: it runs in circles
_STEP = 1e-6  # seconds for each: clocks go on, also where no time is to be seen between two looks

_RealDatetime = dt.datetime
_serials = itertools.count()


class Process:
    """What has its own clock and can stand still: a replica of an operator.

    Attributes:
        skew: the error of its wall clock, in seconds.
        is_paused: whether nothing of it runs.
    """

    def __init__(self) -> None:
        self.skew = 0.0
        self.is_paused = False


current_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar(
    "current_process", default=None
)


class LivelockError(AssertionError):
    """Time does not go on: something is done again and again."""


class DeadlockError(AssertionError):
    """Nothing will ever happen again."""


class _Task(asyncio.Task[Any]):
    """A task with a hash that is the same in each run.

    Attributes:
        process: whose it is.
    """

    def __init__(self, *args: Any, context: contextvars.Context | None = None, **kw: Any) -> None:
        self._serial = next(_serials)
        context = contextvars.copy_context() if context is None else context
        self.process = context.get(current_process)
        super().__init__(*args, context=context, **kw)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(asyncio.Future[Any]):
    """A future with a hash that is the same in each run."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._serial = next(_serials)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(InlineExecutorLoop):
    """An event loop whose time is a number; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._steps = 0  # since the last rest
        self.is_interrupted = False
        self._held: deque[asyncio.Handle] = deque()
        self._ready: deque[asyncio.Handle]
        self._stopping: bool
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.set_task_factory(_build_task)  # type: ignore[arg-type]

    def time(self) -> float:
        """Return the virtual time, in seconds from the start."""
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future (see :class:`_Future`)."""
        return _Future(loop=self)

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Do something in the next step; without the checks of the base class, which cost time."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Do something at some moment; what is due at the same moment is done in order."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(_serials), timer))
        return timer

    def interrupt(self) -> None:
        """Raise ``KeyboardInterrupt`` before the next step: within one, webop could catch it."""
        self.is_interrupted = True

    def resume(self) -> None:
        """Do what a process that was paused should have done meanwhile, in its order."""
        self._ready.extendleft(reversed(self._held))
        self._held.clear()

    # What the base class calls.

    def _run_once(self) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        now = self._now
        if not ready and not self._stopping:
            if not timers:
                raise DeadlockError
            self._steps = 0
            now = max(now, timers[0][0])
        self._now = now = now + _STEP
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        self._steps += 1
        if self._steps > _MAX_STEPS:
            message = f"{_MAX_STEPS} steps at {now:.3f} s: {[*ready][:5]}"
            raise LivelockError(message)
        for _ in range(len(ready)):
            handle: Any = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(current_process)
            if process is not None and process.is_paused:
                self._held.append(handle)
            else:
                handle._run()

    def get_debug(self) -> bool:
        """Tell that this is no debugging: each handle asks for it."""
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled timer is dropped when it is due."""

    def _write_to_self(self) -> None:
        """Nothing waits that would have to be woken."""

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing: there are none."""


def _build_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
) -> _Task:
    return _Task(coro, loop=loop, **options)


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
    """Make all code of this thread live in the time of a loop.

    Args:
        loop: the loop.
        seed: for ``random``.
        begin_thread: called instead of starting a thread.
    """

    epoch = EPOCH.timestamp()

    def read_wall_clock() -> float:
        process = current_process.get()
        return epoch + loop.time() + (process.skew if process else 0.0)

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
            # The processes of a simulation are one, and their clocks differ.
            "webop.calls.progress._clock.read": read_wall_clock,
            "threading.Thread.start": lambda thread: begin_thread(thread),  # noqa: PLW0108 - a method
        }.items():
            stack.enter_context(mock.patch(target, fake))
        try:
            yield
        finally:
            random.setstate(state)
