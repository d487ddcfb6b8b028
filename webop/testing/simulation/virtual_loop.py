"""An event loop that never waits: when nothing can be done now, its time jumps to the next timer.

Two runs of one seed are the same: tasks and futures are hashed by their serial number, so that sets
of them are iterated in order. Only the hashes of text are up to the
interpreter (``PYTHONHASHSEED``).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from webop.aio.concurrency import find_running_loop

_MAX_STEPS = 200_000  # of the loop without a rest: it runs in circles
_STEP = 1e-6  # seconds for each: clocks go on, also between two looks in one step
_COLLECTION = 20_000  # steps between collections of garbage: they happen at the same steps


class Process:
    """A replica of an operator, which can stand still.

    Attributes:
        is_paused: whether nothing of it runs.
    """

    def __init__(self) -> None:
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

    def __init__(
        self, serial: int, *args: Any, context: contextvars.Context | None = None, **kw: Any
    ) -> None:
        self._serial = serial
        context = contextvars.copy_context() if context is None else context
        self.process = context.get(current_process)
        super().__init__(*args, context=context, **kw)

    def __hash__(self) -> int:
        return self._serial


class _Future(asyncio.Future[Any]):
    """A future with a hash that is the same in each run."""

    def __init__(self, serial: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a number; see the module.

    Attributes:
        on_jump: called with the new time when it jumps.
        refuse: called with what code wants to do with the world outside; raises an error.
        interruption: what is raised before the next step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_jump: Callable[[float], None] | None = None
        self.refuse: Callable[[str], NoReturn] = _refuse
        self.interruption: BaseException | None = None
        self._now = 0.0
        self._serials = itertools.count()
        self._steps = 0  # since the last rest
        self._rounds = 0
        self._held: deque[asyncio.Handle] = deque()
        self._ready: deque[asyncio.Handle]
        self._stopping: bool
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.set_task_factory(
            lambda loop, coro, **options: _Task(next(self._serials), coro, loop=loop, **options)
        )

    def time(self) -> float:
        """Return the virtual time, in seconds from the start."""
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future (see :class:`_Future`)."""
        return _Future(next(self._serials), loop=self)

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
        heapq.heappush(self._timers, (when, next(self._serials), timer))
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call a function in a simulated thread; at once if there are none."""
        del executor  # its threads would not know this time
        if self._default_executor is not None:
            call = self._default_executor.submit(contextvars.copy_context().run, func, *args)
            return asyncio.wrap_future(call, loop=self)
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  its caller gets it
            future.set_exception(error)
        return future

    def set_default_executor(self, executor: Any) -> None:
        """Set where :meth:`run_in_executor` runs functions: any executor."""
        self._default_executor = executor

    def interrupt(self, exc: BaseException) -> None:
        """Raise an error before the next step: within one, webop could catch it."""
        self.interruption = self.interruption or exc

    def resume(self) -> None:
        """Do what a process that was paused should have done meanwhile, in its order."""
        self._ready.extendleft(reversed(self._held))
        self._held.clear()

    def skip(self, seconds: float) -> None:
        """Let time pass in the middle of a step: the loop is blocked."""
        self._now += seconds
        if self.on_jump is not None:
            self.on_jump(self._now)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Be the running loop of this thread, for :meth:`run_once` and :meth:`run_until`."""
        former = find_running_loop()
        asyncio._set_running_loop(self)  # as run_forever() does it
        try:
            yield
        finally:
            asyncio._set_running_loop(former)

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Take steps until a condition holds.

        Raises:
            DeadlockError: it will never hold.
            LivelockError: time does not go on.
        """
        with self.entered():
            while not is_done():
                self._run_once()

    def _run_once(self) -> None:
        if self.interruption is not None:
            raise self.interruption
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        now = self._now
        if not ready and not self._stopping:
            if not timers:
                raise DeadlockError
            self._steps = 0
            now = max(now, timers[0][0])
            if self.on_jump is not None:
                self.on_jump(now)
        self._now = now = now + _STEP
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        self._steps += 1
        self._rounds += 1
        if self._rounds % _COLLECTION == 0:
            gc.collect()
        if self._steps > _MAX_STEPS:
            message = f"{_MAX_STEPS} steps at {now:.3f} s: {[*ready][:5]}"
            raise LivelockError(message)
        for _ in range(len(ready)):
            handle: Any = ready.popleft()
            if handle.cancelled():
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


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(what)


def _build_refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(loop: VirtualLoop, *args: Any, **_: Any) -> NoReturn:
        if name not in {"create_connection", "getaddrinfo"}:
            loop.refuse(f"uses loop.{name}()")
        host = args[name == "create_connection"] if len(args) > 1 else args[0] if args else "?"
        loop.refuse(f"connects to {host.decode() if isinstance(host, bytes) else host}")

    return refuse


for _name in (
    *("add_reader", "add_signal_handler", "add_writer", "connect_read_pipe", "create_connection"),
    *("create_datagram_endpoint", "create_server", "create_unix_connection"),
    *("create_unix_server", "getaddrinfo", "sock_connect", "subprocess_exec", "subprocess_shell"),
):
    setattr(VirtualLoop, _name, _build_refusal(_name))
