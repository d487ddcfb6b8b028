"""Real threads in virtual time: one runs at a time, and the clock stands still meanwhile.

The loop hands its turn to a thread and gets it back when the thread ends, or waits for something
virtual: ``time.sleep``, ``stopped.wait``, the answer of the client. So the order of all steps is
the same in each run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from webop.testing.simulation.virtual_loop import VirtualLoop

R = TypeVar("R")

_LONG = 1.0  # real seconds of work without a virtual wait: a warning
_TOO_LONG = 10.0  # a failure
_WEBOP = str(Path(__file__).parents[2])
_LIBRARIES = str(Path(threading.__file__).parent)


class SimulationError(AssertionError):
    """Something cannot be simulated; the text says what, and where."""


class _Killed(BaseException):
    """Ends a thread of a process that was killed."""


class _Worker(threading.Thread):
    """One call in a thread."""

    def __init__(
        self, pool: VirtualThreads, future: Future[Any], call: Callable[[], Any], name: str
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.pool = pool
        self.is_over = False
        self.outcome: tuple[Any, BaseException | None] = None, None
        self._future = future
        self._call = call
        self._go = threading.Semaphore(0)

    def run(self) -> None:
        self._go.acquire()
        _own.worker = self
        try:
            self.outcome = self._call(), None
        except BaseException as exc:  # noqa: BLE001  the caller gets it
            self.outcome = None, exc
        self.is_over = True
        self.pool.back.release()

    def take_turn(self) -> None:
        """Let it run until it ends or waits; in the thread of the loop."""
        if self.is_over:
            return
        self._go.release()
        if not self.pool.back.acquire(timeout=_LONG):
            file, line, what = _locate(self)
            where = f"{what} has run, or waited for another thread, for more than"
            if not self.pool.back.acquire(timeout=_TOO_LONG - _LONG):
                text = f"{where} {_TOO_LONG:g} s of real time, at {file}:{line}."
                self.pool.workers.discard(self)
                self.pool.loop.interrupt(SimulationError(f"{text} Virtual time waits for it."))
                return
            text = f"{where} {_LONG:g} s of real time: virtual time stands still meanwhile."
            try:
                warnings.warn_explicit(text, UserWarning, file, line)
            except UserWarning as exc:  # as the test wants it
                self.pool.loop.interrupt(exc)
        self._take_outcome()

    def _take_outcome(self) -> None:
        if self.is_over:
            self.pool.workers.discard(self)
            result, exc = self.outcome
            if exc is None:
                self._future.set_result(result)
            else:
                self._future.set_exception(exc)

    def wait(self, listen: Callable[[Callable[[], None]], object], timeout: float | None) -> None:
        """Give the turn back until something has happened; in the thread itself.

        Args:
            listen: given a function that ends the wait, arranges that it is called.
            timeout: the seconds after which it ends in any case.
        """
        if self.pool.is_closing:
            raise _Killed
        is_woken, context = [False], contextvars.copy_context()

        def wake() -> None:
            if not is_woken[0]:
                is_woken[0] = True
                self.pool.loop.call_soon(self.take_turn, context=context)

        listen(wake)
        alarm = None if timeout is None else self.pool.loop.call_later(timeout, wake)
        self.pool.back.release()
        self._go.acquire()
        if alarm is not None:
            alarm.cancel()
        if self.pool.is_closing:
            raise _Killed


class _Own(threading.local):
    worker: _Worker | None = None


_own = _Own()


def find_worker() -> _Worker | None:
    """Return the simulated thread that calls; None in all others."""
    return _own.worker


class VirtualThreads(Executor):
    """Runs sync functions in threads, one at a time; see the module.

    Attributes:
        loop: whose time they live in.
        back: released when a thread gives the turn back.
        workers: the threads that have not ended.
        is_closing: whether they must end.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.back = threading.Semaphore(0)
        self.workers: set[_Worker] = set()
        self.is_closing = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in its own thread, in a later step of the loop."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()  # of a process, which can stand still

        def begin() -> None:
            if self.is_closing:
                future.cancel()
            if future.set_running_or_notify_cancel():
                call = partial(context.run, fn, *args, **kwargs)
                worker = _Worker(self, future, call, "webop-simulated")
                self.workers.add(worker)
                worker.start()
                worker.take_turn()

        self.loop.call_soon(begin)
        return future

    def close(self) -> None:
        """End all threads: what waits in them raises an error."""
        self.is_closing = True
        for worker in sorted(self.workers, key=lambda one: one.ident or 0):
            worker.take_turn()
            worker.join(_LONG)


def sleep(seconds: float) -> bool:
    """Sleep in virtual time if a simulated thread calls; return whether it did."""
    worker = find_worker()
    if worker is None:
        return False
    worker.wait(lambda _: None, seconds)
    return True


class VirtualEvent(threading.Event):
    """An event whose waiting takes virtual time in simulated threads."""

    def __init__(self) -> None:
        super().__init__()
        self._wakers: dict[_Worker, Callable[[], None]] = {}  # of the last wait of each thread

    def set(self) -> None:
        super().set()
        for wake in self._wakers.values():
            wake()

    def wait(self, timeout: float | None = None) -> bool:
        worker = find_worker()
        if worker is None:
            return super().wait(timeout)
        if not self.is_set():
            worker.wait(partial(self._wakers.__setitem__, worker), timeout)
            del self._wakers[worker]
        return self.is_set()


class _VirtualFuture(concurrent.futures.Future[R]):
    """A result that a simulated thread waits for in virtual time."""

    def result(self, timeout: float | None = None) -> R:
        worker = find_worker()
        if worker is not None and not self.done():
            worker.wait(lambda wake: self.add_done_callback(lambda _: wake()), timeout)
            timeout = 0
        return super().result(timeout)


_run_for_real = asyncio.run_coroutine_threadsafe


def run_coroutine_threadsafe(
    coro: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop
) -> concurrent.futures.Future[R]:
    """Be ``asyncio.run_coroutine_threadsafe``, also for loops in virtual time."""
    if not isinstance(loop, VirtualLoop):
        return _run_for_real(coro, loop)
    worker, future = find_worker(), _VirtualFuture[R]()
    if worker is not None and worker.pool.is_closing:
        coro.close()
        raise _Killed

    def begin() -> None:
        task = loop.create_task(coro)
        asyncio.futures._chain_future(task, future)  # type: ignore[attr-defined]  # as asyncio

    loop.call_soon(begin)
    return future


def locate(frame: Any) -> tuple[str, int, str]:
    """Return the file, the line and the function of the user's code in a stack."""
    found = None
    for one, line in traceback.walk_stack(frame):
        file = one.f_code.co_filename
        found = found or (file, line, f"{one.f_code.co_name}()")
        if not file.startswith((_WEBOP, _LIBRARIES, "<")) and "site-packages" not in file:
            return file, line, f"{one.f_code.co_name}()"
    return found or ("?", 0, "?")


def _locate(worker: _Worker) -> tuple[str, int, str]:
    return locate(sys._current_frames().get(worker.ident or 0))
